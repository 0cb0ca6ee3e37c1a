//! A hundred pictures in one process: what is held does not grow.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/run.rs"]
mod run;
mod support;

use pollster::block_on;
use rotile::backend::Device;
use rotile::engine::{DeviceChoice, Request};
use rotile::gpu::AdapterChoice;
use rotile::memory::tier::Mode;
use run::Run;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is counted is the whole program's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

const RUNS: usize = 100;

/// Runs after which the same requests come again.
const CYCLE: usize = 10;

/// Bytes on the device, and in the driver's blocks.
fn held(run: &mut Run) -> i64 {
    match run.device() {
        Device::Gpu(gpu) => {
            block_on(gpu.idle()).unwrap_or_else(|e| panic!("{e}"));
            let bytes = gpu.allocated_bytes().unwrap_or_else(|| panic!("{}", gpu.caps()));
            bytes as i64
        }
        Device::Cpu(_) => counting::bytes(),
    }
}

/// Prompts of five lengths, in two sizes.
fn request(i: usize) -> Request {
    let prompt = "a red boat on the sea ".repeat(1 + i % (CYCLE / 2));
    let (width, height) = if (i / (CYCLE / 2)).is_multiple_of(2) {
        (32, 32)
    } else {
        (48, 32)
    };
    Request::new(prompt).steps(1).guidance(0.0).size(width, height)
}

fn hundred(device: &DeviceChoice, mode: Mode, requests: fn(usize) -> Request, cycle: usize) {
    let started = Instant::now();
    let mut run = Run::new(device, mode, &requests(0));
    let slack = if *device == DeviceChoice::Cpu {
        counting::THREADS
    } else {
        0
    };
    let mut pictures = Vec::new();
    let mut bytes = Vec::new();
    for i in 0..RUNS {
        run.request = requests(i);
        let picture = run.good();
        match pictures.get(i % cycle) {
            None => pictures.push(picture),
            Some(first) => assert!(picture == *first, "run {i} makes another picture"),
        }
        bytes.push(held(&mut run));
        // Which sessions are kept depends on those before: they are the same once all of them were seen.
        if i >= 2 * cycle {
            let grown = bytes[i] - bytes[cycle + i % cycle];
            assert!(
                grown.abs() <= slack,
                "{device:?}, {mode}: {grown} bytes in run {}",
                i + 1
            );
        }
    }
    println!(
        "{device:?}, {mode}, {cycle} requests in turn: {} bytes after the first run, {} after the second, {} after the last, {} at most; {:.1} s",
        bytes[0],
        bytes[1],
        bytes[RUNS - 1],
        bytes.iter().max().expect("runs"),
        started.elapsed().as_secs_f64()
    );
}

fn both(device: &DeviceChoice) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    hundred(device, Mode::Auto, |_| request(0), 1);
    hundred(device, Mode::Auto, request, CYCLE);
    hundred(device, Mode::LowVram, request, CYCLE);
}

#[test]
fn a_hundred_pictures_on_the_cpu() {
    both(&DeviceChoice::Cpu);
}

#[test]
fn a_hundred_pictures_on_the_gpu() {
    if support::gpu().is_some() {
        both(&DeviceChoice::Gpu(AdapterChoice::Best));
    }
}

//! Memory that is not there: whichever allocation of a run fails, there is an honest error or the picture, what was taken is given back, and the
//! next run knows nothing of it.

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
use rotile::error::{Error, GpuError};
use rotile::gpu::AdapterChoice;
use rotile::media::compare::psnr;
use rotile::media::{Format, Image};
use rotile::memory::faults::Faults;
use rotile::memory::tier::Mode;
use run::{PROMPT, Run, STRENGTH, requests, start};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What is counted is the whole program's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu() -> Option<DeviceChoice> {
    support::gpu().map(|_| DeviceChoice::Gpu(AdapterChoice::Best))
}

/// Bytes on the device.
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

/// The picture that a process of its own makes.
fn of_a_fresh_process(device: &DeviceChoice, request: &Request) -> Image {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rotile"));
    let device = match device {
        DeviceChoice::Cpu => "cpu",
        _ => "gpu",
    };
    command
        .current_dir(folder.path())
        .args(["generate", PROMPT, "--steps", "2", "-W", "64", "-H", "64"])
        .args(["--guidance", "0", "--seed", "3", "--device", device, "-o", "out.png"]);
    if request.init_image.is_some() {
        let bytes = start().to_bytes(Format::Png, &[]).expect("encodes");
        std::fs::write(folder.path().join("start.png"), bytes).expect("written");
        command.args(["--init-image", "start.png", "--strength", &STRENGTH.to_string()]);
    }
    let output = command.output().expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(folder.path().join("out.png")).expect("written");
    Image::from_bytes(&bytes, "out.png").expect("a picture")
}

/// What a fault may end in.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Error,
    Same,
    /// The autoencoder has run in tiles or on the CPU, which was said.
    Near,
}

fn is_shortage(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { wanted, .. } | Error::Gpu(GpuError::OutOfMemory { wanted }) => *wanted > 0,
        Error::Undecoded { latents, source } => latents.len() == 1 && is_shortage(source),
        _ => false,
    }
}

fn end(run: &mut Run, wanted: &Image) -> End {
    match run.generate() {
        Err(error) if is_shortage(&error) => End::Error,
        Err(error) => panic!("{error:?}"),
        Ok(image) if image == *wanted => End::Same,
        Ok(image) => {
            let said = |words: &str| run.notes.iter().any(|note| note.contains(words));
            let said = said("out of memory") || said("on the CPU");
            assert!(said, "another picture, and nothing is said: {:?}", run.notes);
            let decibels = psnr(&image.to_tensor().data, &wanted.to_tensor().data);
            assert!(decibels >= 60.0, "{decibels} dB: {:?}", run.notes);
            End::Near
        }
    }
}

/// Sets each fault `k`, from 1 in steps of `stride`, until a run does not come to it; `count` tells how far runs come.
fn sweep(
    (device, mode, request): (&DeviceChoice, Mode, &Request),
    stride: usize,
    what: &str,
    set: fn(&Faults, u64),
    count: fn(&Faults) -> u64,
) {
    let started = Instant::now();
    let mut run = Run::new(device, mode, request);
    let wanted = run.good();
    assert_eq!(wanted, of_a_fresh_process(device, request), "in a fresh process");
    assert!(run.good() == wanted, "the second picture differs");
    run.release();
    let baseline = held(&mut run);
    let slack = if *device == DeviceChoice::Cpu {
        counting::THREADS
    } else {
        0
    };
    let back = |run: &mut Run, k: u64, when: &str| {
        run.release();
        let more = held(run) - baseline;
        assert!(more.abs() <= slack, "{what} at {k}: {more} bytes more {when}");
    };
    let mut ends = Vec::new();
    for k in (1..).step_by(stride) {
        let before = count(run.faults());
        set(run.faults(), k);
        let ended = end(&mut run, &wanted);
        run.faults().clear();
        if count(run.faults()) - before < k {
            assert_eq!(ended, End::Same);
            break;
        }
        ends.push(ended);
        // Half of the runs that follow find what a failed one has left, the others nothing.
        if k % 2 == 0 {
            back(&mut run, k, "after it");
        }
        assert!(run.good() == wanted, "{what} at {k}: the next picture differs");
        back(&mut run, k, "after the next run");
    }
    let number = |end| ends.iter().filter(|e| **e == end).count();
    println!(
        "{device:?}, {mode}, {}, {what}: {} of every {stride}: {} errors, {} pictures the same, {} near it; {baseline} bytes held after each; {:.1} s",
        request.init_image.as_ref().map_or("from nothing", |_| "from a picture"),
        ends.len(),
        number(End::Error),
        number(End::Same),
        number(End::Near),
        started.elapsed().as_secs_f64()
    );
    assert!(!ends.is_empty());
}

/// Allocations that fail once and for good, and work that is refused, in runs that encode a picture, make steps and decode.
fn all(device: &DeviceChoice, mode: Mode, stride: usize) {
    let [_, request] = requests();
    let case = (device, mode, &request);
    sweep(case, stride, "one allocation", Faults::fail_at, Faults::allocations);
    let from = "all allocations from one on";
    sweep(case, stride, from, Faults::fail_from, Faults::allocations);
    if *device != DeviceChoice::Cpu {
        sweep(case, stride, "one submission", Faults::fail_run_at, Faults::submissions);
    }
}

#[test]
fn some_allocations_fail_on_the_cpu() {
    let _alone = alone();
    all(&DeviceChoice::Cpu, Mode::Auto, 23);
    all(&DeviceChoice::Cpu, Mode::LowVram, 23);
}

#[test]
fn some_allocations_fail_on_the_gpu() {
    let _alone = alone();
    let Some(gpu) = gpu() else { return };
    all(&gpu, Mode::Auto, 97);
    all(&gpu, Mode::LowVram, 97);
}

/// `cargo test --test faults -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn every_allocation_fails_on_the_cpu() {
    let _alone = alone();
    all(&DeviceChoice::Cpu, Mode::Auto, 1);
    all(&DeviceChoice::Cpu, Mode::LowVram, 1);
}

#[test]
#[ignore = "takes many minutes"]
fn every_allocation_fails_on_the_gpu() {
    let _alone = alone();
    let Some(gpu) = gpu() else { return };
    all(&gpu, Mode::Auto, 1);
}

#[test]
#[ignore = "takes many minutes"]
fn every_allocation_fails_on_the_gpu_part_by_part() {
    let _alone = alone();
    let Some(gpu) = gpu() else { return };
    all(&gpu, Mode::LowVram, 1);
}

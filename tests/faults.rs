//! Memory that is not there: whichever allocation of a run fails, there is an honest error or the picture, what was taken is given back, and the
//! next run knows nothing of it.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/counting.rs"]
mod counting;
mod support;

use pollster::block_on;
use rotile::backend::Device;
use rotile::diffusion::MemoryOptions;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Request};
use rotile::error::{Error, GpuError};
use rotile::gpu::AdapterChoice;
use rotile::media::Image;
use rotile::media::compare::Comparison;
use rotile::memory::faults::Faults;
use rotile::memory::tier::Mode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is counted is the whole program's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn times() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for device in devices() {
        for mode in [Mode::Auto, Mode::LowVram] {
            for request in requests() {
                let mut run = Run::new(&device, mode, request);
                let start = Instant::now();
                let (r, _) = run.generate();
                r.unwrap();
                let first = start.elapsed();
                let start = Instant::now();
                run.engine.pipeline().release();
                println!("held {}", run.held());
                let before = (run.faults().allocations(), run.faults().submissions());
                let (r, _) = run.generate();
                r.unwrap();
                println!(
                    "{device:?} {mode}: first {first:?}, then {:?}, allocations {}, submissions {}",
                    start.elapsed(),
                    run.faults().allocations() - before.0,
                    run.faults().submissions() - before.1
                );
                run.engine.pipeline().release();
                println!("held {}", run.held());
                run.generate().0.unwrap();
                run.engine.pipeline().release();
                println!("held {}", run.held());
            }
        }
    }
}

fn devices() -> Vec<DeviceChoice> {
    let gpu = support::gpu().map(|_| DeviceChoice::Gpu(AdapterChoice::Best));
    [Some(DeviceChoice::Cpu), gpu].into_iter().flatten().collect()
}

/// A picture from nothing, and one from a picture.
fn requests() -> [Request; 2] {
    let plain = Request::new("a red boat").steps(2).size(64, 64).guidance(0.0);
    let pixels = (0..64 * 64 * 3).map(|i| (i * 7 % 251) as u8).collect();
    let start = Image::new(64, 64, pixels);
    [plain.clone(), plain.init_image(start, 0.8)]
}

struct Run {
    engine: Engine,
    request: Request,
}

impl Run {
    fn new(device: &DeviceChoice, mode: Mode, request: Request) -> Self {
        let options = Options {
            device: device.clone(),
            memory: MemoryOptions {
                mode,
                ..MemoryOptions::default()
            },
            ..Options::default()
        };
        let engine = block_on(Engine::embedded(&options)).expect("is embedded");
        Self { engine, request }
    }

    fn generate(&mut self) -> (Result<Image, Error>, Vec<String>) {
        let mut notes = Vec::new();
        let on = |event| {
            if let Event::Note(note) = event {
                notes.push(note);
            }
        };
        let pictures = block_on(self.engine.generate(&self.request, on, &Cancel::new()));
        (pictures.map(|mut pictures| pictures.remove(0).image), notes)
    }

    fn device(&mut self) -> Device {
        self.engine.pipeline().device().clone()
    }

    fn faults(&mut self) -> &Faults {
        self.engine.pipeline().device().faults()
    }

    /// Bytes on the device.
    fn held(&mut self) -> i64 {
        match self.device() {
            Device::Gpu(gpu) => {
                block_on(gpu.idle()).unwrap_or_else(|e| panic!("{e}"));
                gpu.allocated_bytes().map_or(0, |bytes| bytes as i64)
            }
            Device::Cpu(_) => counting::bytes(),
        }
    }
}

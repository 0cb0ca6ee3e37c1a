//! A device that is lost, wherever a run is: a typed error and no panic, from it and from all that follow; a new engine in the same process works.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/run.rs"]
mod run;
mod support;

use pollster::block_on;
use rotile::backend::Device;
use rotile::diffusion::vae::VaeOptions;
use rotile::engine::DeviceChoice;
use rotile::error::{Error, GpuError};
use rotile::gpu::AdapterChoice;
use rotile::media::compare::psnr;
use rotile::memory::tier::Mode;
use run::{Run, requests, start};
use std::collections::BTreeSet;

fn is_lost(error: &Error) -> bool {
    match error {
        Error::Gpu(GpuError::DeviceLost(_)) => true,
        Error::Undecoded { latents, source } => latents.len() == 1 && is_lost(source),
        _ => false,
    }
}

fn assert_lost<T>(result: Result<T, Error>, what: &str) {
    match result {
        Ok(_) => panic!("{what}: the device is lost"),
        Err(error) => assert!(is_lost(&error), "{what}: {error:?}"),
    }
}

#[test]
fn lost_anywhere_and_made_anew() {
    if support::gpu().is_none() {
        return;
    }
    let device = DeviceChoice::Gpu(AdapterChoice::Best);
    let [_, request] = requests();
    // With it the autoencoder would go on, on the CPU: see below.
    let alone = VaeOptions {
        fallback: false,
        ..VaeOptions::default()
    };
    let engine = || Run::with_vae(&device, Mode::Auto, &request, alone.clone());
    let mut first = engine();
    let wanted = first.good();
    let latent = block_on(first.engine.encode(&start())).unwrap_or_else(|e| panic!("{e}"));
    let before = first.faults().submissions();
    first.release();
    first.good();
    let all = first.faults().submissions() - before;
    let before = first.faults().submissions();
    first.good();
    let ready = first.faults().submissions() - before;
    drop(first);

    // One while weights are uploaded, the others anywhere: in runs that prepare all first, and in those that have it.
    let mut uniform = support::uniform("devices are lost");
    let mut points = vec![(false, 1)];
    for warm in [false, true].repeat(5) {
        let of = if warm { ready } else { all };
        points.push((warm, 1 + (f64::from(uniform() + 1.0) / 2.0 * (of - 1) as f64) as u64));
    }
    points.push((true, ready));
    let mut stages = BTreeSet::new();
    for (warm, k) in points {
        let mut run = engine();
        if warm {
            assert!(run.good() == wanted, "a new engine makes another picture");
        }
        run.faults().lose_at(k);
        let result = run.generate();
        let stage = run.stage.expect("it has begun").name();
        stages.insert(stage);
        println!(
            "{k} of {}: lost in `{stage}`: {}",
            if warm { ready } else { all },
            result.as_ref().err().map_or(String::new(), Error::to_string)
        );
        assert_lost(result, "the run");
        assert_lost(run.generate(), "the next run");
        assert_lost(block_on(run.engine.decode(&latent)), "decoding");
        assert_lost(block_on(run.engine.encode(&start())), "encoding");
        let Device::Gpu(gpu) = run.device() else {
            panic!("a GPU")
        };
        assert!(matches!(block_on(gpu.idle()), Err(GpuError::DeviceLost(_))));
        gpu.allocated_bytes();
        run.engine.bytes();
        run.release();
        assert_lost(run.generate(), "a run after all was released");
    }
    println!("lost in {stages:?}");
    let mut last = engine();
    assert!(last.good() == wanted, "a new engine makes another picture");

    // The CPU decodes in place of a device that is lost after the last step; then the engine is as lost as the others.
    let mut run = Run::new(&device, Mode::Auto, &request);
    assert!(run.good() == wanted);
    run.faults().lose_at(ready);
    let picture = run.good();
    let decibels = psnr(&picture.to_tensor().data, &wanted.to_tensor().data);
    println!("decoded on the CPU: {decibels} dB; {:?}", run.notes);
    assert!(decibels >= 60.0, "{decibels} dB");
    assert!(run.notes.iter().any(|note| note.contains("CPU")), "{:?}", run.notes);
    assert_lost(run.generate(), "the next run");
}

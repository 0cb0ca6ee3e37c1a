//! An autoencoder whose activations leave half precision: stored as f16 it gives what f32 gives, and says so.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/model.rs"]
mod model;
mod support;

use fixtures::scenes;
use model::Part;
use rotile::Error;
use rotile::diffusion::tiled::TileOptions;
use rotile::diffusion::vae::{VaeDType, VaeOptions};
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Files, Options, Request, Source};
use rotile::media::{Comparison, Image};
use rotile::tensor::{DType, Tensor};
use std::path::Path;

/// The embedded model with another autoencoder.
fn engine(vae: &Path, device: DeviceChoice, dtype: VaeDType) -> Engine {
    let files = Files {
        vae: Some(vae.to_owned()),
        ..Files::folder(scenes(""))
    };
    let options = Options {
        device,
        vae: VaeOptions {
            dtype,
            ..VaeOptions::default()
        },
        ..Options::default()
    };
    let source = Source::open(&files).unwrap_or_else(|e| panic!("{e}"));
    pollster::block_on(Engine::new(source, &options)).unwrap_or_else(|e| panic!("{e}"))
}

/// A copy of the embedded autoencoder whose first convolutions of two blocks, each before a norm, give `factor` times as much.
fn scaled(folder: &Path, factor: f32) {
    let mut part = Part::open("vae");
    for block in ["decoder.up_blocks.0.resnets.0", "encoder.down_blocks.1.resnets.0"] {
        for name in ["weight", "bias"] {
            part.get(&format!("{block}.conv1.{name}")).scale(factor);
        }
    }
    part.write(folder);
}

fn has_f16() -> bool {
    support::gpu().is_some_and(|gpu| gpu.caps().f16)
}

fn latent(side: usize) -> Tensor {
    let mut uniform = support::uniform("latent");
    Tensor::new([1, 16, side, side], (0..16 * side * side).map(|_| uniform()).collect())
}

/// The picture, and the notes on the way.
fn decode(engine: &mut Engine, latent: &Tensor) -> (Result<Image, Error>, Vec<String>) {
    let mut notes = Vec::new();
    let on = |event| {
        if let Event::Note(note) = event {
            notes.push(note);
        }
    };
    let result = pollster::block_on(engine.decode_with(latent, on, &Cancel::new()));
    (result, notes)
}

fn psnr(a: &Image, b: &Image) -> f64 {
    Comparison::of(a, b).expect("the same size").psnr
}

#[test]
fn an_overflow_is_repeated_in_single_precision() {
    if !has_f16() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    scaled(folder.path(), 1e6);
    let latent = latent(8);
    let mut single = engine(folder.path(), DeviceChoice::Auto, VaeDType::F32);
    let (want, notes) = decode(&mut single, &latent);
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(notes, [""; 0]);
    // Norms undo the factor, so that the picture is that of the model as it is.
    let mut plain = engine(&scenes("vae"), DeviceChoice::Cpu, VaeDType::Auto);
    let plain = decode(&mut plain, &latent).0.unwrap_or_else(|e| panic!("{e}"));
    assert!(psnr(&want, &plain) >= 45.0);

    let mut half = engine(folder.path(), DeviceChoice::Auto, VaeDType::F16);
    for repeat in 0..2 {
        let (got, notes) = decode(&mut half, &latent);
        let psnr = psnr(&got.unwrap_or_else(|e| panic!("{e}")), &want);
        println!("f16, repeated in f32: {psnr:.1} dB; {notes:?}");
        assert!(psnr >= 45.0);
        // Once.
        assert_eq!(notes.len(), usize::from(repeat == 0), "{notes:?}");
        assert!(notes.iter().all(|n| n.contains("f32")), "{notes:?}");
    }
    let (planned, allocated) = half.bytes();
    assert_eq!(planned, allocated);

    let encode = |engine: &mut Engine| pollster::block_on(engine.encode(&want)).unwrap_or_else(|e| panic!("{e}"));
    let [got, want] = [encode(&mut half), encode(&mut single)];
    let error = support::relative_rms(&got.data, &want.data);
    println!("f16 encoding, repeated in f32: {error:.1e}");
    assert!(error <= 1e-6);
}

#[test]
fn tiles_are_said_once_where_they_are_repeated() {
    if !has_f16() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    scaled(folder.path(), 1e6);
    let files = Files {
        vae: Some(folder.path().to_owned()),
        ..Files::folder(scenes(""))
    };
    let options = Options {
        vae: VaeOptions {
            dtype: VaeDType::F16,
            tile: Some(TileOptions { size: 48, overlap: 0 }),
            ..VaeOptions::default()
        },
        ..Options::default()
    };
    let source = Source::open(&files).unwrap_or_else(|e| panic!("{e}"));
    let mut half = pollster::block_on(Engine::new(source, &options)).unwrap_or_else(|e| panic!("{e}"));
    let (picture, notes) = decode(&mut half, &latent(8));
    picture.unwrap_or_else(|e| panic!("{e}"));
    let count = |text: &str| notes.iter().filter(|note| note.contains(text)).count();
    assert_eq!((count("tiles of"), count("overflowed")), (1, 1), "{notes:?}");
}

#[test]
fn half_precision_that_holds_is_kept() {
    if !has_f16() {
        return;
    }
    let mut half = engine(&scenes("vae"), DeviceChoice::Auto, VaeDType::F16);
    let mut cpu = engine(&scenes("vae"), DeviceChoice::Cpu, VaeDType::Auto);
    let latent = latent(8);
    let (got, notes) = decode(&mut half, &latent);
    assert_eq!(notes, [""; 0]);
    let want = decode(&mut cpu, &latent).0.unwrap_or_else(|e| panic!("{e}"));
    let psnr = psnr(&got.unwrap_or_else(|e| panic!("{e}")), &want);
    println!("f16: {psnr:.1} dB");
    assert!((38.0..100.0).contains(&psnr), "{psnr}");
    let last = half.pipeline().vae().last().expect("a run");
    assert_eq!((last.dtype, last.repeated), (DType::F16, false));
}

#[test]
fn settings_of_a_picture_say_what_ran() {
    if !has_f16() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    scaled(folder.path(), 1e6);
    let mut half = engine(folder.path(), DeviceChoice::Auto, VaeDType::F16);
    let mut notes = Vec::new();
    let on = |event| {
        if let Event::Note(note) = event {
            notes.push(note);
        }
    };
    let request = Request::new("a red house").size(64, 64).steps(1).batch(2);
    let pictures = half
        .generate_blocking(&request, on, &Cancel::new())
        .unwrap_or_else(|e| panic!("{e}"));
    for picture in &pictures {
        let said = picture.settings.iter().find(|(name, _)| name == "vae_dtype");
        assert_eq!(said.expect("it is said").1, "f32, since f16 overflowed");
    }
    assert_eq!(
        notes.iter().filter(|n| n.contains("overflowed")).count(),
        1,
        "{notes:?}"
    );
}

#[test]
fn single_precision_that_overflows_is_a_typed_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    scaled(folder.path(), 1e38);
    let mut runs = vec![(DeviceChoice::Cpu, VaeDType::Auto)];
    if support::gpu().is_some() {
        runs.extend([VaeDType::F32, VaeDType::F16].map(|dtype| (DeviceChoice::Auto, dtype)));
    }
    for (device, dtype) in runs {
        let (result, _) = decode(&mut engine(folder.path(), device, dtype), &latent(4));
        assert!(matches!(result, Err(Error::NonFinite { .. })), "{dtype:?}: {result:?}");
    }
}

#[test]
fn without_half_precision_it_is_said_and_done_in_single() {
    let mut cpu = engine(&scenes("vae"), DeviceChoice::Cpu, VaeDType::F16);
    let (result, notes) = decode(&mut cpu, &latent(2));
    assert!(result.is_ok());
    assert!(notes.len() == 1 && notes[0].contains("f16"), "{notes:?}");
}

//! A picture that cannot be decoded after all does not cost its steps: its latent is kept, and makes the same picture later.

#![cfg(feature = "scenes-tiny")]

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/model.rs"]
mod model;

use fixtures::scenes;
use model::Part;
use pollster::block_on;
use rotile::engine::{Cancel, DeviceChoice, Engine, Files, Options, Request, Source};
use rotile::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A copy of the autoencoder whose last filter overflows: steps are finite, pictures are not.
fn overflowing(folder: &Path) -> PathBuf {
    let mut part = Part::open("vae");
    part.get("decoder.conv_out.weight").fill(3e38);
    let path = folder.join("vae");
    part.write(&path);
    path
}

fn rotile(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rotile"));
    command.current_dir(folder).args(args);
    if args[0] != "compare" {
        command.args(["--device", "cpu"]);
    }
    command.output().expect("runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const ARGS: [&str; 10] = [
    "generate",
    "a red boat",
    "--steps",
    "2",
    "-W",
    "64",
    "-H",
    "64",
    "--batch",
    "2",
];

#[test]
fn the_library_hands_out_every_latent() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let files = Files {
        vae: Some(overflowing(folder.path())),
        ..Files::folder(scenes(""))
    };
    let options = Options {
        device: DeviceChoice::Cpu,
        ..Options::default()
    };
    let request = Request::new("a red boat").steps(2).size(64, 64).batch(2).seed(7);
    let mut broken = block_on(Engine::new(Source::open(&files).expect("opens"), &options)).expect("fits");
    let error = block_on(broken.generate(&request, |_| (), &Cancel::new())).expect_err("overflows");
    assert!(error.to_string().contains("latent is kept"), "{error}");
    let Error::Undecoded { latents, source } = error else {
        panic!("{error}")
    };
    assert!(matches!(*source, Error::NonFinite { .. }), "{source}");
    let mut good = block_on(Engine::embedded(&options)).expect("is embedded");
    let pictures = block_on(good.generate(&request, |_| (), &Cancel::new())).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(latents.len(), 2);
    for ((seed, latent), picture) in latents.iter().zip(&pictures) {
        assert_eq!((*seed, latent), (picture.seed, &picture.latent));
        assert_eq!(block_on(good.decode(latent)).expect("decodes"), picture.image);
    }
}

#[test]
fn the_program_writes_latents_that_decode_takes_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let vae = overflowing(folder.path());
    let (vae, model) = (vae.to_string_lossy(), scenes("").to_string_lossy().into_owned());
    let good = rotile(
        folder.path(),
        &[&ARGS[..], &["-o", "good.png", "--save-latent=kept.safetensors"]].concat(),
    );
    assert!(good.status.success(), "{}", stderr(&good));
    let broken = rotile(
        folder.path(),
        &[&ARGS[..], &["-o", "bad.png", "--model", &model, "--vae", &vae]].concat(),
    );
    assert_eq!(broken.status.code(), Some(1));
    for said in [
        "latent kept: bad-1.latent.safetensors",
        "bad-2.latent.safetensors",
        "no picture is written",
        "rotile decode",
    ] {
        assert!(stderr(&broken).contains(said), "{said}: {}", stderr(&broken));
    }
    assert!(!folder.path().join("bad-1.png").exists());
    for (latent, picture) in [
        ("bad-1.latent", "good-1"),
        ("bad-2.latent", "good-2"),
        ("kept-2", "good-2"),
    ] {
        let decoded = rotile(
            folder.path(),
            &["decode", &format!("{latent}.safetensors"), "-o", "again.png"],
        );
        assert!(decoded.status.success(), "{}", stderr(&decoded));
        let compared = rotile(
            folder.path(),
            &["compare", "again.png", &format!("{picture}.png"), "--min-psnr", "1000"],
        );
        assert!(
            compared.status.success(),
            "{latent}: {}",
            String::from_utf8_lossy(&compared.stdout)
        );
    }
}

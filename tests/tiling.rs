//! Tiles: the grid and its weights, and autoencoders in tiles against the same as a whole.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "tiling/compare.rs"]
mod compare;
#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "tiling/grid.rs"]
mod grid;
#[path = "tiling/published.rs"]
mod published;
#[path = "support/random.rs"]
mod random;
#[path = "tiling/runner.rs"]
mod runner;
mod support;

use compare::{Model, compare, cpu, models, psnr};
use fixtures::{Fixture, weights};
use rotile::backend::Device;
use rotile::diffusion::tiled::{Cut, Schedule, Tiles};
use rotile::models::{Side, Vae};
use rotile::tensor::{DType, Tensor};

/// Sizes, tiles and overlaps in latent pixels; most sizes do not divide.
const COMBINATIONS: [([usize; 2], usize, usize); 14] = [
    ([8, 8], 4, 0),
    ([8, 8], 5, 2),
    ([9, 7], 4, 0),
    ([13, 11], 6, 0),
    ([13, 11], 6, 4),
    ([13, 11], 8, 3),
    ([13, 11], 12, 0),
    ([11, 6], 5, 1),
    ([5, 16], 6, 2),
    ([16, 16], 8, 0),
    ([16, 12], 7, 6),
    ([17, 10], 9, 4),
    ([3, 14], 4, 3),
    ([10, 10], 3, 0),
];

#[test]
fn tiles_are_the_whole_on_the_cpu() {
    let device = cpu();
    let mut worst = Vec::new();
    let mut count = 0;
    for model in models() {
        for side in [Side::Decoder, Side::Encoder] {
            let (mut psnr, mut colour, mut steps) = (f64::INFINITY, 0.0f64, 0.0f64);
            for (size, tile, overlap) in COMBINATIONS {
                let input = model.input(side, size);
                let want = model.whole(&device, side, DType::F32, &input);
                let tiles = Tiles {
                    size: tile,
                    overlap,
                    cut: Cut::Parts,
                };
                let shown = compare(&model, &device, side, size, tiles, &input, &want);
                psnr = psnr.min(shown.psnr);
                colour = colour.max(shown.colour);
                steps = steps.max((shown.steps - 1.0).abs());
                count += 1;
            }
            worst.push(format!(
                "{} {side:?}: {psnr:.1} dB, colour {colour:.1e}, steps {steps:.1e}",
                model.name
            ));
        }
    }
    assert!(count >= 80);
    println!("{count} combinations, the worst of each:\n{}", worst.join("\n"));
}

/// Models whose stages see further, or whose latent pixels are larger.
#[test]
fn every_family_comes_in_tiles() {
    for (name, size, tile) in [
        ("vae_sdxl", [9, 7], 4),
        ("vae_flux2", [7, 5], 3),
        ("vae_cogview4", [7, 9], 4),
        ("vae_taesd", [15, 21], 13),
        ("vae_taef1", [21, 12], 12),
        ("vae_qwenimage", [18, 10], 11),
    ] {
        let model = Model::new(name, weights(name));
        for side in [Side::Decoder, Side::Encoder] {
            let input = model.input(side, size);
            let want = model.whole(&cpu(), side, DType::F32, &input);
            let tiles = Tiles {
                size: tile,
                overlap: 0,
                cut: Cut::Parts,
            };
            let shown = compare(&model, &cpu(), side, size, tiles, &input, &want);
            println!("{name} {side:?}: {:.1} dB", shown.psnr);
        }
    }
}

#[test]
fn fewer_stages_are_as_exact() {
    let model = Model::new("vae_flux1", weights("vae_flux1"));
    for side in [Side::Decoder, Side::Encoder] {
        let size = [20, 5];
        let input = model.input(side, size);
        let want = model.whole(&cpu(), side, DType::F32, &input);
        for (cut, tile) in [(Cut::Parts, 17), (Cut::Levels, 17), (Cut::Once, 17)] {
            let tiles = Tiles {
                size: tile,
                overlap: 0,
                cut,
            };
            let schedule = Schedule::new(model.half(side), size, tiles, DType::F32).expect("builds");
            let shown = compare(&model, &cpu(), side, size, tiles, &input, &want);
            println!(
                "{side:?} {cut:?}: {:.1} dB, {} sessions, {} runs",
                shown.psnr,
                schedule.sessions(),
                schedule.runs()
            );
        }
    }
}

#[test]
fn tiles_are_the_whole_on_the_gpu() {
    let Some(gpu) = support::gpu() else { return };
    let device = Device::Gpu(gpu.clone());
    for model in models().into_iter().skip(1) {
        for side in [Side::Decoder, Side::Encoder] {
            let size = [7, 5];
            let input = model.input(side, size);
            let want = model.whole(&device, side, DType::F32, &input);
            let tiles = Tiles {
                size: 4,
                overlap: 0,
                cut: Cut::Parts,
            };
            let shown = compare(&model, &device, side, size, tiles, &input, &want);
            println!("{} {side:?} on {}: {:.1} dB", model.name, device.name(), shown.psnr);
        }
    }
}

/// What diffusers makes of the same latents and pictures by blending alone.
#[test]
fn diffusers_tiles_are_far_from_the_whole() {
    for name in ["vae_flux1", "vae_sd15"] {
        let model = Model::new(name, weights(name));
        let Vae::Kl(config) = &model.vae else {
            panic!("an AutoencoderKL")
        };
        let io = Fixture::open(&format!("{name}/io_tiled.safetensors"));
        let to_picture = |t: Tensor| Tensor::new(t.ty.shape.clone(), t.data.iter().map(|v| v * 0.5 + 0.5).collect());
        let theirs = [
            psnr(
                &to_picture(io.tensor("decode.image_tiled")),
                &to_picture(io.tensor("decode.image_full")),
                Side::Decoder,
            ),
            psnr(
                &io.tensor("encode.mean_tiled"),
                &io.tensor("encode.mean_full"),
                Side::Encoder,
            ),
        ];
        // Tiles of 8 latent pixels, as theirs.
        let tiles = Tiles {
            size: 8,
            overlap: 2,
            cut: Cut::Parts,
        };
        let latent = io.tensor("decode.vae_in");
        let scaled = latent
            .data
            .iter()
            .map(|v| (v - config.shift) * config.scaling)
            .collect();
        let latent = Tensor::new(latent.ty.shape.clone(), scaled);
        let size = [latent.ty.shape[2], latent.ty.shape[3]];
        let (picture, _) = model
            .tiled(&cpu(), Side::Decoder, size, tiles, &latent)
            .expect("decodes");
        let image = to_picture(io.tensor("encode.image"));
        let (mean, _) = model
            .tiled(&cpu(), Side::Encoder, size, tiles, &image)
            .expect("encodes");
        let unscaled = mean.data.iter().map(|v| v / config.scaling + config.shift).collect();
        let ours = [
            psnr(&picture, &to_picture(io.tensor("decode.image_full")), Side::Decoder),
            psnr(
                &Tensor::new(mean.ty.shape.clone(), unscaled),
                &io.tensor("encode.mean_full"),
                Side::Encoder,
            ),
        ];
        println!(
            "{name}: decode {:.1} dB, diffusers {:.1}; encode {:.1} dB, diffusers {:.1}",
            ours[0], theirs[0], ours[1], theirs[1]
        );
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            assert!(ours >= 80.0 && theirs < 45.0, "{name}: {ours:.1} and {theirs:.1} dB");
        }
    }
}

#[test]
fn not_a_number_is_not_hidden() {
    let model = Model::new("vae_flux1", weights("vae_flux1"));
    let mut latent = model.input(Side::Decoder, [9, 9]);
    latent.data[5] = f32::NAN;
    let tiles = Tiles {
        size: 4,
        overlap: 0,
        cut: Cut::Parts,
    };
    let (picture, _) = model
        .tiled(&cpu(), Side::Decoder, [9, 9], tiles, &latent)
        .expect("runs");
    assert!(picture.data.iter().any(|v| v.is_nan()));
}

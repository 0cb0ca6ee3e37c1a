//! Tiles of autoencoders of published sizes, with random weights.

use super::compare::{Model, compare, cpu};
use super::fixtures::path;
use super::random::random;
use rotile::diffusion::tiled::{Cut, Tiles};
use rotile::models::Side;
use rotile::tensor::DType;
use std::time::Instant;

/// Sizes, tiles and overlaps in latent pixels.
type Combination = ([usize; 2], usize, usize);

fn described(name: &'static str) -> Model {
    let description = std::fs::read_to_string(path(&format!("manifests/{name}.json"))).expect("in the repository");
    Model::new(name, random(name, &description))
}

fn measure(name: &'static str, combinations: &[Combination]) {
    let model = described(name);
    for side in [Side::Decoder, Side::Encoder] {
        let (mut psnr, mut colour, mut steps) = (f64::INFINITY, 0.0f64, [f64::INFINITY, 0.0]);
        for &(size, tile, overlap) in combinations {
            let start = Instant::now();
            let input = model.input(side, size);
            let want = model.whole(&cpu(), side, DType::F32, &input);
            assert!(want.first_non_finite().is_none(), "random weights must not overflow");
            let seconds = start.elapsed().as_secs_f64();
            let tiles = Tiles {
                size: tile,
                overlap,
                cut: Cut::Parts,
            };
            let shown = compare(&model, &cpu(), side, size, tiles, &input, &want);
            println!(
                "{name} {side:?} {size:?}, tiles of {tile}, overlap {overlap}: {:.1} dB, colour off by {:.1e}, steps {:.5}; {seconds:.0} s \
                 as a whole, {:.0} s in all",
                shown.psnr,
                shown.colour,
                shown.steps,
                start.elapsed().as_secs_f64()
            );
            psnr = psnr.min(shown.psnr);
            colour = colour.max(shown.colour);
            steps = [steps[0].min(shown.steps), steps[1].max(shown.steps)];
        }
        println!(
            "{name} {side:?}, the worst of {}: {psnr:.1} dB, colour off by {colour:.1e}, steps {:.5} to {:.5}",
            combinations.len(),
            steps[0],
            steps[1]
        );
    }
}

/// `cargo test --test tiling taef2 -- --ignored --nocapture`.
#[test]
#[ignore = "takes a minute"]
fn tiles_of_taef2_size() {
    measure(
        "taef2",
        &[
            ([15, 21], 13, 0),
            ([21, 12], 12, 4),
            ([24, 32], 16, 0),
            ([24, 32], 14, 12),
            ([17, 29], 15, 3),
            ([33, 13], 20, 6),
        ],
    );
}

/// The shapes of SDXL are those of Stable Diffusion 1.5: `cargo test --test tiling sd15 -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn tiles_of_sd15_size() {
    measure("sdxl_vae", &[([24, 32], 14, 0), ([24, 32], 16, 6), ([25, 19], 12, 4)]);
}

//! Models under test, and what tiles are measured by.

use super::fixtures::{part, weights};
use super::support;
use pollster::block_on;
use rotile::Result;
use rotile::backend::Device;
use rotile::checkpoint::Weights;
use rotile::cpu::Cpu;
use rotile::diffusion::tiled::{Half, Ran, Schedule, Tiles};
use rotile::graph::Graph;
use rotile::models::{Side, Vae};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use rotile::tiling::{Axis, Grid};

/// A model under test.
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) vae: Vae,
    pub(super) weights: Weights,
}

impl Model {
    pub(super) fn new(name: &'static str, weights: Weights) -> Self {
        let vae = Vae::read(weights.checkpoint()).expect("an autoencoder");
        Self { name, vae, weights }
    }

    pub(super) fn half(&self, side: Side) -> Half<'_> {
        Half {
            vae: &self.vae,
            weights: &self.weights,
            side,
        }
    }

    /// Something with large areas, edges and noise, so that tiles differ in tone.
    pub(super) fn input(&self, side: Side, size: [usize; 2]) -> Tensor {
        let scale = if side == Side::Encoder { self.vae.factor() } else { 1 };
        let [h, w] = size.map(|n| n * scale);
        let mut uniform = support::uniform(&format!("{}{side:?}{size:?}", self.name));
        let channels = self.vae.channels(side);
        let mut data = Vec::with_capacity(channels * h * w);
        for c in 0..channels {
            for y in 0..h {
                for x in 0..w {
                    let (u, v) = (x as f32 / w as f32, y as f32 / h as f32);
                    let tone = (3.0 * u + c as f32).sin() * (2.0 * v).cos() + if u + v > 1.1 { 0.6 } else { -0.4 };
                    data.push(match side {
                        Side::Decoder => 0.8 * tone + 0.8 * uniform(),
                        Side::Encoder => (0.5 + 0.35 * tone + 0.1 * uniform()).clamp(0.0, 1.0),
                    });
                }
            }
        }
        Tensor::new([1, channels, h, w], data)
    }

    pub(super) fn whole(&self, device: &Device, side: Side, dtype: DType, input: &Tensor) -> Tensor {
        let mut g = Graph::new(dtype);
        let x = g.input("x", input.ty.clone());
        let y = match side {
            Side::Decoder => self.vae.decoder(&mut g, &self.weights, x),
            Side::Encoder => self.vae.encoder(&mut g, &self.weights, x),
        };
        g.output("y", y.expect("builds"));
        let mut session = block_on(device.prepare(&g, &self.weights, &Policy::default())).expect("fits");
        block_on(session.run(&[("x", input)])).expect("runs").remove(0)
    }

    pub(super) fn tiled(
        &self,
        device: &Device,
        side: Side,
        size: [usize; 2],
        tiles: Tiles,
        input: &Tensor,
    ) -> Result<(Tensor, Ran)> {
        let schedule = Schedule::new(self.half(side), size, tiles, DType::F32)?;
        let mut last = 0;
        let result = block_on(schedule.run(
            self.half(side),
            (device, &Policy::default()),
            &mut Vec::new(),
            input,
            |done| {
                assert_eq!(done, last + 1);
                last = done;
            },
            || Ok(()),
        ));
        assert_eq!(last, schedule.runs());
        result
    }
}

pub(super) fn models() -> Vec<Model> {
    vec![
        Model::new("embedded", part("vae")),
        Model::new("vae_flux1", weights("vae_flux1")),
        Model::new("vae_sd15", weights("vae_sd15")),
    ]
}

pub(super) fn cpu() -> Device {
    Device::Cpu(Cpu::default())
}

/// In decibels, for values in 0..=1; latents are brought to their own range.
pub(super) fn psnr(got: &Tensor, want: &Tensor, side: Side) -> f64 {
    assert_eq!(got.ty, want.ty);
    let square = |v: f32| f64::from(v).powi(2);
    let n = want.data.len() as f64;
    let error: f64 = got.data.iter().zip(&want.data).map(|(a, b)| square(a - b)).sum::<f64>() / n;
    let peak = match side {
        Side::Decoder => 1.0,
        Side::Encoder => want.data.iter().map(|&v| square(v)).sum::<f64>() / n,
    };
    10.0 * (peak / error).log10()
}

/// Largest difference of the mean of a channel.
pub(super) fn colour(got: &Tensor, want: &Tensor) -> f64 {
    let plane: usize = want.ty.shape[2..].iter().product();
    let mean = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>() / plane as f64;
    let planes = got.data.chunks_exact(plane).zip(want.data.chunks_exact(plane));
    planes.map(|(a, b)| (mean(a) - mean(b)).abs()).fold(0.0, f64::max)
}

/// Mean step across the lines where one tile takes over from the next, as a multiple of that across all other lines.
pub(super) fn step_ratio(picture: &Tensor, grid: &Grid, scale: usize) -> Option<f64> {
    let [_, _, h, w] = picture.ty.shape[..] else {
        panic!("[1, c, h, w]")
    };
    let border = |axis: &Axis, at: usize| (1..axis.count()).any(|i| axis.core(i).start * scale == at);
    let (mut across, mut inside) = ((0.0, 0), (0.0, 0));
    let mut add = |at_border: bool, a: f32, b: f32| {
        let sum = if at_border { &mut across } else { &mut inside };
        sum.0 += f64::from(a - b).abs();
        sum.1 += 1;
    };
    for plane in picture.data.chunks_exact(h * w) {
        for y in 0..h {
            for x in 0..w {
                if x > 0 {
                    add(border(&grid.x, x), plane[y * w + x], plane[y * w + x - 1]);
                }
                if y > 0 {
                    add(border(&grid.y, y), plane[y * w + x], plane[(y - 1) * w + x]);
                }
            }
        }
    }
    (across.1 > 0).then(|| across.0 / f64::from(across.1) / (inside.0 / f64::from(inside.1)))
}

/// What one comparison has shown.
pub(super) struct Shown {
    pub(super) psnr: f64,
    pub(super) colour: f64,
    pub(super) steps: f64,
}

pub(super) fn compare(
    model: &Model,
    device: &Device,
    side: Side,
    size: [usize; 2],
    tiles: Tiles,
    input: &Tensor,
    want: &Tensor,
) -> Shown {
    let what = format!("{} {side:?} {size:?} {tiles:?}", model.name);
    let (got, ran) = model
        .tiled(device, side, size, tiles, input)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(ran.bytes.0, ran.bytes.1, "{what}: bytes planned and allocated");
    let schedule = Schedule::new(model.half(side), size, tiles, DType::F32).expect("builds");
    let grid = schedule.grid();
    assert!(grid.count() > 1, "{what}: one tile");
    let scale = if side == Side::Decoder { model.vae.factor() } else { 1 };
    // What the picture itself has at these lines is no seam.
    let ratio = |picture| step_ratio(picture, grid, scale).expect("has borders");
    let shown = Shown {
        psnr: psnr(&got, want, side),
        colour: colour(&got, want),
        steps: ratio(&got) / ratio(want),
    };
    assert!(shown.psnr >= 45.0, "{what}: {:.1} dB", shown.psnr);
    assert!(
        shown.colour < 1.0 / 255.0,
        "{what}: colour is off by {:.5}",
        shown.colour
    );
    assert!(
        (0.95..=1.05).contains(&shown.steps),
        "{what}: steps are {:.3} of those inside",
        shown.steps
    );
    shown
}

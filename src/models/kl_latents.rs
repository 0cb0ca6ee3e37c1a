//! Latents of the KL autoencoder as transformers have them: scaled, or in normalised patches.

use super::autoencoder_kl::{Config, Half};
use super::blocks::affine;
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::{Result, ShapeError};
use crate::graph::{Graph, Value};
use crate::tensor::DType;

/// What the transformer sees is the latent in patches of 2x2, so with four times the channels, each normalised with the
/// statistics that the file has as `bn`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Packing {
    /// Added to the variances.
    pub eps: f32,
}

impl Packing {
    /// Side of a patch.
    pub const PATCH: usize = 2;
    /// Elements of a patch.
    pub(super) const AREA: usize = Self::PATCH * Self::PATCH;
}

/// Scaling and shift as published for the model that this autoencoder belongs to, and whether that is a guess. Several models
/// have the same shapes; a file of a whole model tells by its other parts.
pub(super) fn published(c: &Checkpoint, latent_channels: usize, half: &Half) -> (f32, f32, bool) {
    let beside = |mark: &str| c.tensors().any(|info| info.name.starts_with(mark));
    let whole = "model.diffusion_model.";
    match latent_channels {
        16 if !half.attention => (1.0, 0.0, false),
        16 if beside(&format!("{whole}joint_blocks.")) => (1.5305, 0.0609, false),
        16 => (0.3611, 0.1159, true),
        4 if beside("conditioner.embedders.") => (0.13025, 0.0, false),
        _ => (0.18215, 0.0, !beside("cond_stage_model.")),
    }
}

/// From what the transformer made to what the decoder takes: `latent / scaling + shift`, or out of the patches of FLUX.2.
///
/// # Errors
/// If `latent` has another shape, or the statistics of the patches are missing.
pub fn unscale(g: &mut Graph, w: &Weights, cfg: &Config, latent: Value) -> Result<Value> {
    let Some(packing) = &cfg.packing else {
        return Ok(g.scale(latent, cfg.scaling.recip(), cfg.shift)?);
    };
    let (mean, deviation) = statistics(w, cfg, packing)?;
    let x = affine(g, latent, deviation, mean)?;
    let [n, c, h, w] = extents(g, x, Packing::AREA)?;
    let x = g.reshape(x, [n, c, Packing::PATCH, Packing::PATCH, h, w])?;
    let x = g.permute(x, &[0, 1, 4, 2, 5, 3])?;
    Ok(g.reshape(x, [n, c, h * Packing::PATCH, w * Packing::PATCH])?)
}

/// From the encoder's mean to what the transformer takes: `(mean - shift) * scaling`, or into the patches of FLUX.2.
///
/// # Errors
/// If `mean` has another shape, or the statistics of the patches are missing.
pub fn rescale(g: &mut Graph, w: &Weights, cfg: &Config, mean: Value) -> Result<Value> {
    let Some(packing) = &cfg.packing else {
        return Ok(g.scale(mean, cfg.scaling, -cfg.shift * cfg.scaling)?);
    };
    let [n, c, height, width] = extents(g, mean, 1)?;
    let (h, wide) = (height / Packing::PATCH, width / Packing::PATCH);
    let x = g.reshape(mean, [n, c, h, Packing::PATCH, wide, Packing::PATCH])?;
    let x = g.permute(x, &[0, 1, 3, 5, 2, 4])?;
    let x = g.reshape(x, [n, c * Packing::AREA, h, wide])?;
    let (mean, deviation) = statistics(w, cfg, packing)?;
    let gain = deviation.iter().map(|d| d.recip()).collect();
    let offset = mean.iter().zip(&deviation).map(|(m, d)| -m / d).collect();
    Ok(affine(g, x, gain, offset)?)
}

/// `[n, c * parts, h, w]`, `c` being what is left.
fn extents(g: &Graph, x: Value, parts: usize) -> Result<[usize; 4], ShapeError> {
    match g.shape(x)[..] {
        [n, c, h, w] if c % parts == 0 => Ok([n, c / parts, h, w]),
        _ => {
            let rule = format!("wants a latent [n, c, h, w] with c a multiple of {parts}");
            Err(ShapeError::new("latent", &[g.ty(x).clone()], rule))
        }
    }
}

/// Tensors that [`unscale`] and [`rescale`] read when the graph is built.
pub const STATISTICS: [&str; 2] = ["bn.running_mean", "bn.running_var"];

/// Mean and standard deviation of each channel of the patches.
fn statistics(w: &Weights, cfg: &Config, packing: &Packing) -> Result<(Vec<f64>, Vec<f64>), CheckpointError> {
    let count = cfg.latent_channels * Packing::AREA;
    let load = |name: &str| {
        let info = w.info(name)?;
        if *info.shape != [count] {
            return Err(CheckpointError::Shape {
                file: w.checkpoint().name().to_owned(),
                name: name.to_owned(),
                found: info.shape.clone(),
                wanted: [count].into(),
            });
        }
        // A description has no values: enough for a plan.
        if !w.checkpoint().has_values() {
            return Ok(vec![1.0; count]);
        }
        let tensor = w.load(name, DType::F32)?;
        Ok(tensor.data.iter().map(|&v| f64::from(v)).collect())
    };
    let [mean, variance] = STATISTICS.map(load);
    let deviation: Vec<_> = variance?.iter().map(|v| (v + f64::from(packing.eps)).sqrt()).collect();
    if deviation.iter().any(|d| d.is_nan() || *d <= 0.0) {
        return Err(CheckpointError::Config {
            file: w.checkpoint().name().to_owned(),
            reason: format!("`{}` has values below 0", STATISTICS[1]),
        });
    }
    Ok((mean?, deviation))
}

//! The KL autoencoder of Stable Diffusion, FLUX, CogView4 and Z-Image: pictures in -1..1 to latents and back.

use super::blocks::{activation, attend_pixels, channels, conv, conv1, conv3, group_norm, result};
use super::config::{Json, count};
use super::kl_latents::published;
use super::parts::{Part, Side, Step};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops::{Act, Conv2d, Epilogue};
use serde_json::Value as JsonValue;

pub use super::kl_latents::{Packing, STATISTICS, rescale, unscale};

/// One of the two halves.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// Channels per level, the picture's first.
    pub channels: Vec<usize>,
    /// Residual blocks per level.
    pub blocks: usize,
    /// Whether the middle has an attention.
    pub attention: bool,
    /// Whether a 1x1 convolution stands between this half and the latent.
    pub quant: bool,
}

/// Sizes of an autoencoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the picture.
    pub image_channels: usize,
    /// Channels of the latent.
    pub latent_channels: usize,
    /// Picture to latent, if the file has it.
    pub encoder: Option<Half>,
    /// Latent to picture, if the file has it.
    pub decoder: Option<Half>,
    /// Groups of the norms.
    pub groups: usize,
    /// What the transformer sees is `(mean - shift) * scaling`.
    pub scaling: f32,
    /// See `scaling`.
    pub shift: f32,
    /// What FLUX.2 does in place of scaling.
    pub packing: Option<Packing>,
}

/// `encoder.down_blocks` or `decoder.up_blocks`.
fn levels(side: &str) -> String {
    format!("{side}.{}_blocks", if side == "encoder" { "down" } else { "up" })
}

fn detect_half(c: &Checkpoint, side: &str, quant: &str) -> Option<Half> {
    let prefix = levels(side);
    c.shape(&format!("{side}.mid_block.resnets.1.conv2.weight"))?;
    let found = count(c, &prefix, "resnets.0.conv1.weight");
    let mut channels = (0..found)
        .map(|i| match c.shape(&format!("{prefix}.{i}.resnets.0.conv1.weight")) {
            Some(&[out, _, 3, 3]) => Some(out),
            _ => None,
        })
        .collect::<Option<Vec<_>>>()?;
    if side == "decoder" {
        channels.reverse();
    }
    (!channels.is_empty()).then(|| Half {
        blocks: count(c, &format!("{prefix}.0.resnets"), "conv1.weight"),
        attention: c.get(&format!("{side}.mid_block.attentions.0.to_q.weight")).is_some(),
        quant: c.get(&format!("{quant}.weight")).is_some(),
        channels,
    })
}

impl Config {
    /// Sizes from shapes, the rest as published for this number of latent channels.
    pub fn detect(c: &Checkpoint) -> Option<Self> {
        let encoder = detect_half(c, "encoder", "quant_conv");
        let decoder = detect_half(c, "decoder", "post_quant_conv");
        let (image_channels, latent_channels) =
            match (c.shape("decoder.conv_in.weight"), c.shape("encoder.conv_out.weight")) {
                (Some(&[_, latent, 3, 3]), _) if decoder.is_some() => {
                    (c.shape("decoder.conv_out.weight")?.first()?, latent)
                }
                (_, Some(&[moments, _, 3, 3])) if encoder.is_some() => {
                    (c.shape("encoder.conv_in.weight")?.get(1)?, moments / 2)
                }
                _ => return None,
            };
        let (scaling, shift, _) = published(c, latent_channels, decoder.as_ref().or(encoder.as_ref())?);
        let packed = c.shape("bn.running_mean") == Some(&[latent_channels * Packing::AREA]);
        let packing = packed.then_some(Packing { eps: 1e-4 });
        let (scaling, shift) = if packed { (1.0, 0.0) } else { (scaling, shift) };
        Some(Self {
            image_channels: *image_channels,
            latent_channels,
            encoder,
            decoder,
            groups: 32,
            scaling,
            shift,
            packing,
        })
    }

    /// Takes what shapes cannot tell from a `config.json`.
    ///
    /// # Errors
    /// If it contradicts the shapes or asks for something unknown.
    pub fn from_json(json: &JsonValue, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut config = Self::detect(c).ok_or_else(|| super::not_this(c, "an AutoencoderKL"))?;
        let json = Json::new(json, c);
        let class = match config.packing {
            Some(_) => "AutoencoderKLFlux2",
            None => "AutoencoderKL",
        };
        json.only("_class_name", class)?;
        json.only("act_fn", "silu")?;
        json.off("latents_mean")?;
        json.off("latents_std")?;
        json.agree("latent_channels", config.latent_channels)?;
        json.agree("out_channels", config.image_channels)?;
        for (half, extra, flag) in [
            (&config.encoder, 0, "use_quant_conv"),
            (&config.decoder, 1, "use_post_quant_conv"),
        ] {
            let Some(half) = half else { continue };
            let own = "decoder_block_out_channels";
            let own = extra == 1 && json.get(own).is_some();
            let key = if own {
                "decoder_block_out_channels"
            } else {
                "block_out_channels"
            };
            json.agree_all(key, &half.channels)?;
            json.agree("layers_per_block", half.blocks.saturating_sub(extra))?;
            json.agree_flag("mid_block_add_attention", half.attention)?;
            json.agree_flag(flag, half.quant)?;
        }
        config.groups = json.size("norm_num_groups")?.unwrap_or(config.groups);
        config.scaling = json.positive("scaling_factor")?.map_or(config.scaling, |v| v as f32);
        if json.has("shift_factor") {
            config.shift = json.number("shift_factor")?.map_or(0.0, |v| v as f32);
        }
        if let Some(packing) = &mut config.packing {
            json.agree_all("patch_size", &[Packing::PATCH; 2])?;
            packing.eps = json.positive("batch_norm_eps")?.map_or(packing.eps, |v| v as f32);
        }
        Ok(config)
    }

    /// With the checkpoint's own `config.json`, where it has one.
    ///
    /// # Errors
    /// As [`Config::from_json`], or if the number of groups does not divide the channels.
    pub fn with_file(self, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let config = match c.config() {
            Some(json) => Self::from_json(json, c)?,
            None => self,
        };
        let halves = [&config.encoder, &config.decoder].into_iter().flatten();
        let odd = halves
            .flat_map(|half| &half.channels)
            .find(|&&n| n % config.groups.max(1) != 0);
        if let Some(channels) = odd {
            return Err(CheckpointError::Config {
                file: c.name().to_owned(),
                reason: format!(
                    "{} norm groups do not divide {channels} channels; `norm_num_groups` in config.json says how many there are",
                    config.groups
                ),
            });
        }
        Ok(config)
    }

    /// Whether the scaling is a guess: several models have these shapes, and nothing in the file tells which of them it is.
    pub fn scaling_is_a_guess(&self, c: &Checkpoint) -> bool {
        let told = c.config().is_some_and(|json| !json["scaling_factor"].is_null());
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        let guess = |half| published(c, self.latent_channels, half).2;
        !told && self.packing.is_none() && half.is_some_and(guess)
    }

    /// Picture pixels per latent pixel along each side.
    pub fn factor(&self) -> usize {
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        half.map_or(1, |half| 1 << half.channels.len().saturating_sub(1).min(16))
    }
}

/// A latent `[1, c, h, w]`, not scaled, to a picture `[1, 3, f h, f w]` around -1..1; both `f32`.
///
/// # Errors
/// If a tensor is missing or has another shape, or the file has no decoder.
pub fn decoder(g: &mut Graph, w: &Weights, cfg: &Config, latent: Value) -> Result<Value> {
    let half = half(w, "decoder", &cfg.decoder)?;
    let mut x = latent;
    for step in half.steps(Side::Decoder) {
        x = decoder_step(g, w, cfg, half, step, x)?;
    }
    Ok(x)
}

/// A picture `[1, 3, f h, f w]` in -1..1 to mean and logarithm of the variance of its latent, `[1, c, h, w]` each, not scaled;
/// all `f32`. The variance is not clamped.
///
/// # Errors
/// If a tensor is missing or has another shape, or the file has no encoder.
pub fn encoder(g: &mut Graph, w: &Weights, cfg: &Config, image: Value) -> Result<(Value, Value)> {
    let half = half(w, "encoder", &cfg.encoder)?;
    let mut x = image;
    for step in half.steps(Side::Encoder) {
        x = encoder_step(g, w, cfg, half, step, x)?;
    }
    let mean = g.slice(x, 1, 0, cfg.latent_channels)?;
    let logvar = g.slice(x, 1, cfg.latent_channels, cfg.latent_channels)?;
    Ok((mean, logvar))
}

impl Half {
    fn steps(&self, side: Side) -> Vec<Step> {
        Step::all(side, self.channels.len(), self.blocks)
    }
}

impl Config {
    /// The parts of one half, in order: see [`Vae::parts`](super::Vae::parts).
    pub(super) fn parts(&self, side: Side) -> Vec<Part> {
        let half = match side {
            Side::Encoder => &self.encoder,
            Side::Decoder => &self.decoder,
        };
        let pack = if self.packing.is_some() { Packing::PATCH } else { 1 };
        half.as_ref().map_or_else(Vec::new, |half| {
            let steps = half.steps(side).into_iter();
            steps
                .map(|step| step.part(side, half.channels.len(), pack, true))
                .collect()
        })
    }

    /// One of [`Config::parts`].
    pub(super) fn part(&self, g: &mut Graph, w: &Weights, side: Side, index: usize, x: Value) -> Result<Value> {
        let mut x = x;
        match side {
            Side::Decoder => {
                let half = half(w, "decoder", &self.decoder)?;
                let steps = half.steps(side);
                if index == 0 {
                    x = unscale(g, w, self, x)?;
                }
                x = decoder_step(g, w, self, half, steps[index], x)?;
                if index + 1 == steps.len() {
                    // From -1..1 as diffusers' image processor.
                    x = g.scale(x, 0.5, 0.5)?;
                }
            }
            Side::Encoder => {
                let half = half(w, "encoder", &self.encoder)?;
                let steps = half.steps(side);
                if index == 0 {
                    x = g.scale(x, 2.0, -1.0)?;
                }
                x = encoder_step(g, w, self, half, steps[index], x)?;
                if index + 1 == steps.len() {
                    x = g.slice(x, 1, 0, self.latent_channels)?;
                    x = rescale(g, w, self, x)?;
                }
            }
        }
        Ok(x)
    }
}

fn decoder_step(g: &mut Graph, root: &Weights, cfg: &Config, half: &Half, step: Step, x: Value) -> Result<Value> {
    let w = root.at("decoder");
    // The widest level comes first.
    let channels: Vec<_> = half.channels.iter().rev().copied().collect();
    let last = channels.len() - 1;
    let level = |i: usize| w.at("up_blocks").at(i);
    match step {
        Step::Coarse => {
            let mut x = activation(g, x)?;
            if half.quant {
                let w = root.at("post_quant_conv");
                x = conv1(g, &w, x, cfg.latent_channels, Epilogue::default())?;
                g.tap("post_quant_conv", x);
            }
            x = conv3(g, &w.at("conv_in"), x, channels[0], Epilogue::default())?;
            g.tap("decoder.conv_in", x);
            x = middle(g, &w.at("mid_block"), cfg, half, x)?;
            for block in 0..half.blocks {
                x = resnet(g, &level(0).at("resnets").at(block), cfg, x, channels[0])?;
            }
            if last == 0 {
                g.tap(level(0).path(), x);
            }
            Ok(x)
        }
        Step::Up(i) => {
            let level = level(i - 1);
            let x = g.upsample_nearest(x, 2)?;
            let x = conv3(
                g,
                &level.at("upsamplers.0.conv"),
                x,
                channels[i - 1],
                Epilogue::default(),
            )?;
            g.tap(level.path(), x);
            Ok(x)
        }
        Step::Resnet(i, block) => {
            let level = level(i);
            let x = resnet(g, &level.at("resnets").at(block), cfg, x, channels[i])?;
            if i == last && block + 1 == half.blocks {
                g.tap(level.path(), x);
            }
            Ok(x)
        }
        Step::Picture | Step::Down(_) => {
            let x = group_norm(g, &w.at("conv_norm_out"), x, cfg.groups, Act::Silu)?;
            let x = conv3(g, &w.at("conv_out"), x, cfg.image_channels, Epilogue::default())?;
            Ok(result(g, x)?)
        }
    }
}

/// Gives the moments, mean and logarithm of the variance on one axis, in the end.
fn encoder_step(g: &mut Graph, root: &Weights, cfg: &Config, half: &Half, step: Step, x: Value) -> Result<Value> {
    let w = root.at("encoder");
    let last = half.channels.len() - 1;
    let level = |i: usize| w.at("down_blocks").at(i);
    match step {
        Step::Picture | Step::Up(_) => {
            let x = activation(g, x)?;
            let x = conv3(g, &w.at("conv_in"), x, half.channels[0], Epilogue::default())?;
            g.tap("encoder.conv_in", x);
            Ok(x)
        }
        Step::Resnet(i, block) => resnet(g, &level(i).at("resnets").at(block), cfg, x, half.channels[i]),
        Step::Down(i) => {
            // The missing row and column are added at the end only.
            let halve = Conv2d {
                stride: [2, 2],
                padding: [0, 0, 1, 1],
            };
            let w = level(i).at("downsamplers.0.conv");
            let x = conv(g, &w, x, (half.channels[i], 3), halve, Epilogue::default())?;
            g.tap(level(i).path(), x);
            Ok(x)
        }
        Step::Coarse => {
            let mut x = x;
            for block in 0..half.blocks {
                x = resnet(g, &level(last).at("resnets").at(block), cfg, x, half.channels[last])?;
            }
            g.tap(level(last).path(), x);
            x = middle(g, &w.at("mid_block"), cfg, half, x)?;
            x = group_norm(g, &w.at("conv_norm_out"), x, cfg.groups, Act::Silu)?;
            let moments = 2 * cfg.latent_channels;
            x = conv3(g, &w.at("conv_out"), x, moments, Epilogue::default())?;
            g.tap("encoder.conv_out", x);
            if half.quant {
                x = conv1(g, &root.at("quant_conv"), x, moments, Epilogue::default())?;
            }
            Ok(result(g, x)?)
        }
    }
}

fn half<'a>(w: &Weights, side: &str, half: &'a Option<Half>) -> Result<&'a Half, CheckpointError> {
    half.as_ref().ok_or_else(|| CheckpointError::MissingTensor {
        file: w.checkpoint().name().to_owned(),
        name: format!("{side}.conv_in.weight"),
        nearest: None,
    })
}

fn middle(g: &mut Graph, w: &Weights, cfg: &Config, half: &Half, x: Value) -> Result<Value> {
    let channels = channels(g, x);
    let mut x = resnet(g, &w.at("resnets.0"), cfg, x, channels)?;
    if half.attention {
        x = attention(g, &w.at("attentions.0"), cfg, x)?;
    }
    x = resnet(g, &w.at("resnets.1"), cfg, x, channels)?;
    g.tap(w.path(), x);
    Ok(x)
}

fn resnet(g: &mut Graph, w: &Weights, cfg: &Config, x: Value, out: usize) -> Result<Value> {
    let h = group_norm(g, &w.at("norm1"), x, cfg.groups, Act::Silu)?;
    let h = conv3(g, &w.at("conv1"), h, out, Epilogue::default())?;
    let h = group_norm(g, &w.at("norm2"), h, cfg.groups, Act::Silu)?;
    let shortcut = if channels(g, x) == out {
        x
    } else {
        conv1(g, &w.at("conv_shortcut"), x, out, Epilogue::default())?
    };
    let y = conv3(g, &w.at("conv2"), h, out, Epilogue::default().residual(shortcut))?;
    g.tap(w.path(), y);
    Ok(y)
}

/// One head over all pixels.
fn attention(g: &mut Graph, w: &Weights, cfg: &Config, x: Value) -> Result<Value> {
    let h = group_norm(g, &w.at("group_norm"), x, cfg.groups, Act::None)?;
    attend_pixels(g, w, x, h, "to_out.0")
}

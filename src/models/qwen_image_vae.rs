//! The causal autoencoder of Qwen-Image and Wan 2.1 with a single frame: pictures in -1..1 to latents and back.
//!
//! Its convolutions look at a frame and those before it. Before a single frame there are zeros, so that only the last temporal
//! slice of each filter meets data: what runs is a convolution of the picture with that slice, and only the slice is loaded.

use super::blocks::{activation, affine, attend_pixels, channels, result};
use super::config::{Json, count};
use super::parts::Step;
use super::{Part, Side};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::{Result, ShapeError};
use crate::graph::{Graph, Value};
use crate::ops::{Act, Conv2d, Epilogue};
use serde_json::Value as JsonValue;

/// One of the two halves.
#[derive(Clone, Debug, PartialEq)]
pub struct Half {
    /// Channels per level, the picture's first.
    pub channels: Vec<usize>,
    /// Residual blocks per level.
    pub blocks: usize,
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
    /// What the transformer sees is `(latent - mean) / deviation`, channel by channel.
    pub mean: Vec<f64>,
    /// See `mean`.
    pub deviation: Vec<f64>,
}

/// As published for 16 channels.
const MEAN: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
    -0.9497, 0.2503, -0.2921,
];
const DEVIATION: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253,
    2.8251, 1.9160,
];

fn detect_encoder(c: &Checkpoint) -> Option<Half> {
    let mut half = Half {
        channels: Vec::new(),
        blocks: 0,
    };
    let mut blocks = 0;
    for i in 0.. {
        let shape = |name: &str| c.shape(&format!("encoder.down_blocks.{i}.{name}"));
        match (shape("conv1.weight"), shape("resample.1.weight")) {
            (Some(&[out, _, 3, 3, 3]), None) => {
                if blocks == 0 {
                    half.channels.push(out);
                }
                blocks += 1;
            }
            (None, Some(_)) if blocks > 0 && (half.blocks == 0 || half.blocks == blocks) => {
                half.blocks = blocks;
                blocks = 0;
            }
            (None, None) if blocks > 0 && (half.blocks == 0 || half.blocks == blocks) => {
                half.blocks = blocks;
                return Some(half);
            }
            _ => return None,
        }
    }
    None
}

fn detect_decoder(c: &Checkpoint) -> Option<Half> {
    let found = count(c, "decoder.up_blocks", "resnets.0.conv1.weight");
    let mut channels = (0..found)
        .map(
            |i| match c.shape(&format!("decoder.up_blocks.{i}.resnets.0.conv1.weight")) {
                Some(&[out, _, 3, 3, 3]) => Some(out),
                _ => None,
            },
        )
        .collect::<Option<Vec<_>>>()?;
    channels.reverse();
    // Wan 2.2 doubles the size in another way.
    let usual = found <= 1 || c.get("decoder.up_blocks.0.upsamplers.0.resample.1.weight").is_some();
    (found > 0 && usual).then(|| Half {
        channels,
        blocks: count(c, "decoder.up_blocks.0.resnets", "conv1.weight"),
    })
}

impl Config {
    /// Sizes from shapes, the rest as published.
    pub fn detect(c: &Checkpoint) -> Option<Self> {
        let (encoder, decoder) = (detect_encoder(c), detect_decoder(c));
        let (image_channels, latent_channels) = match (&encoder, &decoder) {
            (_, Some(_)) => match (c.shape("decoder.conv_out.weight")?, c.shape("decoder.conv_in.weight")?) {
                (&[image, _, 3, 3, 3], &[_, latent, 3, 3, 3]) => (image, latent),
                _ => return None,
            },
            (Some(_), None) => match (c.shape("encoder.conv_in.weight")?, c.shape("encoder.conv_out.weight")?) {
                (&[_, image, 3, 3, 3], &[moments, _, 3, 3, 3]) => (image, moments / 2),
                _ => return None,
            },
            (None, None) => return None,
        };
        let known = latent_channels == MEAN.len();
        Some(Self {
            image_channels,
            latent_channels,
            encoder,
            decoder,
            mean: if known {
                MEAN.to_vec()
            } else {
                vec![0.0; latent_channels]
            },
            deviation: if known {
                DEVIATION.to_vec()
            } else {
                vec![1.0; latent_channels]
            },
        })
    }

    /// Takes what shapes cannot tell from a `config.json`.
    ///
    /// # Errors
    /// If it contradicts the shapes or asks for something unknown.
    pub fn from_json(json: &JsonValue, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut config = Self::detect(c).ok_or_else(|| super::not_this(c, "an AutoencoderKLQwenImage"))?;
        let json = Json::new(json, c);
        if json.get("_class_name").is_none_or(|class| class != "AutoencoderKLWan") {
            json.only("_class_name", "AutoencoderKLQwenImage")?;
        }
        json.off("is_residual")?;
        json.off("patch_size")?;
        json.agree("z_dim", config.latent_channels)?;
        json.agree_all("attn_scales", &[])?;
        let base = json.size("base_dim")?.unwrap_or(1);
        let multiples = json.sizes("dim_mult")?;
        for (half, extra) in [(&config.encoder, 0), (&config.decoder, 1)] {
            let Some(half) = half else { continue };
            json.agree("num_res_blocks", half.blocks.saturating_sub(extra))?;
            let agrees = |m: &Vec<usize>| {
                m.iter()
                    .map(|m| m.saturating_mul(base))
                    .eq(half.channels.iter().copied())
            };
            // Wan's decoder may have a base of its own.
            if multiples.as_ref().is_some_and(|m| !agrees(m)) && json.get("decoder_base_dim").is_none() {
                return Err(json.error(format!(
                    "`dim_mult` and `base_dim` do not give the channels {:?} of the tensors",
                    half.channels
                )));
            }
        }
        config.mean = json
            .numbers("latents_mean", config.latent_channels)?
            .unwrap_or(config.mean);
        config.deviation = json
            .numbers("latents_std", config.latent_channels)?
            .unwrap_or(config.deviation);
        if config.deviation.iter().any(|d| *d <= 0.0) {
            return Err(json.error("`latents_std` has a value that is not above 0".into()));
        }
        Ok(config)
    }

    /// With the checkpoint's own `config.json`, where it has one.
    ///
    /// # Errors
    /// As [`Config::from_json`].
    pub fn with_file(self, c: &Checkpoint) -> Result<Self, CheckpointError> {
        match c.config() {
            Some(json) => Self::from_json(json, c),
            None => Ok(self),
        }
    }

    /// Picture pixels per latent pixel along each side.
    pub fn factor(&self) -> usize {
        let half = self.decoder.as_ref().or(self.encoder.as_ref());
        half.map_or(1, |half| 1 << half.channels.len().saturating_sub(1).min(16))
    }
}

/// From what the transformer made to what the decoder takes: `latent * deviation + mean`.
///
/// # Errors
/// If `latent` has another number of channels.
pub fn unscale(g: &mut Graph, cfg: &Config, latent: Value) -> Result<Value, ShapeError> {
    affine(g, latent, cfg.deviation.clone(), cfg.mean.clone())
}

/// From the encoder's mean to what the transformer takes: `(latent - mean) / deviation`.
///
/// # Errors
/// If `latent` has another number of channels.
pub fn rescale(g: &mut Graph, cfg: &Config, latent: Value) -> Result<Value, ShapeError> {
    let gain = cfg.deviation.iter().map(|d| d.recip()).collect();
    let offset = cfg.mean.iter().zip(&cfg.deviation).map(|(m, d)| -m / d).collect();
    affine(g, latent, gain, offset)
}

impl Half {
    fn steps(&self, side: Side) -> Vec<Step> {
        Step::list(side, self.channels.len(), self.blocks)
    }
}

impl Config {
    /// The parts of one half, in order: see [`Vae::parts`](super::Vae::parts).
    pub(super) fn parts(&self, side: Side) -> Vec<Part> {
        let half = match side {
            Side::Encoder => &self.encoder,
            Side::Decoder => &self.decoder,
        };
        half.as_ref().map_or_else(Vec::new, |half| {
            let part = |step: Step| step.part(side, half.channels.len());
            half.steps(side).into_iter().map(part).collect()
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
                    x = unscale(g, self, x)?;
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
                    x = rescale(g, self, x)?;
                }
            }
        }
        Ok(x)
    }
}

fn decoder_step(g: &mut Graph, root: &Weights, cfg: &Config, half: &Half, step: Step, x: Value) -> Result<Value> {
    let w = root.at("decoder");
    let last = half.channels.len() - 1;
    // The widest level comes first.
    let channels = |i: usize| half.channels[last - i];
    let level = |i: usize| w.at("up_blocks").at(i);
    match step {
        Step::Coarse => {
            let x = activation(g, x)?;
            let post = root.at("post_quant_conv");
            let x = conv(g, &post, x, (cfg.latent_channels, 1), Epilogue::default())?;
            let x = conv(g, &w.at("conv_in"), x, (channels(0), 3), Epilogue::default())?;
            g.tap("decoder.conv_in", x);
            let mut x = middle(g, &w.at("mid_block"), x)?;
            for block in 0..half.blocks {
                x = resnet(g, &level(0).at("resnets").at(block), x, channels(0))?;
            }
            Ok(x)
        }
        Step::Up(i) => {
            let x = g.upsample_nearest(x, 2)?;
            let same = Conv2d {
                stride: [1, 1],
                padding: [1; 4],
            };
            let level = level(i - 1);
            let x = resample(g, &level.at("upsamplers.0.resample.1"), x, channels(i - 1) / 2, same)?;
            g.tap(level.path(), x);
            Ok(x)
        }
        Step::Resnet(i, block) => resnet(g, &level(i).at("resnets").at(block), x, channels(i)),
        Step::Picture | Step::Down(_) => {
            let x = norm(g, &w.at("norm_out"), x, Act::Silu)?;
            let x = conv(g, &w.at("conv_out"), x, (cfg.image_channels, 3), Epilogue::default())?;
            Ok(result(g, x)?)
        }
    }
}

/// Gives the moments, mean and logarithm of the variance on one axis, in the end.
fn encoder_step(g: &mut Graph, root: &Weights, cfg: &Config, half: &Half, step: Step, x: Value) -> Result<Value> {
    let w = root.at("encoder");
    let last = half.channels.len() - 1;
    // One list for blocks and what stands between the levels.
    let entry = |level: usize, block: usize| w.at("down_blocks").at(level * (half.blocks + 1) + block);
    match step {
        Step::Picture | Step::Up(_) => {
            let x = activation(g, x)?;
            conv(g, &w.at("conv_in"), x, (half.channels[0], 3), Epilogue::default())
        }
        Step::Resnet(i, block) => resnet(g, &entry(i, block), x, half.channels[i]),
        Step::Down(i) => {
            // The missing row and column are added at the end only.
            let halve = Conv2d {
                stride: [2, 2],
                padding: [0, 0, 1, 1],
            };
            let w = entry(i, half.blocks);
            let x = resample(g, &w.at("resample.1"), x, half.channels[i], halve)?;
            g.tap(w.path(), x);
            Ok(x)
        }
        Step::Coarse => {
            let mut x = x;
            for block in 0..half.blocks {
                x = resnet(g, &entry(last, block), x, half.channels[last])?;
            }
            x = middle(g, &w.at("mid_block"), x)?;
            x = norm(g, &w.at("norm_out"), x, Act::Silu)?;
            let moments = 2 * cfg.latent_channels;
            x = conv(g, &w.at("conv_out"), x, (moments, 3), Epilogue::default())?;
            g.tap("encoder.conv_out", x);
            x = conv(g, &root.at("quant_conv"), x, (moments, 1), Epilogue::default())?;
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

/// A causal convolution that keeps the size, as it acts on a single frame.
fn conv(g: &mut Graph, w: &Weights, x: Value, (out, kernel): (usize, usize), epilogue: Epilogue) -> Result<Value> {
    let whole = [out, channels(g, x), kernel, kernel, kernel];
    let slice = g.weight_part(w, "weight", whole, 2, kernel - 1..kernel)?;
    let weight = g.reshape(slice, [out, channels(g, x), kernel, kernel])?;
    let bias = g.vector(w, "bias", out)?;
    let attributes = Conv2d {
        stride: [1, 1],
        padding: [kernel / 2; 4],
    };
    Ok(g.conv2d(x, weight, attributes, epilogue.bias(bias))?)
}

/// A convolution within frames. Those between frames do nothing with the first one.
fn resample(g: &mut Graph, w: &Weights, x: Value, out: usize, attributes: Conv2d) -> Result<Value> {
    super::blocks::conv(g, w, x, (out, 3), attributes, Epilogue::default())
}

fn norm(g: &mut Graph, w: &Weights, x: Value, act: Act) -> Result<Value> {
    let gamma = g.vector(w, "gamma", channels(g, x))?;
    Ok(g.channel_rms_norm(x, gamma, act)?)
}

fn middle(g: &mut Graph, w: &Weights, x: Value) -> Result<Value> {
    let channels = channels(g, x);
    let x = resnet(g, &w.at("resnets.0"), x, channels)?;
    let attention = w.at("attentions.0");
    let h = norm(g, &attention.at("norm"), x, Act::None)?;
    let x = attend_pixels(g, &attention, x, h, "proj")?;
    let x = resnet(g, &w.at("resnets.1"), x, channels)?;
    g.tap(w.path(), x);
    Ok(x)
}

fn resnet(g: &mut Graph, w: &Weights, x: Value, out: usize) -> Result<Value> {
    let h = norm(g, &w.at("norm1"), x, Act::Silu)?;
    let h = conv(g, &w.at("conv1"), h, (out, 3), Epilogue::default())?;
    let h = norm(g, &w.at("norm2"), h, Act::Silu)?;
    let shortcut = if channels(g, x) == out {
        x
    } else {
        conv(g, &w.at("conv_shortcut"), x, (out, 1), Epilogue::default())?
    };
    conv(g, &w.at("conv2"), h, (out, 3), Epilogue::default().residual(shortcut))
}

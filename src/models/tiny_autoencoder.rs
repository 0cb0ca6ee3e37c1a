//! The tiny autoencoders TAESD, TAEF1 and TAEF2: pictures in 0..=1 to the latents of a larger autoencoder and back, in one pass of
//! small convolutions.

use super::blocks::{activation, channels, conv3, result};
use super::config::Json;
use super::{Part, Side};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::Result;
use crate::graph::{Graph, Value};
use crate::ops::{Act, Conv2d, Epilogue, Unary};
use serde_json::Value as JsonValue;
use std::collections::BTreeSet;
use std::ops::Range;

/// What stands at one place of a half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// A 3x3 convolution.
    Conv,
    /// Half the size in the encoder, twice the size in the decoder, with a 3x3 convolution without bias.
    Resize,
    /// A residual block of three 3x3 convolutions.
    Block,
    /// A residual block behind another one that sees the mean of the picture by a group norm.
    PoolBlock,
}

/// A half: its layers with their numbers and output channels. Numbers of layers without weights are left out.
pub type Half = Vec<(usize, Layer, usize)>;

/// Sizes of a tiny autoencoder.
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
    /// What the transformer sees is `(latent - shift) * scaling`.
    pub scaling: f32,
    /// See `scaling`.
    pub shift: f32,
}

const BLOCK: &str = "conv.0.weight";
const POOL: &str = "pool.0.weight";

fn detect_half(c: &Checkpoint, side: &str) -> Option<Half> {
    let prefix = format!("{side}.layers.");
    let number = |name: &String| name.strip_prefix(&prefix)?.split_once('.')?.0.parse().ok();
    let numbers: BTreeSet<usize> = c.tensors().filter_map(|info| number(&info.name)).collect();
    let layer = |i: usize| {
        let shape = |name: &str| c.shape(&format!("{prefix}{i}.{name}"));
        match (shape("weight"), shape(BLOCK)) {
            (Some(&[out, _, 3, 3]), None) if shape("bias").is_some() => Some((i, Layer::Conv, out)),
            (Some(&[out, _, 3, 3]), None) => Some((i, Layer::Resize, out)),
            (None, Some(&[out, _, 3, 3])) if shape(POOL).is_some() => Some((i, Layer::PoolBlock, out)),
            (None, Some(&[out, _, 3, 3])) => Some((i, Layer::Block, out)),
            _ => None,
        }
    };
    let half = numbers.into_iter().map(layer).collect::<Option<Half>>()?;
    match half[..] {
        [(0, Layer::Conv, _), .., (_, Layer::Conv, _)] => Some(half),
        _ => None,
    }
}

impl Config {
    /// Sizes from shapes.
    pub fn detect(c: &Checkpoint) -> Option<Self> {
        let (encoder, decoder) = (detect_half(c, "encoder"), detect_half(c, "decoder"));
        let ends = |side: &str, half: &Half| {
            let first = *c.shape(&format!("{side}.layers.0.weight"))?.get(1)?;
            Some((first, half.last()?.2))
        };
        let (latent_channels, image_channels) = match (&encoder, &decoder) {
            (_, Some(decoder)) => ends("decoder", decoder)?,
            (Some(encoder), None) => {
                let (image, latent) = ends("encoder", encoder)?;
                (latent, image)
            }
            (None, None) => return None,
        };
        Some(Self {
            image_channels,
            latent_channels,
            encoder,
            decoder,
            scaling: 1.0,
            shift: 0.0,
        })
    }

    /// Takes what shapes cannot tell from a `config.json`.
    ///
    /// # Errors
    /// If it contradicts the shapes or asks for something unknown.
    pub fn from_json(json: &JsonValue, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut config = Self::detect(c).ok_or_else(|| super::not_this(c, "a tiny autoencoder"))?;
        let json = Json::new(json, c);
        json.only("_class_name", "AutoencoderTiny")?;
        json.only("act_fn", "relu")?;
        json.only("upsample_fn", "nearest")?;
        json.agree("upsampling_scaling_factor", 2)?;
        json.agree("latent_channels", config.latent_channels)?;
        json.agree("out_channels", config.image_channels)?;
        for (half, blocks) in [
            (&config.encoder, "num_encoder_blocks"),
            (&config.decoder, "num_decoder_blocks"),
        ] {
            if let Some(half) = half {
                json.agree_all(blocks, &stages(half))?;
            }
        }
        config.scaling = json.positive("scaling_factor")?.map_or(config.scaling, |v| v as f32);
        config.shift = json.number("shift_factor")?.map_or(config.shift, |v| v as f32);
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
        half.map_or(1, |half| 1 << stages(half).len().saturating_sub(1).min(16))
    }
}

/// Blocks at each resolution.
fn stages(half: &Half) -> Vec<usize> {
    half.split(|(_, layer, _)| *layer == Layer::Resize)
        .map(|stage| stage.iter().filter(|(_, layer, _)| *layer != Layer::Conv).count())
        .collect()
}

impl Config {
    /// The parts of one half, in order: see [`Vae::parts`](super::Vae::parts).
    pub(super) fn parts(&self, side: Side) -> Vec<Part> {
        let half = match side {
            Side::Encoder => &self.encoder,
            Side::Decoder => &self.decoder,
        };
        let Some(half) = half else { return Vec::new() };
        let levels = stages(half).len() - 1;
        let mut resizes = 0;
        let part = |range: Range<usize>| {
            let layers = &half[range];
            let scale = |resizes: usize| match side {
                Side::Decoder => 1 << resizes,
                Side::Encoder => 1 << (levels - resizes),
            };
            let input = scale(resizes);
            resizes += layers.iter().filter(|(_, layer, _)| *layer == Layer::Resize).count();
            let output = scale(resizes);
            let reach = layers.iter().map(|(_, layer, _)| match layer {
                Layer::Conv | Layer::Resize => 1,
                Layer::Block | Layer::PoolBlock => 3,
            });
            Part {
                input,
                output,
                reach: reach.sum(),
                whole: (input, output) == (1, 1),
                norms: layers.iter().any(|(_, layer, _)| *layer == Layer::PoolBlock),
            }
        };
        split(half, side).into_iter().map(part).collect()
    }

    /// One of [`Config::parts`].
    pub(super) fn part(&self, g: &mut Graph, w: &Weights, side: Side, index: usize, x: Value) -> Result<Value> {
        // Latents are held within this magnitude, softly.
        const MAGNITUDE: f32 = 3.0;
        let half = match side {
            Side::Decoder => half(w, "decoder", &self.decoder)?,
            Side::Encoder => half(w, "encoder", &self.encoder)?,
        };
        let range = split(half, side)[index].clone();
        let [first, last] = [range.start == 0, range.end == half.len()];
        let mut x = x;
        match side {
            Side::Decoder if first => {
                x = g.scale(x, (self.scaling * MAGNITUDE).recip(), self.shift / MAGNITUDE)?;
                x = activation(g, x)?;
                x = g.unary(x, Unary::Tanh)?;
                x = g.scale(x, MAGNITUDE, 0.0)?;
            }
            Side::Encoder if first => x = activation(g, x)?,
            _ => {}
        }
        for (at, &(i, layer, out)) in half.iter().enumerate().take(range.end).skip(range.start) {
            x = layer_of(g, w, side, (i, layer, out), at + 1 == half.len(), x)?;
        }
        if last {
            x = result(g, x)?;
        }
        if last && side == Side::Encoder && (self.scaling, self.shift) != (1.0, 0.0) {
            x = g.scale(x, self.scaling, -self.shift * self.scaling)?;
        }
        Ok(x)
    }
}

/// Where a half is cut: at its resolutions, and before norms. A change of resolution belongs to the finer side.
fn split(half: &Half, side: Side) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, (_, layer, _)) in half.iter().enumerate() {
        let new = match side {
            Side::Decoder => *layer == Layer::Resize,
            Side::Encoder => at > 0 && half[at - 1].1 == Layer::Resize,
        };
        match ranges.last_mut().filter(|_| !new && *layer != Layer::PoolBlock) {
            Some(range) => range.end = at + 1,
            None => ranges.push(at..at + 1),
        }
    }
    ranges
}

fn layer_of(
    g: &mut Graph,
    w: &Weights,
    side: Side,
    (i, layer, out): (usize, Layer, usize),
    last: bool,
    x: Value,
) -> Result<Value> {
    let w = match side {
        Side::Decoder => w.at("decoder.layers"),
        Side::Encoder => w.at("encoder.layers"),
    }
    .at(i);
    let x = match (layer, side) {
        (Layer::Conv, Side::Decoder) if !last => conv3(g, &w, x, out, Epilogue::default().act(Act::Relu))?,
        (Layer::Conv, _) => conv3(g, &w, x, out, Epilogue::default())?,
        (Layer::Resize, Side::Decoder) => {
            let x = g.upsample_nearest(x, 2)?;
            bare_conv(g, &w, x, out, 1)?
        }
        (Layer::Resize, Side::Encoder) => bare_conv(g, &w, x, out, 2)?,
        (Layer::Block | Layer::PoolBlock, _) => block(g, &w, layer, x, out)?,
    };
    g.tap(w.path(), x);
    Ok(x)
}

fn half<'a>(w: &Weights, side: &str, half: &'a Option<Half>) -> Result<&'a Half, CheckpointError> {
    half.as_ref().ok_or_else(|| CheckpointError::MissingTensor {
        file: w.checkpoint().name().to_owned(),
        name: format!("{side}.layers.0.weight"),
        nearest: None,
    })
}

/// A 3x3 convolution without bias.
fn bare_conv(g: &mut Graph, w: &Weights, x: Value, out: usize, stride: usize) -> Result<Value> {
    let attributes = Conv2d {
        stride: [stride; 2],
        padding: [1; 4],
    };
    super::blocks::bare_conv(g, w, x, (out, 3), attributes, Epilogue::default())
}

fn block(g: &mut Graph, w: &Weights, layer: Layer, x: Value, out: usize) -> Result<Value> {
    let x = if layer == Layer::PoolBlock {
        pool(g, &w.at("pool"), x)?
    } else {
        x
    };
    let h = conv3(g, &w.at("conv.0"), x, out, Epilogue::default().act(Act::Relu))?;
    let h = conv3(g, &w.at("conv.2"), h, out, Epilogue::default().act(Act::Relu))?;
    let y = conv3(g, &w.at("conv.4"), h, out, Epilogue::default().residual(x))?;
    Ok(g.unary(y, Unary::Relu)?)
}

/// `x` and what all of the picture says about each pixel.
fn pool(g: &mut Graph, w: &Weights, x: Value) -> Result<Value> {
    const GROUPS: usize = 4;
    const EPS: f32 = 1e-5;
    let point = Conv2d {
        stride: [1, 1],
        padding: [0; 4],
    };
    let c = channels(g, x);
    let wide = w.shape("0.weight").and_then(|s| s.first().copied()).unwrap_or(0);
    let h = super::blocks::bare_conv(g, &w.at(0), x, (wide, 1), point, Epilogue::default())?;
    let gain = g.vector(w, "1.weight", wide)?;
    let offset = g.vector(w, "1.bias", wide)?;
    let h = g.group_norm(h, gain, offset, GROUPS, EPS, Act::None)?;
    let h = g.unary(h, Unary::Relu)?;
    super::blocks::bare_conv(g, &w.at(3), h, (c, 1), point, Epilogue::default().residual(x))
}

//! Every autoencoder under one face: a latent as the transformer has it to a picture in 0..=1, and back.

use super::{Model, Part, Side, autoencoder_kl, qwen_image_vae, tiny_autoencoder};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::Result;
use crate::graph::{Graph, Value};
use autoencoder_kl::Packing;

/// An autoencoder with its sizes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Vae {
    /// Of Stable Diffusion, FLUX, CogView4 and Z-Image.
    Kl(autoencoder_kl::Config),
    /// TAESD and its kin.
    Tiny(tiny_autoencoder::Config),
    /// Of Qwen-Image and of Wan 2.1, for single pictures.
    QwenImage(qwen_image_vae::Config),
}

impl Vae {
    /// Reads the sizes of an autoencoder.
    ///
    /// # Errors
    /// If the checkpoint holds something else, or its `config.json` contradicts its tensors.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        let model = Model::read(checkpoint)?;
        Self::of(&model).ok_or_else(|| CheckpointError::UnknownModel {
            file: checkpoint.name().to_owned(),
            reason: format!("it is given as the VAE, but it holds a {}", model.entry().name),
        })
    }

    /// The autoencoder that a model is, if it is one.
    pub fn of(model: &Model) -> Option<Self> {
        match model {
            Model::AutoencoderKl(config) => Some(Self::Kl(config.clone())),
            Model::AutoencoderTiny(config) => Some(Self::Tiny(config.clone())),
            Model::QwenImageVae(config) => Some(Self::QwenImage(config.clone())),
            _ => None,
        }
    }

    /// Picture pixels per pixel of the latent that the transformer has, along each side.
    pub fn factor(&self) -> usize {
        match self {
            Self::Kl(config) => config.factor() * if config.packing.is_some() { Packing::PATCH } else { 1 },
            Self::Tiny(config) => config.factor(),
            Self::QwenImage(config) => config.factor(),
        }
    }

    /// Channels of the latent that the transformer has.
    pub fn latent_channels(&self) -> usize {
        match self {
            Self::Kl(config) if config.packing.is_some() => config.latent_channels * Packing::PATCH.pow(2),
            Self::Kl(config) => config.latent_channels,
            Self::Tiny(config) => config.latent_channels,
            Self::QwenImage(config) => config.latent_channels,
        }
    }

    /// Channels of the picture.
    pub fn image_channels(&self) -> usize {
        match self {
            Self::Kl(config) => config.image_channels,
            Self::Tiny(config) => config.image_channels,
            Self::QwenImage(config) => config.image_channels,
        }
    }

    /// Whether the file has the half that makes pictures of latents.
    pub fn has_decoder(&self) -> bool {
        match self {
            Self::Kl(config) => config.decoder.is_some(),
            Self::Tiny(config) => config.decoder.is_some(),
            Self::QwenImage(config) => config.decoder.is_some(),
        }
    }

    /// Whether the file has the half that makes latents of pictures.
    pub fn has_encoder(&self) -> bool {
        match self {
            Self::Kl(config) => config.encoder.is_some(),
            Self::Tiny(config) => config.encoder.is_some(),
            Self::QwenImage(config) => config.encoder.is_some(),
        }
    }

    /// Channels of what goes into one half.
    pub fn channels(&self, side: Side) -> usize {
        match side {
            Side::Encoder => self.image_channels(),
            Side::Decoder => self.latent_channels(),
        }
    }

    /// The parts that one half consists of, in order; none if the file lacks it.
    pub fn parts(&self, side: Side) -> Vec<Part> {
        match self {
            Self::Kl(config) => config.parts(side),
            Self::Tiny(config) => config.parts(side),
            Self::QwenImage(config) => config.parts(side),
        }
    }

    /// Part `index` of one half. The parts of [`Vae::parts`] one after the other are [`Vae::decoder`] or [`Vae::encoder`].
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the file lacks this half.
    pub fn part(&self, g: &mut Graph, w: &Weights, side: Side, index: usize, x: Value) -> Result<Value> {
        match self {
            Self::Kl(config) => config.part(g, w, side, index, x),
            Self::Tiny(config) => config.part(g, w, side, index, x),
            Self::QwenImage(config) => config.part(g, w, side, index, x),
        }
    }

    /// A latent `[1, c, h, w]` as the transformer has it to a picture `[1, 3, f h, f w]`; both `f32`. The picture is in 0..=1 once
    /// it is clamped, which is left to the host: a NaN must be seen first.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the file has no decoder.
    pub fn decoder(&self, g: &mut Graph, w: &Weights, latent: Value) -> Result<Value> {
        self.whole(g, w, Side::Decoder, latent)
    }

    /// A picture `[1, 3, f h, f w]` in 0..=1 to the mean of its latent `[1, c, h, w]`, as the transformer takes it; both `f32`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the file has no encoder.
    pub fn encoder(&self, g: &mut Graph, w: &Weights, picture: Value) -> Result<Value> {
        self.whole(g, w, Side::Encoder, picture)
    }

    fn whole(&self, g: &mut Graph, w: &Weights, side: Side, x: Value) -> Result<Value> {
        let mut x = x;
        // The first part says what is wrong with a half that is not there.
        for index in 0..self.parts(side).len().max(1) {
            x = self.part(g, w, side, index, x)?;
        }
        Ok(x)
    }
}

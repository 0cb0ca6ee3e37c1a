//! Models: each a function that builds a graph from weights, and a configuration read from shapes and `config.json`.
//!
//! To add one: a file with `Config` and its functions, and a row in [`MODELS`].

pub mod autoencoder_kl;
pub mod blocks;
mod config;
mod kl_latents;
pub mod linear;
mod parts;
pub mod qwen3;
pub mod qwen_image_vae;
pub mod tiny_autoencoder;
mod vae;
pub mod z_image;

pub use parts::{Part, Side, TileNorms};
pub use vae::Vae;

use crate::checkpoint::{Checkpoint, CheckpointError};

/// What a model does in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Token ids to embeddings.
    TextEncoder,
    /// The denoiser.
    Transformer,
    /// Pictures to latents and back.
    Autoencoder,
}

/// A detected model with its sizes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Model {
    /// Text encoder of Z-Image.
    Qwen3(qwen3::Config),
    /// The S3-DiT of Z-Image.
    ZImage(z_image::Config),
    /// Autoencoder of Stable Diffusion, FLUX, CogView4 and Z-Image.
    AutoencoderKl(autoencoder_kl::Config),
    /// TAESD and its kin.
    AutoencoderTiny(tiny_autoencoder::Config),
    /// Autoencoder of Qwen-Image and of Wan 2.1, for single pictures.
    QwenImageVae(qwen_image_vae::Config),
}

/// A row of the model table.
#[derive(Debug)]
pub struct ModelEntry {
    /// Name in messages and docs.
    pub name: &'static str,
    /// What it is for.
    pub role: Role,
    /// Reads the sizes, if the tensors are those of this model: shapes first, then `config.json` where there is one.
    pub read: fn(&Checkpoint) -> Option<Result<Model, CheckpointError>>,
    /// Terms of the published weights.
    pub licence: &'static str,
}

/// Every model, in the order of detection.
pub const MODELS: &[ModelEntry] = &[
    ModelEntry {
        name: "Z-Image transformer",
        role: Role::Transformer,
        read: |c| Some(z_image::Config::detect(c)?.with_file(c).map(Model::ZImage)),
        licence: "Z-Image-Turbo: Apache-2.0",
    },
    ModelEntry {
        name: "Qwen3 text encoder",
        role: Role::TextEncoder,
        read: |c| Some(qwen3::Config::detect(c)?.with_file(c).map(Model::Qwen3)),
        licence: "Qwen3-4B: Apache-2.0",
    },
    ModelEntry {
        name: "AutoencoderKL",
        role: Role::Autoencoder,
        read: |c| {
            Some(
                autoencoder_kl::Config::detect(c)?
                    .with_file(c)
                    .map(Model::AutoencoderKl),
            )
        },
        licence: "as the model it belongs to; in FLUX.1-schnell and Z-Image: Apache-2.0",
    },
    ModelEntry {
        name: "AutoencoderTiny",
        role: Role::Autoencoder,
        read: |c| {
            Some(
                tiny_autoencoder::Config::detect(c)?
                    .with_file(c)
                    .map(Model::AutoencoderTiny),
            )
        },
        licence: "TAESD, TAEF1 and TAEF2: MIT",
    },
    ModelEntry {
        name: "AutoencoderKLQwenImage",
        role: Role::Autoencoder,
        read: |c| Some(qwen_image_vae::Config::detect(c)?.with_file(c).map(Model::QwenImageVae)),
        licence: "Qwen-Image and Wan 2.1: Apache-2.0",
    },
];

impl Model {
    /// Finds out which model a checkpoint holds.
    ///
    /// # Errors
    /// If it is none of [`MODELS`], or its `config.json` contradicts its tensors.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, CheckpointError> {
        MODELS
            .iter()
            .find_map(|entry| (entry.read)(checkpoint))
            .unwrap_or_else(|| {
                let known: Vec<_> = MODELS.iter().map(|entry| entry.name).collect();
                let first = checkpoint.tensors().next().map_or("none", |info| &info.name);
                Err(CheckpointError::UnknownModel {
                    file: checkpoint.name().to_owned(),
                    reason: format!(
                        "its {} tensors (first: `{first}`) are none of {}",
                        checkpoint.tensors().len(),
                        known.join(", ")
                    ),
                })
            })
    }

    /// Its row in the table.
    pub fn entry(&self) -> &'static ModelEntry {
        match self {
            Self::ZImage(_) => &MODELS[0],
            Self::Qwen3(_) => &MODELS[1],
            Self::AutoencoderKl(_) => &MODELS[2],
            Self::AutoencoderTiny(_) => &MODELS[3],
            Self::QwenImageVae(_) => &MODELS[4],
        }
    }
}

fn not_this(checkpoint: &Checkpoint, what: &str) -> CheckpointError {
    CheckpointError::UnknownModel {
        file: checkpoint.name().to_owned(),
        reason: format!("its tensors are not those of {what}"),
    }
}

//! What a pipeline runs: its tasks.

use super::vae::VaeTask;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A task that needs a session of its own: the part and all sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Token ids `[tokens]` to prompt embeddings.
    Text {
        /// Tokens of the prompt, template included.
        tokens: usize,
    },
    /// Prompt embeddings to the tokens that the denoiser sees.
    Caption {
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A latent to the model's output, once a step.
    Denoise {
        /// Tokens of the prompt, padded.
        tokens: usize,
        /// Rows of the latent.
        height: usize,
        /// Columns of the latent.
        width: usize,
    },
    /// A latent to a picture.
    Decode {
        /// Rows of the latent.
        height: usize,
        /// Columns of the latent.
        width: usize,
    },
    /// A picture to a latent.
    Encode {
        /// Rows of the latent.
        height: usize,
        /// Columns of the latent.
        width: usize,
    },
}

impl Task {
    /// The part of the autoencoder's runner.
    pub(super) fn of_vae(self) -> Option<VaeTask> {
        match self {
            Self::Decode { height, width } => Some(VaeTask::Decode { height, width }),
            Self::Encode { height, width } => Some(VaeTask::Encode { height, width }),
            _ => None,
        }
    }
}

impl From<VaeTask> for Task {
    fn from(task: VaeTask) -> Self {
        match task {
            VaeTask::Decode { height, width } => Self::Decode { height, width },
            VaeTask::Encode { height, width } => Self::Encode { height, width },
        }
    }
}

/// The denoising task for a refined caption and a latent of `height` rows and `width` columns.
///
/// # Errors
/// If the caption is no matrix.
pub fn denoise_task(caption: &Tensor, height: usize, width: usize) -> Result<Task> {
    let tokens = rows(caption)?;
    Ok(Task::Denoise { tokens, height, width })
}

/// Rows of a matrix of tokens.
pub(super) fn rows(tokens: &Tensor) -> Result<usize> {
    match tokens.ty.shape[..] {
        [rows, _] => Ok(rows),
        _ => Err(Error::Request(format!(
            "embeddings have shape [tokens, width], not {}",
            tokens.ty.shape
        ))),
    }
}

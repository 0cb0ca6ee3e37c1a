//! Latents as safetensors files: tensor `latent`, `[1, c, h, w]`, `f32`, as the denoising model has it.

use anyhow::{Context as _, Result};
use rotile::checkpoint::Checkpoint;
use rotile::tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;

/// Name of the tensor.
pub(crate) const NAME: &str = "latent";

/// What the metadata says of the values.
const CONVENTION: &str = "as the denoising model has it: (z - shift_factor) * scaling_factor of the autoencoder's z";

pub(crate) fn read(path: &Path, name: &str) -> Result<Tensor> {
    let checkpoint = Checkpoint::open(path)?;
    Ok(checkpoint.load(name, DType::F32)?)
}

pub(crate) fn to_bytes(latent: &Tensor) -> Result<Vec<u8>> {
    let bytes: Vec<u8> = latent.data.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, latent.ty.shape.to_vec(), &bytes)?;
    // One entry: the order of several would change from run to run.
    let metadata = HashMap::from([("convention".to_owned(), CONVENTION.to_owned())]);
    safetensors::serialize([(NAME, view)], Some(metadata)).context("cannot write the latent")
}

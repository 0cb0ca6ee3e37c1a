//! Latents as safetensors files: tensor `latent`, `[1, c, h, w]`, `f32`, as the denoising model has it. Where the picture was padded,
//! a second tensor, `size`, holds its height and width.

use anyhow::{Context as _, Result, bail};
use rotile::checkpoint::Checkpoint;
use rotile::memory::budget;
use rotile::tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;

/// Name of the tensor.
pub(crate) const NAME: &str = "latent";

const SIZE: &str = "size";

/// What the metadata says of the values.
const CONVENTION: &str = "as the denoising model has it: (z - shift_factor) * scaling_factor of the autoencoder's z, or as the model \
    normalises it otherwise";

/// Width and height of a picture.
pub(crate) type Size = (u32, u32);

/// A latent, and the size of its picture where that was padded.
///
/// # Errors
/// If the file has no such latent, says that it means something else by its values, or there is no room for it: all of it before
/// a value is read.
pub(crate) fn read(path: &Path, name: &str) -> Result<(Tensor, Option<Size>)> {
    let checkpoint = Checkpoint::open(path)?;
    let info = checkpoint.info(name)?;
    let [1, _, height, width] = info.shape[..] else {
        bail!(
            "{}: `{name}` has shape {}; a latent is [1, c, h, w]",
            path.display(),
            info.shape
        );
    };
    if height == 0 || width == 0 {
        bail!("{}: `{name}` has shape {}: it is empty", path.display(), info.shape);
    }
    if let Some(other) = checkpoint.note("convention").filter(|said| said != CONVENTION) {
        bail!(
            "{}: its values are \"{other}\"; this program takes those \"{CONVENTION}\". Convert them, or drop `convention` from the \
             file's metadata",
            path.display()
        );
    }
    let count: u64 = info.shape.iter().map(|&n| n as u64).product();
    budget::check(count.saturating_mul(4)).with_context(|| format!("{}: `{name}` {}", path.display(), info.shape))?;
    let latent = checkpoint.load(name, DType::F32)?;
    let size = match checkpoint.shape(SIZE) {
        Some([2]) => {
            let size = checkpoint.load(SIZE, DType::F32)?.data;
            Some((size[1] as u32, size[0] as u32))
        }
        _ => None,
    };
    Ok((latent, size))
}

/// The file of a latent of a picture of `size`.
pub(crate) fn to_bytes(latent: &Tensor, size: Size, factor: usize) -> Result<Vec<u8>> {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let values = bytes(&latent.data);
    let sides = [size.1 as f32, size.0 as f32];
    let sides = bytes(&sides);
    let mut views = vec![(NAME, TensorView::new(Dtype::F32, latent.ty.shape.to_vec(), &values)?)];
    let whole = [size.0, size.1].iter().all(|n| (*n as usize).is_multiple_of(factor));
    if !whole {
        views.push((SIZE, TensorView::new(Dtype::F32, vec![2], &sides)?));
    }
    // One entry: the order of several would change from run to run.
    let metadata = HashMap::from([("convention".to_owned(), CONVENTION.to_owned())]);
    safetensors::serialize(views, Some(metadata)).context("cannot write the latent")
}

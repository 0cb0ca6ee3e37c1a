//! Names of tensors: other layouts are renamed to diffusers' at once, so that model code knows one set of names.
//!
//! A tensor is a byte range and a shape, so renaming, splitting fused rows and dropping 1x1 extents move no data.

mod causal_vae;
mod ldm_vae;
mod llama;
mod taesd;
mod z_image;

pub(super) use llama::config;

use super::{CheckpointError, TensorInfo};
use crate::tensor::Shape;
use std::collections::BTreeMap;
use std::fmt;

pub(super) type Tensors = BTreeMap<String, TensorInfo>;

/// How a file names its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// As diffusers and transformers do.
    Diffusers,
    /// Z-Image's own: `attention.qkv` with fused rows.
    ZImage,
    /// The latent diffusion autoencoder: `decoder.up.0.block.0`.
    Ldm,
    /// The sequential layers of TAESD: `decoder.3.conv.0`.
    Taesd,
    /// The text encoders of llama.cpp: `blk.0.attn_q`.
    Llama,
    /// The causal autoencoder of Wan and Qwen-Image: `decoder.upsamples.0.residual.2`.
    Wan,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Diffusers => "diffusers",
            Self::ZImage => "Z-Image original",
            Self::Ldm => "latent diffusion",
            Self::Taesd => "TAESD original",
            Self::Llama => "llama.cpp",
            Self::Wan => "Wan original",
        })
    }
}

/// Prefixes that whole models carry, each with names below it that tell.
const PREFIXES: [(&str, &[&str]); 4] = [
    ("model.diffusion_model.", &["x_embedder.weight"]),
    ("first_stage_model.", &AUTOENCODER),
    ("vae.", &AUTOENCODER),
    ("model.", &["layers.0.self_attn.q_proj.weight"]),
];

/// The first or last layer of either half of an autoencoder, in any layout.
const AUTOENCODER: [&str; 10] = [
    "decoder.conv_in.weight",
    "encoder.conv_in.weight",
    "decoder.conv1.weight",
    "encoder.conv1.weight",
    "decoder.layers.0.weight",
    "encoder.layers.0.weight",
    "decoder.1.weight",
    "encoder.0.weight",
    "taesd_decoder.1.weight",
    "taesd_encoder.0.weight",
];

/// Renames everything to diffusers' names; detected from names and shapes alone.
pub(super) fn to_diffusers(file: &str, mut tensors: Tensors) -> Result<(Tensors, Layout), CheckpointError> {
    for (prefix, signs) in PREFIXES {
        if signs
            .iter()
            .any(|sign| tensors.contains_key(&format!("{prefix}{sign}")))
        {
            tensors = rename(file, tensors, |info| vec![strip(info, prefix)])?;
        }
    }
    if z_image::detect(&tensors) {
        return Ok((rename(file, tensors, z_image::map)?, Layout::ZImage));
    }
    if llama::detect(&tensors) {
        return Ok((rename(file, tensors, |info| vec![llama::map(info)])?, Layout::Llama));
    }
    if let Some(levels) = ldm_vae::detect(&tensors) {
        let tensors = rename(file, tensors, |info| vec![ldm_vae::map(info, levels)])?;
        return Ok((tensors, Layout::Ldm));
    }
    if let Some(found) = taesd::detect(&tensors) {
        let tensors = rename(file, tensors, |info| vec![taesd::map(info, found)])?;
        return Ok((tensors, Layout::Taesd));
    }
    if let Some(found) = causal_vae::detect(&tensors) {
        let layout = found.layout();
        let tensors = rename(file, tensors, |info| causal_vae::map(info, &found))?;
        return Ok((tensors, layout));
    }
    Ok((tensors, Layout::Diffusers))
}

fn strip(mut info: TensorInfo, prefix: &str) -> TensorInfo {
    if let Some(name) = info.name.strip_prefix(prefix) {
        info.name = name.to_owned();
    }
    info
}

/// The three equal parts of fused rows, under names of their own; nothing if they are no whole rows or blocks.
fn thirds(info: &TensorInfo, names: [String; 3]) -> Option<Vec<TensorInfo>> {
    let (&rows, rest) = info.shape.split_first()?;
    let (block, _) = info.dtype.weight().map_or((1, 1), |dtype| dtype.block());
    if !rows.is_multiple_of(3) || !info.len.is_multiple_of(3) || !(info.shape.count() / 3).is_multiple_of(block) {
        return None;
    }
    let third = |(i, name): (usize, String)| TensorInfo {
        name,
        shape: Shape::from([&[rows / 3], rest].concat()),
        start: info.start + i * (info.len / 3),
        len: info.len / 3,
        ..info.clone()
    };
    Some(names.into_iter().enumerate().map(third).collect())
}

fn rename(
    file: &str,
    tensors: Tensors,
    map: impl Fn(TensorInfo) -> Vec<TensorInfo>,
) -> Result<Tensors, CheckpointError> {
    let mut renamed = Tensors::new();
    for info in tensors.into_values().flat_map(map) {
        if let Some(other) = renamed.insert(info.name.clone(), info) {
            return Err(CheckpointError::Header {
                file: file.to_owned(),
                reason: format!("`{}` and another tensor are both `{}`", other.stored, other.name),
            });
        }
    }
    Ok(renamed)
}

/// The most similar name, where one is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a String>) -> Option<String> {
    // A hint is not worth minutes on an absurd file.
    const LONGEST: usize = 256;
    const MOST: usize = 20_000;
    let limit = name.len() / 4 + 1;
    names
        .take(MOST)
        .filter(|other| other.len().abs_diff(name.len()) <= limit && other.len().max(name.len()) <= LONGEST)
        .map(|other| (distance(name.as_bytes(), other.as_bytes()), other))
        .min()
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, other)| other.clone())
}

/// Single-byte edits between two names.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn edits_are_counted() {
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"norm1", b"norm1"), 0);
    }

    #[test]
    fn only_near_names_are_offered() {
        let names = ["layers.0.norm.weight".to_owned(), "decoder.conv_in.bias".to_owned()];
        assert_eq!(
            nearest("layers.0.norms.weight", names.iter()).as_deref(),
            Some("layers.0.norm.weight")
        );
        assert_eq!(nearest("x", names.iter()), None);
    }
}

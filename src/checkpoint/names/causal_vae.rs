//! The causal autoencoder of Wan 2.1 and Qwen-Image, in Wan's own names and in diffusers'.

use super::{Layout, TensorInfo, Tensors, thirds};
use std::collections::BTreeSet;

/// A file of this kind.
pub(super) struct Found {
    original: bool,
    /// Numbers of the decoder's layers that double the size, in Wan's own count.
    upsamples: BTreeSet<usize>,
}

impl Found {
    pub(super) fn layout(&self) -> Layout {
        if self.original { Layout::Wan } else { Layout::Diffusers }
    }
}

pub(super) fn detect(tensors: &Tensors) -> Option<Found> {
    let either = |name: &str| {
        ["encoder", "decoder"]
            .iter()
            .any(|s| tensors.contains_key(&format!("{s}.{name}")))
    };
    let original = either("middle.0.residual.0.gamma");
    if !original && !either("mid_block.resnets.0.norm1.gamma") {
        return None;
    }
    let upsample = |name: &String| {
        let (number, rest) = name.strip_prefix("decoder.upsamples.")?.split_once('.')?;
        number.parse().ok().filter(|_| rest.starts_with("resample."))
    };
    Some(Found {
        original,
        upsamples: tensors.keys().filter_map(upsample).collect(),
    })
}

pub(super) fn map(mut info: TensorInfo, found: &Found) -> Vec<TensorInfo> {
    if found.original
        && let Some(name) = renamed(&info.name, found)
    {
        info.name = name;
    }
    // Vectors and matrices carry extents of 1 here.
    if info.name.ends_with(".gamma")
        && let [channels, rest @ ..] = &info.shape[..]
        && rest.iter().all(|&n| n == 1)
    {
        info.shape = [*channels].into();
    }
    if info.name.contains(".attentions.")
        && let [rows, cols, 1, 1] = info.shape[..]
    {
        info.shape = [rows, cols].into();
    }
    split(info)
}

/// Queries, keys and values are rows of one matrix.
fn split(info: TensorInfo) -> Vec<TensorInfo> {
    let Some((block, field)) = info.name.split_once(".to_qkv.") else {
        return vec![info];
    };
    let names = ["to_q", "to_k", "to_v"].map(|part| format!("{block}.{part}.{field}"));
    thirds(&info, names).unwrap_or_else(|| vec![info])
}

fn renamed(name: &str, found: &Found) -> Option<String> {
    for (from, to) in [("conv1.", "quant_conv."), ("conv2.", "post_quant_conv.")] {
        if let Some(rest) = name.strip_prefix(from) {
            return Some(format!("{to}{rest}"));
        }
    }
    let (side, rest) = name.split_once('.')?;
    let (place, rest) = rest.split_once('.')?;
    let rest = match place {
        "conv1" => format!("conv_in.{rest}"),
        "head" => match rest.split_once('.')? {
            ("0", rest) => format!("norm_out.{rest}"),
            (_, rest) => format!("conv_out.{rest}"),
        },
        "middle" => match rest.split_once('.')? {
            ("0", rest) => format!("mid_block.resnets.0.{}", resnet(rest)),
            ("1", rest) => format!("mid_block.attentions.0.{rest}"),
            (_, rest) => format!("mid_block.resnets.1.{}", resnet(rest)),
        },
        "downsamples" => {
            let (number, rest) = rest.split_once('.')?;
            format!("down_blocks.{number}.{}", resnet(rest))
        }
        "upsamples" => {
            let (number, rest) = rest.split_once('.')?;
            let number: usize = number.parse().ok()?;
            let level = found.upsamples.range(..number).count();
            let first = found.upsamples.range(..number).next_back().map_or(0, |i| i + 1);
            if found.upsamples.contains(&number) {
                format!("up_blocks.{level}.upsamplers.0.{rest}")
            } else {
                format!("up_blocks.{level}.resnets.{}.{}", number - first, resnet(rest))
            }
        }
        _ => return None,
    };
    Some(format!("{side}.{rest}"))
}

fn resnet(rest: &str) -> String {
    const PARTS: [(&str, &str); 5] = [
        ("residual.0.", "norm1."),
        ("residual.2.", "conv1."),
        ("residual.3.", "norm2."),
        ("residual.6.", "conv2."),
        ("shortcut.", "conv_shortcut."),
    ];
    let part = |(from, to): &(&str, &str)| Some(format!("{to}{}", rest.strip_prefix(from)?));
    PARTS.iter().find_map(part).unwrap_or_else(|| rest.to_owned())
}

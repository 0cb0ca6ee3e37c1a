//! The latent diffusion autoencoder, as in the single files of Stable Diffusion and FLUX.

use super::{TensorInfo, Tensors};

/// Number of decoder levels, if the file has this layout.
pub(super) fn detect(tensors: &Tensors) -> Option<usize> {
    let sign = |side: &str| tensors.contains_key(&format!("{side}.mid.block_1.norm1.weight"));
    if !sign("encoder") && !sign("decoder") {
        return None;
    }
    let level = |name: &String| level(name.strip_prefix("decoder.up.")?).map(|(i, _)| i + 1);
    Some(tensors.keys().filter_map(level).max().unwrap_or(0))
}

/// `3.block.0…` as `(3, "block.0…")`. Deep levels are refused, so that no sum overflows.
fn level(rest: &str) -> Option<(usize, &str)> {
    let (number, rest) = rest.split_once('.')?;
    number.parse().ok().filter(|&i| i < 64).map(|i| (i, rest))
}

pub(super) fn map(mut info: TensorInfo, levels: usize) -> TensorInfo {
    if let Some(name) = renamed(&info.name, levels) {
        info.name = name;
    }
    // Attention projections are 1x1 convolutions here and matrices there.
    if info.name.contains(".attentions.0.to_")
        && let [rows, cols, 1, 1] = info.shape[..]
    {
        info.shape = [rows, cols].into();
    }
    info
}

fn renamed(name: &str, levels: usize) -> Option<String> {
    let (side, rest) = name.split_once('.')?;
    if !matches!(side, "encoder" | "decoder") {
        return None;
    }
    if rest.starts_with("quant_conv.") || rest.starts_with("post_quant_conv.") {
        return Some(rest.to_owned());
    }
    let rest = if let Some(tail) = rest.strip_prefix("norm_out.") {
        format!("conv_norm_out.{tail}")
    } else if let Some(tail) = rest.strip_prefix("mid.block_1.") {
        format!("mid_block.resnets.0.{tail}")
    } else if let Some(tail) = rest.strip_prefix("mid.block_2.") {
        format!("mid_block.resnets.1.{tail}")
    } else if let Some(tail) = rest.strip_prefix("mid.attn_1.") {
        format!("mid_block.attentions.0.{}", attention(tail))
    } else if let Some(tail) = rest.strip_prefix("down.") {
        let (i, tail) = level(tail)?;
        format!("down_blocks.{i}.{}", block(tail))
    } else if let Some(tail) = rest.strip_prefix("up.") {
        // Counted from the picture here, from the latent there.
        let (i, tail) = level(tail)?;
        format!("up_blocks.{}.{}", levels.checked_sub(i + 1)?, block(tail))
    } else {
        return None;
    };
    Some(format!("{side}.{rest}"))
}

fn block(tail: &str) -> String {
    tail.replace("block.", "resnets.")
        .replace("nin_shortcut.", "conv_shortcut.")
        .replace("downsample.", "downsamplers.0.")
        .replace("upsample.", "upsamplers.0.")
}

fn attention(tail: &str) -> String {
    let (part, field) = tail.split_once('.').unwrap_or((tail, ""));
    let part = match part {
        "norm" => "group_norm",
        "q" => "to_q",
        "k" => "to_k",
        "v" => "to_v",
        "proj_out" => "to_out.0",
        other => other,
    };
    format!("{part}.{field}")
}

//! TAESD's own names: the numbers of sequential layers, in one file for both halves or in one for each.

use super::{TensorInfo, Tensors};

/// What stands before the numbers, where the half is there.
#[derive(Clone, Copy)]
pub(super) struct Found {
    encoder: Option<&'static str>,
    decoder: Option<&'static str>,
}

pub(super) fn detect(tensors: &Tensors) -> Option<Found> {
    let conv = |name: String| tensors.get(&name).is_some_and(|info| info.shape.len() == 4);
    // The decoder's first layer has no weights, so its numbers are one higher.
    let encoder = ["", "encoder.", "taesd_encoder."]
        .into_iter()
        .find(|p| conv(format!("{p}0.weight")) && conv(format!("{p}1.conv.0.weight")));
    let decoder = ["", "decoder.", "taesd_decoder."]
        .into_iter()
        .find(|p| conv(format!("{p}1.weight")) && conv(format!("{p}3.conv.0.weight")));
    (encoder.is_some() || decoder.is_some()).then_some(Found { encoder, decoder })
}

pub(super) fn map(mut info: TensorInfo, found: Found) -> TensorInfo {
    for (side, prefix, skipped) in [("encoder", found.encoder, 0), ("decoder", found.decoder, 1)] {
        let number = |prefix: &str| {
            let (number, rest) = info.name.strip_prefix(prefix)?.split_once('.')?;
            let number: usize = number.parse().ok()?;
            Some(format!("{side}.layers.{}.{rest}", number.checked_sub(skipped)?))
        };
        if let Some(name) = prefix.and_then(number) {
            info.name = name;
            return info;
        }
    }
    info
}

use super::Container;
use crate::checkpoint::{CheckpointError, FileDType, TensorInfo};
use crate::error::{Error, Result};
use crate::quant::convrot::Marker;
use crate::quant::rotation;
use crate::tensor::DType;
use std::fmt;
use std::str::FromStr;

/// Matrices with fewer elements stay as they are: they cost nothing, and small ones often matter most.
const FEWEST: usize = 1024;

/// What the matrices of a model are to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// A plain type, for every tensor of floats.
    Plain(DType),
    /// Blocks, for matrices.
    Blocks(DType),
    /// Rotated int8 rows with a scale each, for matrices: ComfyUI's `int8_tensorwise` with `convrot`.
    ConvrotInt8 {
        /// Largest group of inputs that are rotated together, a power of 4.
        group: usize,
    },
}

impl WeightType {
    /// Group size that producers of ConvRot files use.
    pub const GROUP: usize = 256;

    /// Every name that [`WeightType::from_str`] knows.
    pub fn names() -> Vec<&'static str> {
        let plain = [DType::F32, DType::F16, DType::BF16];
        let types = plain.into_iter().chain(DType::BLOCKS).map(DType::name);
        types.chain(["convrot-int8"]).collect()
    }

    /// What a weight becomes when it is loaded; `None` for one that stays as it is.
    pub fn on_load(self, info: &TensorInfo) -> Option<DType> {
        let from = info.dtype.weight()?;
        match self {
            Self::Plain(dtype) => (info.shape.len() >= 2).then_some(dtype),
            Self::Blocks(_) if from == DType::I8 => None,
            Self::Blocks(dtype) => match matrix(info, from) {
                Ok(k) => match blocks(dtype, k) {
                    (Fate::Becomes(dtype), _) => Some(dtype),
                    _ => None,
                },
                Err(_) => None,
            },
            Self::ConvrotInt8 { .. } => None,
        }
    }

    pub(super) fn check(self, container: Container) -> Result<()> {
        let refuse = |text: String| Err(Error::Request(text));
        match (self, container) {
            (Self::Blocks(dtype), Container::Safetensors) => refuse(format!(
                "safetensors files hold no {dtype} blocks; name the output `.gguf`"
            )),
            (Self::ConvrotInt8 { .. }, Container::Gguf) => {
                refuse("GGUF files hold no rotated int8; name the output `.safetensors`".into())
            }
            (Self::ConvrotInt8 { group }, _) if !rotation::is_group(group) => {
                refuse(format!("a group of {group}: wanted a power of 4 from 4 on"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) | Self::Blocks(dtype) => write!(f, "{dtype}"),
            Self::ConvrotInt8 { .. } => f.write_str("convrot-int8"),
        }
    }
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        if lower == "convrot-int8" {
            return Ok(Self::ConvrotInt8 { group: Self::GROUP });
        }
        let named = |dtype: &DType| dtype.name() == lower;
        if let Some(dtype) = [DType::F32, DType::F16, DType::BF16].into_iter().find(|d| named(d)) {
            return Ok(Self::Plain(dtype));
        }
        match DType::BLOCKS.into_iter().find(|d| named(d)) {
            Some(dtype) => Ok(Self::Blocks(dtype)),
            None => Err(format!("wanted one of {}", Self::names().join(", "))),
        }
    }
}

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its bytes stay.
    Kept,
    /// Another type.
    Becomes(DType),
    /// Rotated int8 with scales.
    Convrot {
        /// Inputs that are rotated together.
        group: usize,
    },
}

impl Fate {
    /// Bytes in the new file.
    pub fn byte_len(self, info: &TensorInfo) -> u64 {
        let count = info.shape.count() as u64;
        match self {
            Self::Kept => info.byte_len() as u64,
            // Sums of a file go beyond what a 32-bit machine indexes.
            Self::Becomes(dtype) => {
                let (elements, bytes) = dtype.block();
                count.div_ceil(elements as u64) * bytes as u64
            }
            Self::Convrot { group } => count + 4 * info.shape[0] as u64 + marker(group).len() as u64,
        }
    }

    /// What the place of its bytes in the file is a multiple of. Rotated codes fill 16 bytes, so that their scales follow them.
    pub(super) fn alignment(self, info: &TensorInfo) -> usize {
        match self {
            Self::Becomes(dtype) if !dtype.is_blocks() => dtype.block().1,
            Self::Becomes(_) | Self::Convrot { .. } => 4,
            Self::Kept => match info.dtype {
                FileDType::Weight(dtype) if !dtype.is_blocks() => dtype.block().1,
                FileDType::Other(dtype) => dtype.bitsize().div_ceil(8),
                _ => 4,
            },
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("kept"),
            Self::Becomes(dtype) => write!(f, "{dtype}"),
            Self::Convrot { group } => write!(f, "convrot-int8, group {group}"),
        }
    }
}

/// Scales and markers of int8 layers that become plain have no use any more.
pub(super) fn is_spent(info: &TensorInfo, all: &[TensorInfo], target: WeightType) -> bool {
    let layer = ["_scale", ".comfy_quant"]
        .iter()
        .find_map(|end| info.stored.strip_suffix(end));
    let weight = layer.map(|layer| match layer.ends_with(".weight") {
        true => layer.to_owned(),
        false => format!("{layer}.weight"),
    });
    matches!(target, WeightType::Plain(_))
        && weight.is_some_and(|weight| {
            all.iter()
                .any(|other| other.stored == weight && other.is_int8_tensorwise())
        })
}

/// The marker of a rotated layer, as ComfyUI writes it.
pub(super) fn marker(group: usize) -> String {
    Marker {
        group: Some(group),
        ..Marker::default()
    }
    .to_json()
}

/// What a tensor becomes, and why not what was asked for.
pub(super) fn decide(info: &TensorInfo, target: WeightType, container: Container) -> Result<(Fate, Option<String>)> {
    let FileDType::Weight(from) = info.dtype else {
        return match (info.dtype, container) {
            (FileDType::Other(_), Container::Safetensors) => Ok((Fate::Kept, Some(format!("is {}", info.dtype)))),
            _ => Err(unusable(info, "a type that the new file can hold")),
        };
    };
    if from == DType::I8 {
        return match (target, info.int8(), container) {
            (WeightType::Plain(dtype), Some(_), _) => Ok((Fate::Becomes(dtype), None)),
            (_, _, Container::Safetensors) => {
                Ok((Fate::Kept, Some("is int8 already: once more would only lose".into())))
            }
            _ => Err(unusable(info, "F32, F16, BF16 or blocks; convert it to f16 first")),
        };
    }
    let kept = |reason: String| (Fate::Kept, Some(reason));
    let become_plain = |dtype| match from == dtype {
        true => (Fate::Kept, None),
        false => (Fate::Becomes(dtype), None),
    };
    let (fate, reason) = match target {
        WeightType::Plain(dtype) => become_plain(dtype),
        _ => match (matrix(info, from), target) {
            (Err(reason), _) => (Fate::Kept, reason),
            (Ok(k), WeightType::Blocks(dtype)) => blocks(dtype, k),
            (Ok(_), _) if is_table(&info.stored) => kept("is a table of embeddings".into()),
            (Ok(k), WeightType::ConvrotInt8 { group }) => match fitting_group(group, k) {
                Some(group) => (Fate::Convrot { group }, None),
                None => kept(format!("has {k} inputs, which no group divides")),
            },
            (Ok(_), WeightType::Plain(dtype)) => become_plain(dtype),
        },
    };
    // Readers of GGUF take vectors as F32.
    if container == Container::Gguf && info.shape.len() < 2 {
        return Ok((become_plain(DType::F32).0, None));
    }
    // Restored shapes of ComfyUI-GGUF, whose rows are no whole blocks.
    if fate == Fate::Kept && from.is_blocks() && !info.shape.last().is_multiple_of(from.block().0) {
        let reason = format!("rows of {} are no whole blocks of {from}", info.shape.last());
        return Ok((Fate::Becomes(DType::F16), Some(reason)));
    }
    if fate == Fate::Kept && container == Container::Safetensors && from.is_blocks() {
        return Err(unusable(info, "a plain type: safetensors files hold no blocks"));
    }
    Ok((fate, reason))
}

/// Inputs of a matrix that is worth quantising; else why it is not, where that is worth a line.
fn matrix(info: &TensorInfo, from: DType) -> std::result::Result<usize, Option<String>> {
    if info.shape.len() != 2 || !info.stored.ends_with("weight") {
        return Err(None);
    }
    if info.shape.count() < FEWEST {
        return Err(Some(format!("has fewer than {FEWEST} elements")));
    }
    if from.is_blocks() {
        return Err(Some(format!("is {from} already: once more would only lose")));
    }
    Ok(info.shape.last())
}

/// Blocks for rows of `k`, or the nearest smaller ones where rows are no whole blocks (llama.cpp's fallbacks).
fn blocks(wanted: DType, k: usize) -> (Fate, Option<String>) {
    let smaller = match wanted {
        DType::Q2K | DType::Q3K => DType::Q4_0,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        _ => DType::Q8_0,
    };
    let whole = |dtype: DType| k.is_multiple_of(dtype.block().0);
    if whole(wanted) {
        return (Fate::Becomes(wanted), None);
    }
    let reason = format!("rows of {k} are no whole blocks of {wanted}");
    match whole(smaller) {
        true => (Fate::Becomes(smaller), Some(reason)),
        false => (Fate::Kept, Some(reason)),
    }
}

/// The largest power of 4 up to `most` that divides `k`; below 16 a rotation evens out too little (ai-toolkit's rule).
fn fitting_group(most: usize, k: usize) -> Option<usize> {
    let mut group = most;
    while group >= most.min(16) {
        if k.is_multiple_of(group) {
            return Some(group);
        }
        group /= 4;
    }
    None
}

/// Tables of embeddings are read by rows, not multiplied.
fn is_table(name: &str) -> bool {
    ["embed_tokens", "token_embd", "token_embedding", "shared", "wte"]
        .iter()
        .any(|table| name.ends_with(&format!("{table}.weight")))
}

fn unusable(info: &TensorInfo, wanted: &str) -> Error {
    CheckpointError::DType {
        file: info.file().to_owned(),
        name: info.stored.clone(),
        found: info.dtype.to_string(),
        wanted: wanted.into(),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_the_largest_that_divide() {
        assert_eq!(fitting_group(256, 2560), Some(256));
        assert_eq!(fitting_group(256, 4304), Some(16));
        assert_eq!(fitting_group(256, 96), Some(16));
        assert_eq!(fitting_group(1024, 3072), Some(1024));
        assert_eq!(fitting_group(256, 682), None);
        assert_eq!(fitting_group(4, 12), Some(4));
    }

    #[test]
    fn rows_without_whole_blocks_take_smaller_ones() {
        assert_eq!(blocks(DType::Q4K, 512), (Fate::Becomes(DType::Q4K), None));
        assert_eq!(blocks(DType::Q4K, 96).0, Fate::Becomes(DType::Q5_0));
        assert_eq!(blocks(DType::Q6K, 96).0, Fate::Becomes(DType::Q8_0));
        assert_eq!(blocks(DType::Q8_0, 682).0, Fate::Kept);
    }

    #[test]
    fn names_parse_to_themselves() {
        for name in WeightType::names() {
            assert!(name.parse::<WeightType>().is_ok(), "{name}");
        }
        assert!("q9".parse::<WeightType>().expect_err("unknown").contains("q8_0"));
    }
}

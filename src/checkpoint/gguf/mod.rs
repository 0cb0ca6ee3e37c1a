//! The GGUF format, versions 2 and 3: metadata, a list of tensors, then their bytes, each at a multiple of the alignment.
//!
//! All numbers are little-endian. Axes are listed innermost first; here, as everywhere, they are outermost first.

mod metadata;
mod reader;

pub use metadata::{List, MetaValue, Metadata};

use super::safetensors::Entry;
use super::{CheckpointError, FileDType};
use crate::tensor::{DType, Shape};
use reader::Reader;

/// What a file begins with.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";
const VERSIONS: [u32; 2] = [2, 3];
/// Bytes between the starts of tensors where the file does not say.
const ALIGNMENT: u64 = 32;
/// No tensor of a model has more axes.
const MAX_AXES: u32 = 8;
/// Bytes of the shortest entry of metadata, an empty name and a byte, and of the shortest description of a tensor.
const MIN_SIZES: [u64; 2] = [13, 24];
/// Before the name of a tensor that was reshaped to make its rows whole blocks: its own shape, as ComfyUI-GGUF writes it.
const ORIG_SHAPE: &str = "comfy.gguf.orig_shape.";

/// What ggml calls a type of elements, with the elements and bytes of a block (`ggml_type` and `type_traits` in ggml.h and ggml.c).
struct GgmlType {
    number: u32,
    name: &'static str,
    elements: usize,
    bytes: usize,
    dtype: Option<DType>,
}

const TYPES: [GgmlType; 34] = {
    const fn ours(number: u32, name: &'static str, dtype: DType) -> GgmlType {
        let (elements, bytes) = dtype.block();
        GgmlType {
            number,
            name,
            elements,
            bytes,
            dtype: Some(dtype),
        }
    }
    const fn other(number: u32, name: &'static str, elements: usize, bytes: usize) -> GgmlType {
        GgmlType {
            number,
            name,
            elements,
            bytes,
            dtype: None,
        }
    }
    [
        ours(0, "F32", DType::F32),
        ours(1, "F16", DType::F16),
        ours(2, "Q4_0", DType::Q4_0),
        ours(3, "Q4_1", DType::Q4_1),
        ours(6, "Q5_0", DType::Q5_0),
        ours(7, "Q5_1", DType::Q5_1),
        ours(8, "Q8_0", DType::Q8_0),
        other(9, "Q8_1", 32, 36),
        ours(10, "Q2_K", DType::Q2K),
        ours(11, "Q3_K", DType::Q3K),
        ours(12, "Q4_K", DType::Q4K),
        ours(13, "Q5_K", DType::Q5K),
        ours(14, "Q6_K", DType::Q6K),
        other(15, "Q8_K", 256, 292),
        other(16, "IQ2_XXS", 256, 66),
        other(17, "IQ2_XS", 256, 74),
        other(18, "IQ3_XXS", 256, 98),
        other(19, "IQ1_S", 256, 50),
        other(20, "IQ4_NL", 32, 18),
        other(21, "IQ3_S", 256, 110),
        other(22, "IQ2_S", 256, 82),
        other(23, "IQ4_XS", 256, 136),
        ours(24, "I8", DType::I8),
        other(25, "I16", 1, 2),
        other(26, "I32", 1, 4),
        other(27, "I64", 1, 8),
        other(28, "F64", 1, 8),
        other(29, "IQ1_M", 256, 56),
        ours(30, "BF16", DType::BF16),
        other(34, "TQ1_0", 256, 54),
        other(35, "TQ2_0", 256, 66),
        other(39, "MXFP4", 32, 17),
        other(40, "NVFP4", 64, 36),
        other(41, "Q1_0", 128, 18),
    ]
};

/// ggml's name of a type, where it is known here.
pub(super) fn type_name(number: u32) -> Option<&'static str> {
    TYPES.iter().find(|t| t.number == number).map(|t| t.name)
}

/// A tensor as the file lists it.
struct Listed {
    name: String,
    number: u32,
    shape: Shape,
    offset: u64,
    /// Bytes, where the type is known.
    len: Option<u64>,
}

/// Entries and metadata of a whole file. Every byte range that comes out lies inside `bytes`, and no two overlap.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<(Vec<Entry>, Metadata), CheckpointError> {
    let mut reader = Reader::new(file, bytes);
    if reader.take(4)? != MAGIC {
        return Err(reader.invalid("it does not begin with `GGUF`"));
    }
    let version = reader.u32()?;
    if VERSIONS.contains(&version.swap_bytes()) {
        return Err(reader.invalid("its numbers are big-endian; only little-endian files can be read"));
    }
    if !VERSIONS.contains(&version) {
        return Err(reader.invalid(format!("version {version}; only 2 and 3 can be read")));
    }
    let (tensors, entries) = (reader.u64()?, reader.u64()?);
    reader.expect(entries, MIN_SIZES[0])?;
    let metadata = Metadata::read(&mut reader, entries)?;
    if let Some(parts) = metadata.count("split.count").filter(|&parts| parts > 1) {
        let reason = format!("it is one of {parts} parts of a model; join them with llama-gguf-split --merge");
        return Err(reader.invalid(reason));
    }
    reader.expect(tensors, MIN_SIZES[1])?;
    // No more is reserved than the file has bytes for.
    let mut listed = Vec::new();
    for _ in 0..tensors {
        listed.push(Listed::read(&mut reader)?);
    }
    let alignment = alignment(&reader, &metadata)?;
    let data = (reader.at() as u64).next_multiple_of(alignment);
    let mut entries = place(&reader, listed, data, alignment)?;
    restore_shapes(&reader, &metadata, &mut entries)?;
    Ok((entries, metadata))
}

fn alignment(reader: &Reader<'_>, metadata: &Metadata) -> Result<u64, CheckpointError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(ALIGNMENT),
        Some(MetaValue::Unsigned(n)) if n.is_power_of_two() && *n <= 1 << 30 => Ok(*n),
        Some(other) => Err(reader.invalid(format!("`{KEY}` is {other}, not a power of two up to 2^30"))),
    }
}

impl Listed {
    fn read(reader: &mut Reader<'_>) -> Result<Self, CheckpointError> {
        let name = reader.name()?;
        let axes = reader.u32()?;
        if axes > MAX_AXES {
            return Err(reader.invalid(format!("`{name}` has {axes} axes; no more than {MAX_AXES} are allowed")));
        }
        let mut dims = Vec::new();
        for _ in 0..axes {
            let dim = reader.u64()?;
            let dim = usize::try_from(dim).map_err(|_| reader.invalid(format!("`{name}` has an axis of {dim}")))?;
            dims.push(dim);
        }
        let (number, offset) = (reader.u32()?, reader.u64()?);
        let row = dims.first().copied().unwrap_or(1);
        dims.reverse();
        let too_large = || reader.invalid(format!("`{name}` of shape {dims:?} is too large"));
        let count = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = count.ok_or_else(too_large)?;
        let len = match TYPES.iter().find(|t| t.number == number) {
            None => None,
            Some(ty) if !row.is_multiple_of(ty.elements) => {
                let GgmlType { name: ty, elements, .. } = ty;
                let reason = format!("`{name}` of shape {dims:?} is {ty}, whose rows are multiples of {elements}");
                return Err(reader.invalid(reason));
            }
            Some(ty) => Some((count / ty.elements).checked_mul(ty.bytes).ok_or_else(too_large)? as u64),
        };
        Ok(Self {
            name,
            number,
            shape: dims.into(),
            offset,
            len,
        })
    }
}

/// Checks where the tensors are. What is of an unknown type reaches to the next.
fn place(
    reader: &Reader<'_>,
    mut listed: Vec<Listed>,
    data: u64,
    alignment: u64,
) -> Result<Vec<Entry>, CheckpointError> {
    let end = |tensor: &Listed| {
        data.saturating_add(tensor.offset)
            .saturating_add(tensor.len.unwrap_or(0))
    };
    let wanted = listed.iter().map(end).max().unwrap_or(0);
    if wanted > reader.len() as u64 {
        return Err(reader.truncated(wanted));
    }
    listed.sort_by_key(|t| (t.offset, t.len));
    let starts: Vec<u64> = listed.iter().map(|t| data + t.offset).collect();
    let mut entries = Vec::new();
    for (i, tensor) in listed.into_iter().enumerate() {
        let (start, name) = (starts[i], &tensor.name);
        if tensor.offset % alignment != 0 {
            let offset = tensor.offset;
            return Err(reader.invalid(format!(
                "`{name}` is at {offset}, no multiple of the alignment {alignment}"
            )));
        }
        let next = starts.get(i + 1).copied().unwrap_or(reader.len() as u64);
        let len = tensor.len.unwrap_or(next - start);
        if start + len > next {
            return Err(reader.invalid(format!("the bytes of `{name}` reach into those of another tensor")));
        }
        let ty = TYPES.iter().find(|t| t.number == tensor.number);
        entries.push(Entry {
            dtype: match ty.and_then(|ty| ty.dtype) {
                Some(dtype) => FileDType::Weight(dtype),
                None => FileDType::Ggml(tensor.number),
            },
            name: tensor.name,
            shape: tensor.shape,
            start: start as usize,
            len: len as usize,
        });
    }
    Ok(entries)
}

/// Gives tensors the shape they had before their rows were made whole blocks.
fn restore_shapes(reader: &Reader<'_>, metadata: &Metadata, entries: &mut [Entry]) -> Result<(), CheckpointError> {
    for entry in entries {
        let key = format!("{ORIG_SHAPE}{}", entry.name);
        let Some(value) = metadata.get(&key) else { continue };
        let dims = value.sizes(MAX_AXES as usize).map(Shape::from);
        match dims.filter(|shape| shape.count() == entry.shape.count()) {
            Some(shape) => entry.shape = shape,
            None => {
                let shape = &entry.shape;
                return Err(reader.invalid(format!(
                    "`{key}` is {value}, which is no shape for the elements of {shape}"
                )));
            }
        }
    }
    Ok(())
}

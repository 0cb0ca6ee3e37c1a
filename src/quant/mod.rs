//! Quantised weights: blocks as ggml stores them, decoded and encoded on the host, and their layout on the device.
//!
//! A format is a file with `decode`, `encode` and `finite` for one block. Layouts and formulas are those of ggml's `block_*`
//! structs and `dequantize_row_*` (ggml-quants.c), which files of type GGUF hold.
//!
//! On the device, blocks of `4 n` bytes lie as in the file. Blocks of `4 n + 2` bytes would start within a word, so they lie in
//! pairs: a word with the two `f16` scales, then the rest of both blocks. That takes the same number of bytes and keeps every bit.

mod q8_0;
pub mod rotation;

use crate::tensor::DType;

/// A format: what one block of it means.
struct Format {
    /// Values of a block.
    decode: fn(&[u8], &mut [f32]),
    /// The nearest block.
    encode: fn(&[f32], &mut [u8]),
    /// Whether the scales are finite.
    finite: fn(&[u8]) -> bool,
}

const fn format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::Q8_0 => Some(Format {
            decode: q8_0::decode,
            encode: q8_0::encode,
            finite: q8_0::finite,
        }),
        _ => None,
    }
}

/// Values of whole blocks in the layout of files; empty for types that are no blocks.
pub fn decode(dtype: DType, blocks: &[u8]) -> Vec<f32> {
    let (elements, bytes) = dtype.block();
    let mut values = vec![0.0; blocks.len() / bytes * elements];
    decode_into(dtype, blocks, &mut values);
    values
}

/// As [`decode`], into `values`: as many as the blocks hold.
#[inline(always)]
pub fn decode_into(dtype: DType, blocks: &[u8], values: &mut [f32]) {
    let (elements, bytes) = dtype.block();
    if let Some(format) = format(dtype) {
        let pairs = blocks.chunks_exact(bytes).zip(values.chunks_exact_mut(elements));
        pairs.for_each(|(block, values)| (format.decode)(block, values));
    }
}

/// Blocks nearest to `values`, which fill whole blocks; empty for types that are no blocks.
pub fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let (elements, bytes) = dtype.block();
    let mut blocks = vec![0; values.len() / elements * bytes];
    if let Some(format) = format(dtype) {
        let pairs = values.chunks_exact(elements).zip(blocks.chunks_exact_mut(bytes));
        pairs.for_each(|(values, block)| (format.encode)(values, block));
    }
    blocks
}

/// Index of the first element in a block whose scales are not finite.
pub fn first_non_finite(dtype: DType, blocks: &[u8]) -> Option<usize> {
    let (elements, bytes) = dtype.block();
    let format = format(dtype)?;
    let bad = blocks.chunks_exact(bytes).position(|block| !(format.finite)(block))?;
    Some(bad * elements)
}

/// Where the `f16` scale lies in a block of `4 n + 2` bytes; `None` for the others.
const fn scale_at(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => Some(0),
        DType::Q3K => Some(108),
        DType::Q6K => Some(208),
        _ => None,
    }
}

/// Blocks as the device stores them, padded to whole words.
pub fn pack(dtype: DType, blocks: &[u8]) -> Vec<u8> {
    let (_, bytes) = dtype.block();
    let Some(at) = scale_at(dtype) else {
        let mut packed = blocks.to_vec();
        packed.resize(blocks.len().next_multiple_of(4), 0);
        return packed;
    };
    let mut packed = Vec::with_capacity(blocks.len().next_multiple_of(4));
    for pair in blocks.chunks(2 * bytes) {
        for block in pair.chunks(bytes) {
            packed.extend(&block[at..at + 2]);
        }
        packed.resize(packed.len().next_multiple_of(4), 0);
        for block in pair.chunks(bytes) {
            packed.extend(&block[..at]);
            packed.extend(&block[at + 2..]);
        }
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_blocks_keep_every_byte() {
        for dtype in DType::BLOCKS {
            let (_, bytes) = dtype.block();
            for count in [1, 2, 3, 6] {
                let blocks: Vec<u8> = (0..count * bytes).map(|i| (i * 7 % 251) as u8).collect();
                let packed = pack(dtype, &blocks);
                assert_eq!(packed.len(), blocks.len().next_multiple_of(4), "{dtype}");
                let sum = |bytes: &[u8]| bytes.iter().map(|&b| u64::from(b)).sum::<u64>();
                assert_eq!(sum(&packed), sum(&blocks), "{dtype}");
                assert_eq!(scale_at(dtype).is_some(), bytes % 4 == 2, "{dtype}");
            }
        }
    }
}

//! Quantised weights: blocks as ggml stores them, decoded and encoded on the host, and their layout on the device.
//!
//! A format is a file that says where the scales of a block are and how one block is decoded and encoded. Layouts and formulas are
//! those of ggml's `block_*` structs and `dequantize_row_*` (ggml-quants.c), which files of type GGUF hold.
//!
//! Every product of a scale, a scale of a group and a code has at most 24 significant bits, so it is exact in `f32`: only the
//! addition of a minimum rounds, and devices that fuse it with the product get the same value.
//!
//! On the device, blocks of `4 n` bytes lie as in the file. Blocks of `4 n + 2` bytes would start within a word, so they lie in
//! pairs: a word with the two `f16` scales, then the rest of both blocks. That takes the same number of bytes and keeps every bit.

pub mod convrot;
mod k_scales;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
pub mod rotation;
mod search;

use crate::tensor::DType;
use half::f16;

/// A format: what one block of it means.
struct Format {
    /// Where its `f16` scales and minima are, in bytes.
    scales: &'static [usize],
    /// Values of blocks.
    decode: fn(&[u8], &mut [f32]),
    /// The block nearest to the values of one.
    encode: fn(&[f32], &mut [u8]),
}

const fn format(dtype: DType) -> Option<&'static Format> {
    Some(match dtype {
        DType::Q8_0 => &q8_0::FORMAT,
        DType::Q4_0 => &q4_0::FORMAT,
        DType::Q4_1 => &q4_1::FORMAT,
        DType::Q5_0 => &q5_0::FORMAT,
        DType::Q5_1 => &q5_1::FORMAT,
        DType::Q2K => &q2_k::FORMAT,
        DType::Q3K => &q3_k::FORMAT,
        DType::Q4K => &q4_k::FORMAT,
        DType::Q5K => &q5_k::FORMAT,
        DType::Q6K => &q6_k::FORMAT,
        _ => return None,
    })
}

/// The `f16` at a byte of a block.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes a scale as the nearest finite `f16`, 0 for NaN, and gives what was written. Subnormal ones are rounded away from 0: cut
/// off values would err more than coarse ones.
fn put_half(block: &mut [u8], at: usize, scale: f32) -> f32 {
    let scale = if scale.is_nan() { 0.0 } else { scale };
    let mut stored = f16::from_f32(scale.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
    if scale.abs() < f16::MIN_POSITIVE.to_f32() && stored.to_f32().abs() < scale.abs() {
        stored = f16::from_bits(stored.to_bits() + 1);
    }
    block[at..at + 2].copy_from_slice(&stored.to_le_bytes());
    stored.to_f32()
}

/// As [`put_half`], but gives what codes are to be divided by: as in ggml the scale before it is rounded, unless that rounding is
/// coarse, as it is where the `f16` is subnormal or out of range.
fn put_scale(block: &mut [u8], at: usize, scale: f32) -> f32 {
    let stored = put_half(block, at, scale);
    let fine = f16::MIN_POSITIVE.to_f32()..=f16::MAX.to_f32();
    if fine.contains(&scale.abs()) { scale } else { stored }
}

/// `1 / scale`; 0 for 0, so that a block without a scale gets the code of 0 everywhere.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Codes of 5 bits of 32 elements: a word with the fifth bits, and bytes with the others of elements `j` and `j + 16`.
#[inline(always)]
fn five_bits(high: &[u8], codes: &[u8], values: &mut [f32], value: impl Fn(f32) -> f32) {
    let high = u32::from_le_bytes([high[0], high[1], high[2], high[3]]);
    let mut all = [0u32; 32];
    for j in 0..16 {
        all[j] = u32::from(codes[j] & 15);
        all[j + 16] = u32::from(codes[j] >> 4);
    }
    for (j, (v, q)) in values.iter_mut().zip(all).enumerate() {
        *v = value((q | (high >> j & 1) << 4) as f32);
    }
}

/// The opposite of [`five_bits`].
fn put_five_bits(bytes: &mut [u8], values: &[f32], code: impl Fn(f32) -> u8) {
    let (high, codes) = bytes.split_at_mut(4);
    let mut fifth = 0u32;
    for (j, byte) in codes.iter_mut().enumerate() {
        let (a, b) = (code(values[j]), code(values[j + 16]));
        *byte = a & 15 | b << 4;
        fifth |= u32::from(a >> 4) << j | u32::from(b >> 4) << (j + 16);
    }
    high.copy_from_slice(&fifth.to_le_bytes());
}

/// Values of whole blocks in the layout of files; empty for types that are no blocks.
pub fn decode(dtype: DType, blocks: &[u8]) -> Vec<f32> {
    let (elements, bytes) = dtype.block();
    let mut values = vec![0.0; blocks.len() / bytes * elements];
    decode_into(dtype, blocks, &mut values);
    values
}

/// As [`decode`], into `values`: as many as the blocks hold.
pub fn decode_into(dtype: DType, blocks: &[u8], values: &mut [f32]) {
    if let Some(format) = format(dtype) {
        (format.decode)(blocks, values);
    }
}

/// Decodes blocks of so many bytes and elements one by one, with the widest vectors that the machine has.
pub(crate) fn each<const BYTES: usize, const ELEMENTS: usize>(
    blocks: &[u8],
    values: &mut [f32],
    one: impl Fn(&[u8], &mut [f32]),
) {
    pulp::Arch::new().dispatch(Each::<BYTES, ELEMENTS, _> { blocks, values, one });
}

// A closure would not be compiled for these vectors.
struct Each<'a, const BYTES: usize, const ELEMENTS: usize, F> {
    blocks: &'a [u8],
    values: &'a mut [f32],
    one: F,
}

impl<const BYTES: usize, const ELEMENTS: usize, F> pulp::NullaryFnOnce for Each<'_, BYTES, ELEMENTS, F>
where
    F: Fn(&[u8], &mut [f32]),
{
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let (blocks, values) = (
            self.blocks.as_chunks::<BYTES>().0,
            self.values.as_chunks_mut::<ELEMENTS>().0,
        );
        for (block, values) in blocks.iter().zip(values) {
            (self.one)(block, values);
        }
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
    let bad = blocks
        .chunks_exact(bytes)
        .position(|block| format.scales.iter().any(|&at| !half_at(block, at).is_finite()))?;
    Some(bad * elements)
}

/// Where the `f16` scale lies in a block of `4 n + 2` bytes; `None` for the others.
fn scale_at(dtype: DType) -> Option<usize> {
    let (_, bytes) = dtype.block();
    format(dtype)
        .filter(|_| bytes % 4 == 2)
        .and_then(|format| format.scales.first().copied())
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

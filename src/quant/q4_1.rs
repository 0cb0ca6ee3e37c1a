//! `Q4_1`: 32 elements, an `f16` scale `d` and minimum `m` and codes of 4 bits; `v = d * q + m`.
//!
//! Byte `j` of the codes holds elements `j` and `j + 16`.

use super::{Format, each, half_at, inverse, put_half, put_scale, search};

pub(super) const FORMAT: Format = Format {
    scales: &[0, 2],
    decode: |blocks, values| each::<20, 32>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q4_1`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let (low, high) = values.split_at_mut(16);
    for ((a, b), q) in low.iter_mut().zip(high).zip(&block[4..]) {
        *a = d * f32::from(q & 15) + m;
        *b = d * f32::from(q >> 4) + m;
    }
}

/// ggml's `quantize_row_q4_1_ref`: codes from the smallest value to the largest.
fn encode(values: &[f32], block: &mut [u8]) {
    let (min, max) = search::range(values);
    let inverse = inverse(put_scale(block, 0, (max - min) / 15.0));
    put_half(block, 2, min);
    let code = |v: f32| ((v - min) * inverse + 0.5).min(15.0) as u8;
    for (j, q) in block[4..].iter_mut().enumerate() {
        *q = code(values[j]) | code(values[j + 16]) << 4;
    }
}

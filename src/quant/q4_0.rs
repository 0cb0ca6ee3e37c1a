//! `Q4_0`: 32 elements, an `f16` scale `d` and codes of 4 bits; `v = d * (q - 8)`.
//!
//! Byte `j` of the codes holds elements `j` and `j + 16`.

use super::{Format, each, half_at, inverse, put_scale, search};

pub(super) const FORMAT: Format = Format {
    scales: &[0],
    decode: |blocks, values| each::<18, 32>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q4_0`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    let (low, high) = values.split_at_mut(16);
    for ((a, b), q) in low.iter_mut().zip(high).zip(&block[2..]) {
        *a = d * (f32::from(q & 15) - 8.0);
        *b = d * (f32::from(q >> 4) - 8.0);
    }
}

/// ggml's `quantize_row_q4_0_ref`: the value of the largest magnitude becomes code 0, which is -8.
fn encode(values: &[f32], block: &mut [u8]) {
    let inverse = inverse(put_scale(block, 0, search::largest(values) / -8.0));
    // In `f64`, as in a fused multiply-add.
    let code = |v: f32| (f64::from(v) * f64::from(inverse) + 8.5).min(15.0) as u8;
    for (j, q) in block[2..].iter_mut().enumerate() {
        *q = code(values[j]) | code(values[j + 16]) << 4;
    }
}

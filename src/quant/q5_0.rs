//! `Q5_0`: 32 elements, an `f16` scale `d` and codes of 5 bits; `v = d * (q - 16)`.
//!
//! Bit `j` of the word after the scale is the fifth of element `j`; byte `j` after it holds the others of elements `j` and `j + 16`.

use super::{Format, each, half_at, inverse, put_scale, search};

pub(super) const FORMAT: Format = Format {
    scales: &[0],
    decode: |blocks, values| each::<22, 32>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q5_0`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    let (high, codes) = block[2..].split_at(4);
    super::five_bits(high, codes, values, |q| d * (q - 16.0));
}

/// ggml's `quantize_row_q5_0_ref`: the value of the largest magnitude becomes code 0, which is -16.
fn encode(values: &[f32], block: &mut [u8]) {
    let inverse = inverse(put_scale(block, 0, search::largest(values) / -16.0));
    // In `f64`, as in a fused multiply-add.
    let code = |v: f32| (f64::from(v) * f64::from(inverse) + 16.5).min(31.0) as u8;
    super::put_five_bits(&mut block[2..], values, code);
}

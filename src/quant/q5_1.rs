//! `Q5_1`: 32 elements, an `f16` scale `d` and minimum `m` and codes of 5 bits as in `Q5_0`; `v = d * q + m`.

use super::{Format, each, half_at, inverse, put_half, put_scale, search};

pub(super) const FORMAT: Format = Format {
    scales: &[0, 2],
    decode: |blocks, values| each::<24, 32>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q5_1`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    let (high, codes) = block[4..].split_at(4);
    super::five_bits(high, codes, values, |q| d * q + m);
}

/// ggml's `quantize_row_q5_1_ref`: codes from the smallest value to the largest.
fn encode(values: &[f32], block: &mut [u8]) {
    let (min, max) = search::range(values);
    let inverse = inverse(put_scale(block, 0, (max - min) / 31.0));
    put_half(block, 2, min);
    let code = |v: f32| ((v - min) * inverse + 0.5).min(31.0) as u8;
    super::put_five_bits(&mut block[4..], values, code);
}

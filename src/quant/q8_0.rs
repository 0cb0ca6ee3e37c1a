//! `Q8_0`: 32 elements, an `f16` scale `d` and 32 signed codes; `v = d * q`.

use super::{Format, each, half_at, inverse, put_scale};

pub(super) const FORMAT: Format = Format {
    scales: &[0],
    decode: |blocks, values| each::<34, 32>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q8_0`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, 0);
    for (v, &q) in values.iter_mut().zip(&block[2..]) {
        *v = d * f32::from(q as i8);
    }
}

/// ggml's `quantize_row_q8_0_ref`: `d = max|v| / 127`, codes rounded half away from zero with the scale before it is rounded.
fn encode(values: &[f32], block: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let inverse = inverse(put_scale(block, 0, largest / 127.0));
    for (q, v) in block[2..].iter_mut().zip(values) {
        // Not below -127: the code of -128 has no opposite.
        *q = (v * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
}

//! `Q8_0`: 32 elements, an `f16` scale `d` and 32 signed codes; `v = d * q`.

use half::f16;

/// ggml's `dequantize_row_q8_0`.
pub(super) fn decode(block: &[u8], values: &mut [f32]) {
    let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
    for (v, &q) in values.iter_mut().zip(&block[2..]) {
        *v = d * f32::from(q as i8);
    }
}

/// ggml's `quantize_row_q8_0_ref`: `d = max|v| / 127`, codes rounded half away from zero with the scale before it is rounded.
pub(super) fn encode(values: &[f32], block: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let d = largest / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    block[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (q, v) in block[2..].iter_mut().zip(values) {
        *q = (v * inverse).round() as i8 as u8;
    }
}

pub(super) fn finite(block: &[u8]) -> bool {
    f16::from_le_bytes([block[0], block[1]]).is_finite()
}

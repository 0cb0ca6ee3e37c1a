//! `Q5_K`: 256 elements in eight groups of 32, codes of 5 bits; scales as in [`k_scales`](super::k_scales).
//!
//! Bit `g` of byte `j` of the first 32 is the fifth of element `j` of group `g`; the others are as in `Q4_K`.

use super::{Format, each, k_scales};

const HIGH: usize = 16;
const CODES: usize = 48;

pub(super) const FORMAT: Format = Format {
    scales: &[0, 2],
    decode: |blocks, values| each::<176, 256>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q5_K`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let high = &block[HIGH..CODES];
    for (g, values) in values.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scales::group(block, g);
        let codes = &block[CODES + g / 2 * 32..][..32];
        for ((v, q), high) in values.iter_mut().zip(codes).zip(high) {
            let q = q >> (g % 2 * 4) & 15 | (high >> g & 1) << 4;
            *v = scale * f32::from(q) - minimum;
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    let codes = k_scales::encode(values, block, 31.0);
    let (high, low) = block[HIGH..].split_at_mut(32);
    for (j, byte) in high.iter_mut().enumerate() {
        *byte = (0..8).fold(0, |byte, g| byte | codes[32 * g + j] >> 4 << g);
    }
    for (codes, bytes) in codes.chunks_exact(64).zip(low.chunks_exact_mut(32)) {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[j] & 15 | codes[j + 32] << 4;
        }
    }
}

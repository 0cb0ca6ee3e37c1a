//! `Q4_K`: 256 elements in eight groups of 32, codes of 4 bits; scales as in [`k_scales`](super::k_scales).
//!
//! Byte `j` of 32 bytes of codes holds element `j` of one group and of the next.

use super::{Format, each, k_scales};

const CODES: usize = 16;

pub(super) const FORMAT: Format = Format {
    scales: &[0, 2],
    decode: |blocks, values| each::<144, 256>(blocks, values, decode),
    encode,
};

/// ggml's `dequantize_row_q4_K`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    for (g, values) in values.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = k_scales::group(block, g);
        let codes = &block[CODES + g / 2 * 32..][..32];
        for (v, q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(q >> (g % 2 * 4) & 15) - minimum;
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    let codes = k_scales::encode(values, block, 15.0);
    let pairs = codes.chunks_exact(64).zip(block[CODES..].chunks_exact_mut(32));
    for (codes, bytes) in pairs {
        for (j, byte) in bytes.iter_mut().enumerate() {
            *byte = codes[j] | codes[j + 32] << 4;
        }
    }
}

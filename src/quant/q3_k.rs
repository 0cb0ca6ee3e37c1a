//! `Q3_K`: 256 elements in 16 groups of 16, codes of 3 bits; `v = d * (scale - 32) * (q - 4)`, with a scale of 6 bits per group.
//!
//! Bit `g / 2` of byte `j` of the first 32 is the third of element `j` of the pair of groups; the others are as in `Q2_K`.

use super::{Format, each, half_at, inverse, put_half, search};

const CODES: usize = 32;
const SCALES: usize = 96;
const D: usize = 108;

pub(super) const FORMAT: Format = Format {
    scales: &[D],
    decode: |blocks, values| each::<110, 256>(blocks, values, decode),
    encode,
};

/// The scale of a group: four bits in one of eight bytes, two in one of the next four.
fn group(block: &[u8], g: usize) -> f32 {
    let s = &block[SCALES..D];
    let low = s[g % 8] >> (g / 8 * 4) & 15;
    let high = s[8 + g % 4] >> (g / 4 * 2) & 3;
    half_at(block, D) * (f32::from(low | high << 4) - 32.0)
}

/// ggml's `dequantize_row_q3_K`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    for (g, values) in values.chunks_exact_mut(16).enumerate() {
        let scale = group(block, g);
        let high = &block[g % 2 * 16..][..16];
        let codes = &block[CODES + g / 8 * 32 + g % 2 * 16..][..16];
        for ((v, q), high) in values.iter_mut().zip(codes).zip(high) {
            let q = q >> (g % 8 / 2 * 2) & 3 | (high >> (g / 2) & 1) << 2;
            *v = scale * (f32::from(q) - 4.0);
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    let mut found = [0.0; 16];
    for (found, values) in found.iter_mut().zip(values.chunks_exact(16)) {
        *found = search::signed(values, 4.0);
    }
    let d = put_half(block, D, search::largest(&found) / -32.0);
    block[..D].fill(0);
    for (g, (scale, values)) in found.into_iter().zip(values.chunks_exact(16)).enumerate() {
        let scale = (search::code(scale, inverse(d), -32.0, 31.0) + 32.0) as u8;
        block[SCALES + g % 8] |= (scale & 15) << (g / 8 * 4);
        block[SCALES + 8 + g % 4] |= scale >> 4 << (g / 4 * 2);
        let inverse = inverse(group(block, g));
        for (j, &v) in values.iter().enumerate() {
            let q = (search::code(v, inverse, -4.0, 3.0) + 4.0) as u8;
            let at = g % 2 * 16 + j;
            block[at] |= q >> 2 << (g / 2);
            block[CODES + g / 8 * 32 + at] |= (q & 3) << (g % 8 / 2 * 2);
        }
    }
}

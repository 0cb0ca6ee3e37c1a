//! `Q2_K`: 256 elements in 16 groups of 16, codes of 2 bits; `v = d * scale * q - dmin * minimum`, with scale and minimum of 4 bits
//! in one byte for each group.
//!
//! Byte `j` of 32 bytes of codes holds elements `j`, `j + 32`, `j + 64` and `j + 96` of half a block.

use super::{Format, each, half_at, inverse, put_half, search};

const CODES: usize = 16;
const D: usize = 80;
const DMIN: usize = 82;

pub(super) const FORMAT: Format = Format {
    scales: &[D, DMIN],
    decode: |blocks, values| each::<84, 256>(blocks, values, decode),
    encode,
};

/// Scale and minimum of a group.
fn group(block: &[u8], g: usize) -> (f32, f32) {
    let s = block[g];
    (
        half_at(block, D) * f32::from(s & 15),
        half_at(block, DMIN) * f32::from(s >> 4),
    )
}

/// ggml's `dequantize_row_q2_K`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    for (g, values) in values.chunks_exact_mut(16).enumerate() {
        let (scale, minimum) = group(block, g);
        let codes = &block[CODES + g / 8 * 32 + g % 2 * 16..][..16];
        for (v, q) in values.iter_mut().zip(codes) {
            *v = scale * f32::from(q >> (g % 8 / 2 * 2) & 3) - minimum;
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    const LARGEST: f32 = 15.0;
    let mut found = [(0.0f32, 0.0f32); 16];
    for (found, values) in found.iter_mut().zip(values.chunks_exact(16)) {
        let (scale, minimum) = search::affine(values, 3.0);
        *found = (scale, -minimum);
    }
    let most = found.iter().fold((0.0f32, 0.0f32), |m, f| (m.0.max(f.0), m.1.max(f.1)));
    let d = inverse(put_half(block, D, most.0 / LARGEST));
    let dmin = inverse(put_half(block, DMIN, most.1 / LARGEST));
    block[CODES..D].fill(0);
    for (g, ((scale, minimum), values)) in found.into_iter().zip(values.chunks_exact(16)).enumerate() {
        let minimum = search::code(minimum, dmin, 0.0, LARGEST) as u8;
        block[g] = search::code(scale, d, 0.0, LARGEST) as u8 | minimum << 4;
        let (scale, minimum) = group(block, g);
        let codes = &mut block[CODES + g / 8 * 32 + g % 2 * 16..][..16];
        for (byte, v) in codes.iter_mut().zip(values) {
            *byte |= (search::code(v + minimum, inverse(scale), 0.0, 3.0) as u8) << (g % 8 / 2 * 2);
        }
    }
}

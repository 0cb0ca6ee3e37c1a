//! `Q6_K`: 256 elements in 16 groups of 16, codes of 6 bits; `v = d * scale * (q - 32)`, with a signed scale of 8 bits per group.
//!
//! In each half of a block, 64 bytes hold the lower four bits of elements `j` and `j + 64`, and 32 bytes the upper two of elements
//! `j`, `j + 32`, `j + 64` and `j + 96`.

use super::{Format, each, half_at, inverse, put_half, search};

const HIGH: usize = 128;
const SCALES: usize = 192;
const D: usize = 208;

pub(super) const FORMAT: Format = Format {
    scales: &[D],
    decode: |blocks, values| each::<210, 256>(blocks, values, decode),
    encode,
};

/// Where the bits of element 0 of group `g` are: byte and shift of the lower ones, byte and shift of the upper ones.
const fn place(g: usize) -> [usize; 4] {
    let (half, quarter, odd) = (g / 8, g % 8 / 2, g % 2);
    [
        64 * half + 32 * (quarter % 2) + 16 * odd,
        4 * (quarter / 2),
        HIGH + 32 * half + 16 * odd,
        2 * quarter,
    ]
}

/// ggml's `dequantize_row_q6_K`.
#[inline(always)]
fn decode(block: &[u8], values: &mut [f32]) {
    let d = half_at(block, D);
    for (g, values) in values.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[SCALES + g] as i8);
        let [low, low_shift, high, high_shift] = place(g);
        let bytes = block[low..][..16].iter().zip(&block[high..][..16]);
        for (v, (low, high)) in values.iter_mut().zip(bytes) {
            let q = low >> low_shift & 15 | (high >> high_shift & 3) << 4;
            *v = scale * (f32::from(q) - 32.0);
        }
    }
}

fn encode(values: &[f32], block: &mut [u8]) {
    let mut found = [0.0; 16];
    for (found, values) in found.iter_mut().zip(values.chunks_exact(16)) {
        *found = search::signed(values, 32.0);
    }
    let d = put_half(block, D, search::largest(&found) / -128.0);
    block[..D].fill(0);
    for (g, (scale, values)) in found.into_iter().zip(values.chunks_exact(16)).enumerate() {
        let scale = search::code(scale, inverse(d), -128.0, 127.0);
        block[SCALES + g] = scale as i8 as u8;
        let inverse = inverse(d * scale);
        let [low, low_shift, high, high_shift] = place(g);
        for (j, &v) in values.iter().enumerate() {
            let q = (search::code(v, inverse, -32.0, 31.0) + 32.0) as u8;
            block[low + j] |= (q & 15) << low_shift;
            block[high + j] |= q >> 4 << high_shift;
        }
    }
}

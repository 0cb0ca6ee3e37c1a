//! What `Q4_K` and `Q5_K` share: eight groups of 32 elements with a scale and a minimum of 6 bits each, in 12 bytes after the `f16`
//! scales `d` and `dmin` of both; `v = d * scale * q - dmin * minimum`.

use super::{half_at, inverse, put_half, search};

/// Where the twelve bytes are.
const AT: usize = 4;

/// Scale and minimum of group `g` (ggml's `get_scale_min_k4`).
#[inline(always)]
pub(super) fn group(block: &[u8], g: usize) -> (f32, f32) {
    let s = &block[AT..];
    let (scale, minimum) = if g < 4 {
        (s[g] & 63, s[g + 4] & 63)
    } else {
        (s[g + 4] & 15 | s[g - 4] >> 6 << 4, s[g + 4] >> 4 | s[g] >> 6 << 4)
    };
    (
        half_at(block, 0) * f32::from(scale),
        half_at(block, 2) * f32::from(minimum),
    )
}

/// Writes scales and minima that suit codes of `0..=last`, and gives the codes.
pub(super) fn encode(values: &[f32], block: &mut [u8], last: f32) -> [u8; 256] {
    const LARGEST: f32 = 63.0;
    let mut found = [(0.0f32, 0.0f32); 8];
    for (found, group) in found.iter_mut().zip(values.chunks_exact(32)) {
        let (scale, minimum) = search::affine(group, last);
        *found = (scale, -minimum);
    }
    let most = found.iter().fold((0.0f32, 0.0f32), |m, f| (m.0.max(f.0), m.1.max(f.1)));
    let d = inverse(put_half(block, 0, most.0 / LARGEST));
    let dmin = inverse(put_half(block, 2, most.1 / LARGEST));
    for (g, (scale, minimum)) in found.into_iter().enumerate() {
        let scale = search::code(scale, d, 0.0, LARGEST) as u8;
        let minimum = search::code(minimum, dmin, 0.0, LARGEST) as u8;
        put(&mut block[AT..], g, scale, minimum);
    }
    let mut codes = [0; 256];
    let groups = codes.chunks_exact_mut(32).zip(values.chunks_exact(32));
    for (g, (codes, values)) in groups.enumerate() {
        let (scale, minimum) = group(block, g);
        for (q, v) in codes.iter_mut().zip(values) {
            *q = search::code(v + minimum, inverse(scale), 0.0, last) as u8;
        }
    }
    codes
}

/// Groups come in order, so that the upper bits of the later four fill up the bytes of the first.
fn put(s: &mut [u8], g: usize, scale: u8, minimum: u8) {
    if g < 4 {
        s[g] = scale;
        s[g + 4] = minimum;
    } else {
        s[g + 4] = scale & 15 | minimum << 4;
        s[g - 4] |= scale >> 4 << 6;
        s[g] |= minimum >> 4 << 6;
    }
}

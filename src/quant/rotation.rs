//! ConvRot's rotation: a regular Hadamard matrix on groups of neighbouring input features.
//!
//! For groups of `G = 4^n` elements, `H = h4 x h4 x .. / sqrt(G)` with `h4[a][b] = -1` where `a + b = 3` in base 4, else `1`
//! (arXiv 2512.03673). `H` is symmetric and its own inverse, so one function rotates and un-rotates weights, activations and
//! differences of weights alike.

/// Largest group that a file may ask for: more than any layer is wide.
pub const MAX_GROUP: usize = 1 << 20;

/// Whether groups of so many elements can be rotated: powers of 4 from 4 on.
pub const fn is_group(group: usize) -> bool {
    group >= 4 && group <= MAX_GROUP && group.is_power_of_two() && group.trailing_zeros().is_multiple_of(2)
}

/// Element `[i][j]` of `H`, exact in every float type: `(-1)^popcount(x & (x >> 1) & 0x55555555) / sqrt(G)` with `x = i xor j`.
///
/// # Panics
/// If `group` is no size of a group.
pub fn entry(group: usize, i: usize, j: usize) -> f32 {
    assert!(is_group(group), "{group} is no power of 4 from 4 on");
    let x = i ^ j;
    // Both bits of a digit of the exclusive or are set where the digits sum to 3.
    let odd = (x & (x >> 1) & 0x5555_5555).count_ones() % 2 == 1;
    let size = 1.0 / (1u32 << (group.trailing_zeros() / 2)) as f32;
    if odd { -size } else { size }
}

/// The whole matrix `[group, group]`, row by row.
///
/// # Panics
/// If `group` is no size of a group.
pub fn matrix(group: usize) -> Vec<f32> {
    let element = |at: usize| entry(group, at / group, at % group);
    (0..group * group).map(element).collect()
}

/// Rotates each group of neighbouring elements in place, by radix-4 butterflies of strides 1, 4, 16, … in a fixed order of
/// operations: that of `wgsl/lib/butterfly.wgsl`, so that devices agree to the bit.
///
/// # Panics
/// If `group` is no size of a group or does not divide the number of values.
pub fn rotate(values: &mut [f32], group: usize) {
    assert!(is_group(group), "{group} is no power of 4 from 4 on");
    assert!(
        values.len().is_multiple_of(group),
        "groups of {group} do not fill the row"
    );
    for values in values.chunks_exact_mut(group) {
        let mut stride = 1;
        while stride < group {
            for block in values.chunks_exact_mut(4 * stride) {
                stage(block, stride);
            }
            stride *= 4;
        }
    }
}

/// Butterflies of one stride within `4 * stride` elements.
fn stage(block: &mut [f32], stride: usize) {
    let (a, rest) = block.split_at_mut(stride);
    let (b, rest) = rest.split_at_mut(stride);
    let (c, d) = rest.split_at_mut(stride);
    for (((a, b), c), d) in a.iter_mut().zip(b).zip(c).zip(d) {
        [*a, *b, *c, *d] = butterfly([*a, *b, *c, *d]);
    }
}

/// `h4 / 2` times four values. Halving is exact, so an adapter that fuses it with a sum changes nothing.
fn butterfly([a, b, c, d]: [f32; 4]) -> [f32; 4] {
    [
        0.5 * (a + b + c - d),
        0.5 * (a + b - c + d),
        0.5 * (a - b + c + d),
        0.5 * (b - a + c + d),
    ]
}

/// Smallest scale of a row: that of rows of zeros.
pub const MIN_SCALE: f32 = 1e-30;

/// The nearest codes of a row of finite values and their scale `s`, the largest magnitude over 127: `v = s * code`. Halves go
/// to the even code, as comfy-kitchen rounds them.
///
/// # Panics
/// If `codes` is not as long as `values`.
pub fn quantize_row(values: &[f32], codes: &mut [i8]) -> f32 {
    assert_eq!(values.len(), codes.len(), "a code for each value");
    let largest = values.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = (largest / 127.0).max(MIN_SCALE);
    for (code, v) in codes.iter_mut().zip(values) {
        *code = (v / scale).round_ties_even().clamp(-128.0, 127.0) as i8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_powers_of_four() {
        let groups: Vec<usize> = (0..5000).filter(|&g| is_group(g)).collect();
        assert_eq!(groups, [4, 16, 64, 256, 1024, 4096]);
    }

    #[test]
    fn butterflies_are_the_matrix() {
        for group in [4, 16, 64, 256, 1024] {
            let mut values: Vec<f32> = (0..2 * group).map(|i| (i * 37 % 101) as f32 - 50.0).collect();
            let x = values.clone();
            rotate(&mut values, group);
            for (at, v) in values.iter().enumerate() {
                let (first, i) = (at / group * group, at % group);
                let want: f64 = (0..group)
                    .map(|j| f64::from(entry(group, i, j)) * f64::from(x[first + j]))
                    .sum();
                assert!((f64::from(*v) - want).abs() < 2e-4, "{group}: {v} at {at}, not {want}");
            }
            rotate(&mut values, group);
            let back = values.iter().zip(&x).map(|(v, x)| (v - x).abs()).fold(0.0, f32::max);
            assert!(back < 1e-4, "{group}: turned twice, {back} off");
        }
    }

    #[test]
    fn a_constant_is_a_fixed_point() {
        for group in [4, 64, 4096] {
            let mut values = vec![3.0; group];
            rotate(&mut values, group);
            assert!(values.iter().all(|&v| v == 3.0), "{group}");
        }
    }

    #[test]
    fn codes_round_halves_to_even() {
        let mut codes = [0i8; 6];
        let scale = quantize_row(&[127.0, 0.5, 1.5, 2.5, -0.5, -127.0], &mut codes);
        assert_eq!((scale, codes), (1.0, [127, 0, 2, 2, 0, -127]));
        assert_eq!(quantize_row(&[0.0; 6], &mut codes), MIN_SCALE);
        assert_eq!(codes, [0; 6]);
    }
}

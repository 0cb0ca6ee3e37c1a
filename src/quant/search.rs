//! Scales that make the squared error of a group of values small.
//!
//! Rounding from end to end of the range is not best: a group with few values at its ends gains by a finer scale that cuts them
//! off. So a few scales around that one are tried; the codes of each fix the best scale for them by least squares.

/// Share of the range by which tried scales differ.
const STEP: f32 = 0.1;

/// The value of the largest magnitude, with its sign; 0 of none.
pub(super) fn largest(values: &[f32]) -> f32 {
    values
        .iter()
        .fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

/// The smallest and the largest value.
pub(super) fn range(values: &[f32]) -> (f32, f32) {
    values
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &v| (a.min(v), b.max(v)))
}

/// The nearest code in `first..=last`, small integers both.
pub(super) fn code(v: f32, inverse: f32, first: f32, last: f32) -> f32 {
    // Adding this leaves no bits for a fraction; `round` would be a call on processors that lack the instruction.
    const WHOLE: f32 = 12_582_912.0;
    // A NaN, as of 0 times infinity, becomes the first.
    (v * inverse).max(first).min(last) + WHOLE - WHOLE
}

/// Sums over values `v` and codes `q`, in lanes that a processor adds at once.
struct Sums {
    v: f64,
    q: f64,
    vv: f64,
    vq: f64,
    qq: f64,
}

impl Sums {
    /// Values are multiplied by `unit` before. Groups are whole eights.
    fn of(values: &[f32], unit: f32, code: impl Fn(f32) -> f32) -> Self {
        let mut lanes = [[0.0f32; 8]; 5];
        for eight in values.chunks_exact(8) {
            for (lane, v) in eight.iter().enumerate() {
                let v = v * unit;
                let q = code(v);
                let terms = [v, q, v * v, v * q, q * q];
                for (sums, term) in lanes.iter_mut().zip(terms) {
                    sums[lane] += term;
                }
            }
        }
        let [v, q, vv, vq, qq] = lanes.map(|sums| sums.iter().map(|&s| f64::from(s)).sum());
        Self { v, q, vv, vq, qq }
    }
}

/// A scale for codes of `-levels..levels`: `v ~ scale * q`. Its sign is such that the largest magnitude can be `-levels`.
pub(super) fn signed(values: &[f32], levels: f32) -> f32 {
    let largest = largest(values);
    let Some(unit) = unit(largest) else { return 0.0 };
    let mut best = (0.0, 0.0);
    for step in -9..=9 {
        let inverse = -(levels + STEP * step as f32) / (largest * unit);
        let Sums { vq, qq, .. } = Sums::of(values, unit, |v| code(v, inverse, -levels, levels - 1.0));
        // The error with the best scale `vq / qq` is `sum v^2 - vq^2 / qq`.
        let gain = if qq > 0.0 { vq * vq / qq } else { 0.0 };
        if gain > best.0 {
            best = (gain, vq / qq);
        }
    }
    (best.1 / f64::from(unit)) as f32
}

/// A scale and a minimum of 0 or less for codes of `0..=last`: `v ~ scale * q + minimum`.
pub(super) fn affine(values: &[f32], last: f32) -> (f32, f32) {
    let (min, max) = range(values);
    let (min, max) = (min.min(0.0), max.max(min.min(0.0)));
    let Some(unit) = unit(max - min) else { return (0.0, min) };
    let mut best = (f64::INFINITY, 0.0, 0.0);
    for step in -10..=10 {
        let inverse = (last + STEP * step as f32) / ((max - min) * unit);
        let sums = Sums::of(values, unit, |v| code(v - min * unit, inverse, 0.0, last));
        let (scale, minimum) = line(&sums, values.len() as f64);
        let Sums { v, q, vv, vq, qq } = sums;
        let cross = scale * minimum * q - scale * vq - minimum * v;
        let error = vv + scale * scale * qq + minimum * minimum * values.len() as f64 + 2.0 * cross;
        if error < best.0 {
            best = (error, scale, minimum);
        }
    }
    let unit = f64::from(unit);
    ((best.1 / unit) as f32, (best.2 / unit) as f32)
}

/// A power of two that brings values of this size near 1, so that squares neither overflow nor vanish; nothing where there is no
/// such size.
fn unit(size: f32) -> Option<f32> {
    // Beyond, reciprocals overflow or vanish.
    (f32::MIN_POSITIVE * 4.0..f32::MAX / 4.0)
        .contains(&size.abs())
        .then(|| f32::from_bits((254 - (size.to_bits() >> 23 & 255)) << 23))
}

/// The line through codes and values with the least squared error, through the origin where its minimum would be above 0.
fn line(sums: &Sums, n: f64) -> (f64, f64) {
    let &Sums { v, q, vq, qq, .. } = sums;
    let determinant = n * qq - q * q;
    if determinant > 0.0 {
        let (scale, minimum) = ((n * vq - v * q) / determinant, (v * qq - q * vq) / determinant);
        if minimum <= 0.0 {
            return (scale.max(0.0), minimum);
        }
    }
    (if qq > 0.0 { (vq / qq).max(0.0) } else { 0.0 }, 0.0)
}

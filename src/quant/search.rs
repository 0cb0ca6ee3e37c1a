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

/// The nearest code in `first..=last`.
pub(super) fn code(v: f32, inverse: f32, first: f32, last: f32) -> f32 {
    // A NaN, as of 0 times infinity, becomes the first.
    (v * inverse).round().max(first).min(last)
}

/// A scale for codes of `-levels..levels`: `v ~ scale * q`. Its sign is such that the largest magnitude can be `-levels`.
pub(super) fn signed(values: &[f32], levels: f32) -> f32 {
    let largest = largest(values);
    // Below, reciprocals overflow.
    if largest.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let mut best = (0.0f64, 0.0f64);
    for step in -9..=9 {
        let inverse = -(levels + STEP * step as f32) / largest;
        let (mut vq, mut qq) = (0.0f64, 0.0f64);
        for &v in values {
            let q = f64::from(code(v, inverse, -levels, levels - 1.0));
            vq += f64::from(v) * q;
            qq += q * q;
        }
        // The error with the best scale `vq / qq` is `sum v^2 - vq^2 / qq`.
        let gain = if qq > 0.0 { vq * vq / qq } else { 0.0 };
        if gain > best.0 {
            best = (gain, vq / qq);
        }
    }
    best.1 as f32
}

/// A scale and a minimum of 0 or less for codes of `0..=last`: `v ~ scale * q + minimum`.
pub(super) fn affine(values: &[f32], last: f32) -> (f32, f32) {
    let (min, max) = range(values);
    let (min, max) = (min.min(0.0), max.max(min.min(0.0)));
    if max - min < f32::MIN_POSITIVE {
        return (0.0, min);
    }
    let mut best = (f64::INFINITY, 0.0, 0.0);
    for step in -10..=10 {
        let inverse = (last + STEP * step as f32) / (max - min);
        let (scale, minimum) = least_squares(values, |v| code(v - min, inverse, 0.0, last));
        let error: f64 = values
            .iter()
            .map(|&v| {
                let q = f64::from(code(v - min, inverse, 0.0, last));
                (scale * q + minimum - f64::from(v)).powi(2)
            })
            .sum();
        if error < best.0 {
            best = (error, scale, minimum);
        }
    }
    (best.1 as f32, best.2 as f32)
}

/// The line through codes and values, through the origin where its minimum would be above 0.
fn least_squares(values: &[f32], code: impl Fn(f32) -> f32) -> (f64, f64) {
    let (mut v1, mut q1, mut vq, mut qq) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for &v in values {
        let (v, q) = (f64::from(v), f64::from(code(v)));
        v1 += v;
        q1 += q;
        vq += v * q;
        qq += q * q;
    }
    let n = values.len() as f64;
    let determinant = n * qq - q1 * q1;
    if determinant > 0.0 {
        let (scale, minimum) = ((n * vq - v1 * q1) / determinant, (v1 * qq - q1 * vq) / determinant);
        if minimum <= 0.0 {
            return (scale.max(0.0), minimum);
        }
    }
    (if qq > 0.0 { (vq / qq).max(0.0) } else { 0.0 }, 0.0)
}

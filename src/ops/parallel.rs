//! Loops of the CPU side: over threads, where this build has them, and over lanes.

/// Elements from which on a second thread pays.
const GRAIN: usize = 1 << 14;

/// Calls `f(start, piece)` for pieces that make up `output`; each begins at a multiple of `unit`.
pub(super) fn pieces(output: &mut [f32], unit: usize, f: impl Fn(usize, &mut [f32]) + Send + Sync) {
    #[cfg(feature = "native")]
    if output.len() > GRAIN {
        use rayon::prelude::*;
        let len = GRAIN.div_ceil(unit.max(1)) * unit.max(1);
        let parts = output.par_chunks_mut(len).enumerate();
        parts.for_each(|(i, piece)| f(i * len, piece));
        return;
    }
    let _ = (unit, GRAIN);
    f(0, output);
}

/// `output[i] = f(input[i])`.
pub(super) fn map(input: &[f32], output: &mut [f32], f: impl Fn(f32) -> f32 + Send + Sync) {
    pieces(output, 1, |start, piece| {
        for (y, x) in piece.iter_mut().zip(&input[start..]) {
            *y = f(*x);
        }
    });
}

/// Sums of `f`, in lanes of `f32` for short runs and in `f64` beyond, so that long rows keep their digits.
#[inline(always)]
pub(super) fn sums<const N: usize>(data: &[f32], f: impl Fn(f32) -> [f32; N]) -> [f64; N] {
    const LANES: usize = 16;
    let mut total = [0.0; N];
    for run in data.chunks(64 * LANES) {
        let mut lanes = [[0.0f32; LANES]; N];
        let (blocks, rest) = run.as_chunks::<LANES>();
        for block in blocks {
            for (i, &v) in block.iter().enumerate() {
                for (lane, term) in lanes.iter_mut().zip(f(v)) {
                    lane[i] += term;
                }
            }
        }
        for (i, &v) in rest.iter().enumerate() {
            for (lane, term) in lanes.iter_mut().zip(f(v)) {
                lane[i] += term;
            }
        }
        for (total, lane) in total.iter_mut().zip(lanes) {
            *total += f64::from(lane.iter().sum::<f32>());
        }
    }
    total
}

/// Mean, in a rounded part and the rest of it, and variance.
pub(super) fn moments(data: &[f32]) -> (f32, f32, f64) {
    let n = data.len() as f64;
    let [sum] = sums(data, |v| [v]);
    let mean = (sum / n) as f32;
    let [first, second] = sums(data, |v| [v - mean, (v - mean) * (v - mean)]);
    let rest = first / n;
    (mean, rest as f32, (second / n - rest * rest).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_far_from_zero_keep_their_digits() {
        let data: Vec<f32> = (0..100_001)
            .map(|i| 1000.0 + (i * 7919 % 1000) as f32 / 1000.0)
            .collect();
        let n = data.len() as f64;
        let mean = data.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = data.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        let (high, rest, got) = moments(&data);
        assert!((f64::from(high) + f64::from(rest) - mean).abs() < 1e-7);
        assert!((got / variance - 1.0).abs() < 1e-6);
    }

    #[test]
    fn nan_reaches_the_moments() {
        // The variance may not have it: whoever subtracts the mean does.
        assert!(moments(&[1.0, f32::NAN, 2.0]).0.is_nan());
    }
}

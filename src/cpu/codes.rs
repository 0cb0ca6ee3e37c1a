//! Products of signed codes, exact, by products of floats.

use super::gemm::{Mat, Threads, gemm};

/// Rows of `w` that are widened together.
const ROWS: usize = 64;
/// Codes of a row in one product: sums of so many products of codes are whole numbers that `f32` holds, in any order.
const EXACT: usize = 1024;

/// Calls `put(i, j, sum_k x[i, k] * w[j, k])` for codes `x` of `[m, k]`, as floats, and `w` of `[n, k]`, as bytes.
pub(crate) fn multiply(k: usize, x: &[f32], w: &[u8], mut put: impl FnMut(usize, usize, i32)) {
    let m = x.len() / k;
    let mut rows = vec![0.0; ROWS * k];
    let mut sums = vec![0i32; m * ROWS];
    let mut part = vec![0.0; m * ROWS];
    for (block, codes) in w.chunks(ROWS * k).enumerate() {
        let count = codes.len() / k;
        let (rows, sums, part) = (&mut rows[..codes.len()], &mut sums[..m * count], &mut part[..m * count]);
        rows.iter_mut()
            .zip(codes)
            .for_each(|(v, &code)| *v = f32::from(code as i8));
        sums.fill(0);
        for first in (0..k).step_by(EXACT) {
            let (a, b) = (Mat::rows(&x[first..], k), Mat::rows(&rows[first..], k).t());
            let depth = EXACT.min(k - first);
            gemm([m, count, depth], a, b, part, count, 1.0, 0.0, Threads::All);
            sums.iter_mut().zip(part.iter()).for_each(|(sum, &v)| *sum += v as i32);
        }
        for (i, sums) in sums.chunks_exact(count).enumerate() {
            sums.iter()
                .enumerate()
                .for_each(|(j, &sum)| put(i, block * ROWS + j, sum));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_largest_codes_are_exact() {
        let k = 3001;
        let x: Vec<f32> = (0..2 * k).map(|i| if i < k { -128.0 } else { 127.0 }).collect();
        let w: Vec<u8> = (0..70 * k).map(|i| if i % 7 == 0 { 127 } else { 128 }).collect();
        let mut seen = 0;
        multiply(k, &x, &w, |i, j, sum| {
            let row = |l: usize| i32::from(w[j * k + l] as i8) * x[i * k + l] as i32;
            assert_eq!(sum, (0..k).map(row).sum::<i32>(), "{i}, {j}");
            seen += 1;
        });
        assert_eq!(seen, 140);
    }
}

//! Matrix products in `f32` by the `gemm` crate, behind slices with checked lengths.

use gemm::Parallelism;

/// Elements of a slice seen as a matrix: `data[r * row + c * col]` in row `r`, column `c`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mat<'a> {
    data: &'a [f32],
    row: usize,
    col: usize,
}

impl<'a> Mat<'a> {
    /// Rows of `stride` elements.
    pub(crate) fn rows(data: &'a [f32], stride: usize) -> Self {
        Self {
            data,
            row: stride,
            col: 1,
        }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn t(self) -> Self {
        Self {
            row: self.col,
            col: self.row,
            ..self
        }
    }

    /// Whether `rows x cols` elements lie within the slice.
    fn holds(&self, rows: usize, cols: usize) -> bool {
        reaches(self.data.len(), rows, self.row, cols, self.col)
    }
}

/// Who works on a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The calling thread, for callers that are parallel themselves.
    One,
    /// All threads of the pool, where this build has threads.
    All,
}

/// `c = scale * a b + keep * c` for `a` of `m x k`, `b` of `k x n`, and `c` in rows of `stride` elements.
///
/// With `keep` zero the old contents of `c` are not read.
///
/// # Panics
/// If a matrix reaches beyond its slice, or if rows of `c` overlap.
#[expect(clippy::too_many_arguments, reason = "the operands and sizes of a matrix product")]
pub(crate) fn gemm(
    [m, n, k]: [usize; 3],
    a: Mat<'_>,
    b: Mat<'_>,
    c: &mut [f32],
    stride: usize,
    scale: f32,
    keep: f32,
    threads: Threads,
) {
    assert!(a.holds(m, k), "a reaches beyond its slice");
    assert!(b.holds(k, n), "b reaches beyond its slice");
    assert!(reaches(c.len(), m, stride, n, 1), "c reaches beyond its slice");
    assert!(stride >= n || m <= 1, "rows of c overlap");
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        #[cfg(feature = "native")]
        Threads::All => Parallelism::Rayon(0),
        #[cfg(not(feature = "native"))]
        Threads::All => Parallelism::None,
    };
    #[expect(unsafe_code, reason = "the only entry point of the crate takes raw pointers")]
    // SAFETY: the assertions above prove that every element which the sizes and strides reach lies within its slice. `c` is
    // borrowed mutably, so it overlaps neither input, and its rows do not overlap each other. A slice is never longer than
    // `isize::MAX` bytes, so the strides fit.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            stride as isize,
            keep != 0.0,
            a.data.as_ptr(),
            a.col as isize,
            a.row as isize,
            b.data.as_ptr(),
            b.col as isize,
            b.row as isize,
            keep,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Whether the last of `rows x cols` elements with these strides lies below `len`.
fn reaches(len: usize, rows: usize, row: usize, cols: usize, col: usize) -> bool {
    if rows == 0 || cols == 0 {
        return true;
    }
    let last = |count: usize, stride: usize| (count - 1).checked_mul(stride);
    match (last(rows, row), last(cols, col)) {
        (Some(r), Some(c)) => r.checked_add(c).is_some_and(|index| index < len),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(len: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 % 17) as f32 - 8.0) / 8.0).collect()
    }

    #[test]
    fn products_match_loops() {
        for threads in [Threads::One, Threads::All] {
            for [m, n, k] in [
                [1, 1, 1],
                [3, 5, 7],
                [1, 70, 33],
                [70, 1, 33],
                [33, 65, 130],
                [4, 4, 0],
                [5, 6, 2],
            ] {
                let (a, b) = (ramp(m * k), ramp(n * k));
                let product = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[j * k + l]).sum::<f32>();
                // NaN shows elements that are not written, or read before.
                let stride = n + 2;
                let mut c = vec![f32::NAN; m * stride];
                let (ma, mb) = (Mat::rows(&a, k), Mat::rows(&b, k).t());
                gemm([m, n, k], ma, mb, &mut c, stride, 2.0, 0.0, threads);
                gemm([m, n, k], ma, mb, &mut c, stride, 1.0, 0.5, threads);
                for (i, row) in c.chunks(stride).enumerate() {
                    for (j, v) in row.iter().enumerate() {
                        match j < n {
                            true => assert!((v - 2.0 * product(i, j)).abs() < 1e-4, "{m}x{n}x{k} at {i}, {j}"),
                            false => assert!(v.is_nan()),
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "b reaches beyond its slice")]
    fn short_slices_are_refused() {
        let (a, b) = (ramp(6), ramp(5));
        gemm(
            [2, 2, 3],
            Mat::rows(&a, 3),
            Mat::rows(&b, 3).t(),
            &mut [0.0; 4],
            2,
            1.0,
            0.0,
            Threads::One,
        );
    }
}

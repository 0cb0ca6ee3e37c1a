//! Products with packed weights, decoded a few rows at a time.

use super::gemm::{Mat, Threads, gemm};
use crate::tensor::{DType, View};

/// Rows of `w` that are decoded together: enough for the product to reach its speed, few enough to stay in cache.
const ROWS: usize = 64;

/// `y[i, j] = sum_k x[i, k] * w[j, k]` for `x` of `[m, k]` and packed `w` of `[n, k]`.
pub(crate) fn multiply([m, n, k]: [usize; 3], x: &[f32], w: View<'_>, y: &mut [f32]) {
    let bytes = w.ty.dtype.bytes(k);
    let mut rows = vec![0.0; ROWS.min(n) * k];
    for j in (0..n).step_by(ROWS) {
        let count = ROWS.min(n - j);
        let rows = &mut rows[..count * k];
        decode_into(w.ty.dtype, &w.blocks[j * bytes..(j + count) * bytes], rows);
        let (a, b) = (Mat::rows(x, k), Mat::rows(rows, k).t());
        gemm([m, count, k], a, b, &mut y[j..], n, 1.0, 0.0, Threads::All);
    }
}

fn decode_into(dtype: DType, blocks: &[u8], values: &mut [f32]) {
    match dtype {
        DType::I8 => values
            .iter_mut()
            .zip(blocks)
            .for_each(|(v, &q)| *v = f32::from(q as i8)),
        _ => crate::quant::decode_into(dtype, blocks, values),
    }
}

//! Products with packed weights. Rows are decoded a few at a time into memory near the core, so that what crosses the bus is the
//! packed bytes.

use super::gemm::{Mat, Threads, gemm};
use crate::quant;
use crate::tensor::{DType, View};
use pulp::Arch;

/// Values of `w` that are decoded together: what stays in cache beside the rows of `x` in use.
const CHUNK: usize = 1 << 18;
/// With so few rows of `x` each row of `w` is multiplied as soon as it is decoded.
const FEW: usize = 4;

/// `y[i, j] = sum_k x[i, k] * w[j, k]` for `x` of `[m, k]` and packed `w` of `[n, k]`.
pub(crate) fn multiply([m, n, k]: [usize; 3], x: &[f32], w: View<'_>, y: &mut [f32]) {
    let bytes = w.ty.dtype.bytes(k);
    let rows = (CHUNK / k).clamp(1, 64).min(n);
    // Each chunk of rows gives columns of y, which are put in place afterwards.
    let columns = |blocks: &[u8]| {
        let mut part = vec![0.0; m * blocks.len() / bytes];
        match m <= FEW {
            true => dots(m, k, x, w.ty.dtype, blocks, &mut part),
            false => panel([m, k], x, w.ty.dtype, blocks, &mut part),
        }
        part
    };
    let parts = chunks(w.blocks, rows * bytes, columns);
    for (i, row) in y.chunks_exact_mut(n).enumerate() {
        for (part, to) in parts.iter().zip(row.chunks_mut(rows)) {
            to.copy_from_slice(&part[i * to.len()..][..to.len()]);
        }
    }
}

#[cfg(feature = "native")]
fn chunks<T: Send>(bytes: &[u8], size: usize, f: impl Fn(&[u8]) -> T + Send + Sync) -> Vec<T> {
    use rayon::prelude::*;
    bytes.par_chunks(size).map(f).collect()
}

#[cfg(not(feature = "native"))]
fn chunks<T>(bytes: &[u8], size: usize, f: impl Fn(&[u8]) -> T) -> Vec<T> {
    bytes.chunks(size).map(f).collect()
}

/// Decodes all rows, then multiplies.
fn panel([m, k]: [usize; 2], x: &[f32], dtype: DType, blocks: &[u8], part: &mut [f32]) {
    let count = part.len() / m;
    let mut rows = vec![0.0; count * k];
    decode(dtype, blocks, &mut rows);
    let (a, b) = (Mat::rows(x, k), Mat::rows(&rows, k).t());
    gemm([m, count, k], a, b, part, count, 1.0, 0.0, Threads::One);
}

/// Decodes a row and multiplies it with the few rows of `x`.
fn dots(m: usize, k: usize, x: &[f32], dtype: DType, blocks: &[u8], part: &mut [f32]) {
    let count = part.len() / m;
    let mut row = vec![0.0; k];
    for (j, blocks) in blocks.chunks_exact(dtype.bytes(k)).enumerate() {
        decode(dtype, blocks, &mut row);
        for (i, x) in x.chunks_exact(k).enumerate() {
            part[i * count + j] = dot(x, &row);
        }
    }
}

fn decode(dtype: DType, blocks: &[u8], values: &mut [f32]) {
    if dtype != DType::I8 {
        return quant::decode_into(dtype, blocks, values);
    }
    // Rows need not be whole blocks of codes.
    const CODES: usize = 64;
    let whole = blocks.len() / CODES * CODES;
    quant::each::<CODES, CODES>(blocks, values, widen);
    widen(&blocks[whole..], &mut values[whole..]);
}

#[inline(always)]
fn widen(codes: &[u8], values: &mut [f32]) {
    values.iter_mut().zip(codes).for_each(|(v, &q)| *v = f32::from(q as i8));
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    Arch::new().dispatch(Dot { a, b })
}

/// A closure here would not be compiled for the vectors of the machine.
struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl pulp::NullaryFnOnce for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn call(self) -> f32 {
        // Independent sums, so that they fill vectors.
        const LANES: usize = 64;
        let mut sums = [0.0f32; LANES];
        let ((a, a_rest), (b, b_rest)) = (self.a.as_chunks::<LANES>(), self.b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
                *s = a.mul_add(*b, *s);
            }
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                sums[i] += sums[i + width];
            }
        }
        sums[0] + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
    }
}

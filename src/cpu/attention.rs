//! Attention on the CPU: blocks of queries stream over blocks of keys, so that no row of scores is ever whole.

use super::gemm::{Mat, Threads, gemm};
use crate::ops::{MASKED, math::exp};

/// Keys in a block.
const KEYS: usize = 256;

/// Sizes and strides of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub(crate) batches: usize,
    pub(crate) tq: usize,
    pub(crate) tk: usize,
    /// Heads of the queries; a multiple of `hk`.
    pub(crate) hq: usize,
    pub(crate) hk: usize,
    pub(crate) d: usize,
    /// Strides of the mask along batches, heads and queries; zero along an axis of one.
    pub(crate) mask: [usize; 3],
    pub(crate) causal: bool,
    pub(crate) scale: f32,
}

/// Fills `y` of `[b, tq, hq, d]`.
pub(crate) fn attention(heads: &Heads, q: &[f32], k: &[f32], v: &[f32], mask: Option<&[f32]>, y: &mut [f32]) {
    let Heads { tq, tk, hq, hk, d, .. } = *heads;
    // Blocks as large as leaves several for each thread.
    let block = tq.div_ceil(8).clamp(8, 64);
    let row = hq * d;
    let run = |b: usize, n: usize, y: &mut [f32], scratch: &mut Scratch| {
        let i0 = n * block;
        for h in 0..hq {
            let kv = (b * tk * hk + h / (hq / hk)) * d;
            let part = Block {
                heads,
                b,
                h,
                i0,
                rows: y.len() / row,
                q: Mat::rows(&q[(b * tq + i0) * row + h * d..], row),
                k: &k[kv..],
                v: &v[kv..],
                mask,
            };
            part.run(&mut y[h * d..], scratch);
        }
    };
    #[cfg(feature = "native")]
    {
        use rayon::prelude::*;
        let batches = y.par_chunks_mut(tq * row).enumerate();
        batches.for_each(|(b, y)| {
            let blocks = y.par_chunks_mut(block * row).enumerate();
            blocks.for_each_init(Scratch::default, |scratch, (n, y)| run(b, n, y, scratch));
        });
    }
    #[cfg(not(feature = "native"))]
    {
        let mut scratch = Scratch::default();
        for (b, y) in y.chunks_mut(tq * row).enumerate() {
            for (n, y) in y.chunks_mut(block * row).enumerate() {
                run(b, n, y, &mut scratch);
            }
        }
    }
}

#[derive(Default)]
struct Scratch {
    /// Scores, then weights, of a block of queries and a block of keys.
    scores: Vec<f32>,
    /// Largest score of each query so far.
    high: Vec<f32>,
    /// Sum of weights of each query so far.
    sum: Vec<f32>,
}

/// Some queries of one head.
struct Block<'a> {
    heads: &'a Heads,
    b: usize,
    h: usize,
    i0: usize,
    rows: usize,
    q: Mat<'a>,
    k: &'a [f32],
    v: &'a [f32],
    mask: Option<&'a [f32]>,
}

impl Block<'_> {
    /// Keys that query `i` may see.
    fn visible(&self, i: usize) -> usize {
        let Heads { tq, tk, causal, .. } = *self.heads;
        if causal {
            (i + tk + 1).saturating_sub(tq).min(tk)
        } else {
            tk
        }
    }

    /// `y` begins at this head in the first row.
    fn run(&self, y: &mut [f32], scratch: &mut Scratch) {
        let Heads { hq, hk, d, scale, .. } = *self.heads;
        let (row, kv_row) = (hq * d, hk * d);
        scratch.high.clear();
        scratch.high.resize(self.rows, f32::MIN);
        scratch.sum.clear();
        scratch.sum.resize(self.rows, 0.0);
        for y in y.chunks_mut(row) {
            y[..d].fill(0.0);
        }
        let keys = self.visible(self.i0 + self.rows - 1);
        for j0 in (0..keys).step_by(KEYS) {
            let n = KEYS.min(keys - j0);
            scratch.scores.resize(self.rows * n, 0.0);
            let k = Mat::rows(&self.k[j0 * kv_row..], kv_row).t();
            gemm(
                [self.rows, n, d],
                self.q,
                k,
                &mut scratch.scores,
                n,
                scale,
                0.0,
                Threads::One,
            );
            for (r, (weights, y)) in scratch.scores.chunks_exact_mut(n).zip(y.chunks_mut(row)).enumerate() {
                self.mask_row(r, j0, weights);
                let high = lanes_max(scratch.high[r], weights);
                let keep = exp(scratch.high[r] - high);
                scratch.high[r] = high;
                for w in weights.iter_mut() {
                    *w = if *w <= MASKED { 0.0 } else { exp(*w - high) };
                }
                scratch.sum[r] = scratch.sum[r] * keep + lanes_sum(weights);
                if keep != 1.0 {
                    y[..d].iter_mut().for_each(|v| *v *= keep);
                }
            }
            let v = Mat::rows(&self.v[j0 * kv_row..], kv_row);
            let weights = Mat::rows(&scratch.scores, n);
            gemm([self.rows, d, n], weights, v, y, row, 1.0, 1.0, Threads::One);
        }
        for (y, &sum) in y.chunks_mut(row).zip(&scratch.sum) {
            // A query that sees no key keeps its zeros.
            let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
            y[..d].iter_mut().for_each(|v| *v *= factor);
        }
    }

    /// Adds the mask to the scores of query `r` of the block from key `j0` on, and hides the keys that it may not see.
    fn mask_row(&self, r: usize, j0: usize, scores: &mut [f32]) {
        let i = self.i0 + r;
        if let Some(mask) = self.mask {
            let [b, h, q] = self.heads.mask;
            let mask = &mask[self.b * b + self.h * h + i * q + j0..];
            scores.iter_mut().zip(mask).for_each(|(s, m)| *s += m);
        }
        let visible = self.visible(i).saturating_sub(j0).min(scores.len());
        scores[visible..].fill(f32::MIN);
    }
}

/// The largest of `high` and the values, NaN aside.
fn lanes_max(high: f32, values: &[f32]) -> f32 {
    let larger = |m: f32, v: f32| if v > m { v } else { m };
    let (blocks, rest) = values.as_chunks::<16>();
    let mut lanes = [high; 16];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(l, &v)| *l = larger(*l, v));
    }
    lanes.iter().chain(rest).copied().fold(high, larger)
}

/// A sum in lanes, which is both faster and closer than one by one.
fn lanes_sum(values: &[f32]) -> f32 {
    let (blocks, rest) = values.as_chunks::<16>();
    let mut lanes = [0.0; 16];
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(l, v)| *l += v);
    }
    lanes.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

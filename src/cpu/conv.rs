//! Convolution on the CPU: patches of a block of pixels as columns of a matrix, times the filters.

use super::gemm::{Mat, Threads, gemm};
use crate::ops::FusedValues;

/// Elements of the patches of a block: one MiB, so that most of it stays in the cache of a core.
const BLOCK: usize = 1 << 18;

/// Sizes of a convolution; pairs are rows, then columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) batches: usize,
    pub(crate) ci: usize,
    pub(crate) co: usize,
    pub(crate) x: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) y: [usize; 2],
    pub(crate) stride: [usize; 2],
    /// Padding above and to the left.
    pub(crate) before: [usize; 2],
}

impl Sizes {
    /// Elements of a filter, and of a patch.
    pub(crate) fn k(&self) -> usize {
        self.ci * self.kernel[0] * self.kernel[1]
    }

    /// Pixels of a picture of the output.
    pub(crate) fn pixels(&self) -> usize {
        self.y[0] * self.y[1]
    }

    /// Whether patches are the pixels themselves.
    fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.x == self.y && self.stride == [1, 1] && self.before == [0, 0]
    }
}

/// Fills `y` of `[n, co, p, q]`.
pub(crate) fn convolve(s: &Sizes, x: &[f32], w: &[f32], fused: &FusedValues<'_>, y: &mut [f32]) {
    let (k, pixels) = (s.k(), s.pixels());
    if s.co == 0 || pixels == 0 {
        return;
    }
    let x_len = s.ci * s.x[0] * s.x[1];
    for (b, y) in y.chunks_exact_mut(s.co * pixels).enumerate() {
        let (x, first) = (&x[b * x_len..][..x_len], b * s.co * pixels);
        if s.is_pointwise() {
            gemm(
                [s.co, pixels, k],
                Mat::rows(w, k),
                Mat::rows(x, pixels),
                y,
                pixels,
                1.0,
                0.0,
                Threads::All,
            );
            fused.finish_all_planes(y, pixels, first);
            continue;
        }
        let len = block_len(s);
        each_block(y, pixels, len, |start, rows, scratch| {
            let count = rows.first().map_or(0, |row| row.len());
            scratch.resize((k + s.co) * len, 0.0);
            let (patches, sums) = scratch.split_at_mut(k * len);
            fill_patches(s, x, start, count, patches);
            gemm(
                [s.co, count, k],
                Mat::rows(w, k),
                Mat::rows(patches, count),
                sums,
                count,
                1.0,
                0.0,
                Threads::One,
            );
            for (o, (row, sums)) in rows.iter_mut().zip(sums.chunks_exact_mut(count)).enumerate() {
                fused.finish_plane(sums, o, first + o * pixels + start);
                row.copy_from_slice(sums);
            }
        });
    }
}

/// Pixels of a block: few enough for a cache, and for every thread to have several blocks.
fn block_len(s: &Sizes) -> usize {
    let fits = (BLOCK / s.k()).clamp(64, 4096);
    #[cfg(feature = "native")]
    let share = s.pixels().div_ceil(2 * rayon::current_num_threads());
    #[cfg(not(feature = "native"))]
    let share = s.pixels();
    // Whole vectors, so that few columns are left over for slower code.
    fits.min(share).next_multiple_of(16)
}

/// Calls `f(start, rows, scratch)` for each block of columns of `y`, whose rows have `pixels` elements.
fn each_block<F>(y: &mut [f32], pixels: usize, len: usize, f: F)
where
    F: Fn(usize, &mut [&mut [f32]], &mut Vec<f32>) + Send + Sync,
{
    let mut blocks: Vec<Vec<&mut [f32]>> = (0..pixels.div_ceil(len)).map(|_| Vec::new()).collect();
    for row in y.chunks_exact_mut(pixels) {
        for (block, part) in blocks.iter_mut().zip(row.chunks_mut(len)) {
            block.push(part);
        }
    }
    #[cfg(feature = "native")]
    {
        use rayon::prelude::*;
        let blocks = blocks.par_iter_mut().enumerate();
        blocks.for_each_init(Vec::new, |scratch, (i, rows)| f(i * len, rows, scratch));
    }
    #[cfg(not(feature = "native"))]
    {
        let mut scratch = Vec::new();
        for (i, rows) in blocks.iter_mut().enumerate() {
            f(i * len, rows, &mut scratch);
        }
    }
}

/// One row per element of a patch, one column for each of `count` pixels from `start` on.
fn fill_patches(s: &Sizes, x: &[f32], start: usize, count: usize, patches: &mut [f32]) {
    let mut rows = patches.chunks_exact_mut(count);
    for plane in x.chunks_exact(s.x[0] * s.x[1]) {
        for i in 0..s.kernel[0] {
            for j in 0..s.kernel[1] {
                if let Some(row) = rows.next() {
                    fill_row(s, plane, [i, j], start, row);
                }
            }
        }
    }
}

/// Element `[i, j]` of the patches of successive pixels.
fn fill_row(s: &Sizes, plane: &[f32], [i, j]: [usize; 2], start: usize, mut row: &mut [f32]) {
    let [width, stride] = [s.x[1], s.stride[1]];
    // Outputs whose column lies in the picture.
    let from = s.before[1].saturating_sub(j).div_ceil(stride);
    let to = (width + s.before[1]).saturating_sub(j).div_ceil(stride);
    let (mut p, mut q) = (start / s.y[1], start % s.y[1]);
    while !row.is_empty() {
        let (part, rest) = row.split_at_mut((s.y[1] - q).min(row.len()));
        row = rest;
        let line = (p * s.stride[0] + i).wrapping_sub(s.before[0]);
        let end = q + part.len();
        let (from, to) = (from.clamp(q, end), to.clamp(q, end));
        if line >= s.x[0] || from >= to {
            part.fill(0.0);
        } else {
            part[..from - q].fill(0.0);
            part[to - q..].fill(0.0);
            let inner = &mut part[from - q..to - q];
            let source = &plane[line * width + from * stride + j - s.before[1]..];
            if stride == 1 {
                inner.copy_from_slice(&source[..inner.len()]);
            } else {
                inner
                    .iter_mut()
                    .zip(source.iter().step_by(stride))
                    .for_each(|(v, x)| *v = *x);
            }
        }
        (p, q) = (p + 1, 0);
    }
}

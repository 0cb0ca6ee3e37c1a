//! Convolutions as matrix products of filters and patches, a block of pixels at a time.

use super::gemm::{Mat, Threads, gemm};

/// Values of patches that are written out at once: 4 MiB, which stays in cache.
const PATCHES: usize = 1 << 20;

/// Sizes of a convolution of one picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Channels, height and width of the picture.
    pub(crate) input: [usize; 3],
    /// Channels, height and width of the result.
    pub(crate) output: [usize; 3],
    /// Height and width of a filter.
    pub(crate) kernel: [usize; 2],
    /// Steps down and across.
    pub(crate) stride: [usize; 2],
    /// Zeros above and to the left.
    pub(crate) before: [usize; 2],
}

impl Sizes {
    /// Whether the patches are the picture itself.
    fn is_pointwise(&self) -> bool {
        self.kernel == [1, 1] && self.stride == [1, 1] && self.before == [0, 0] && self.input[1..] == self.output[1..]
    }
}

/// `y[o, p] = sum_k w[o, k] patch[k, p]` for one picture; the contents of `y` do not matter.
pub(crate) fn conv(sizes: &Sizes, x: &[f32], w: &[f32], y: &mut [f32]) {
    let [filters, rows, cols] = sizes.output;
    let depth = sizes.input[0] * sizes.kernel[0] * sizes.kernel[1];
    let plane = rows * cols;
    let w = Mat::rows(w, depth);
    if sizes.is_pointwise() {
        gemm(
            [filters, plane, depth],
            w,
            Mat::rows(x, plane),
            y,
            plane,
            1.0,
            0.0,
            Threads::All,
        );
        return;
    }
    let block = (PATCHES / depth.max(1)).clamp(64, plane.max(64)).min(plane);
    let mut patches = vec![0.0; depth * block];
    for start in (0..plane).step_by(block.max(1)) {
        let count = block.min(plane - start);
        gather(sizes, x, start, &mut patches[..depth * count], count);
        let patches = Mat::rows(&patches, count);
        let y = &mut y[start..];
        gemm([filters, count, depth], w, patches, y, plane, 1.0, 0.0, Threads::All);
    }
}

/// Writes the patches of `count` pixels from `start` on: a row per channel and place in the filter, a column per pixel.
fn gather(sizes: &Sizes, x: &[f32], start: usize, patches: &mut [f32], count: usize) {
    let fill = |(k, row): (usize, &mut [f32])| gather_row(sizes, x, k, start, row);
    #[cfg(feature = "native")]
    {
        use rayon::prelude::*;
        patches.par_chunks_exact_mut(count).enumerate().for_each(fill);
    }
    #[cfg(not(feature = "native"))]
    patches.chunks_exact_mut(count).enumerate().for_each(fill);
}

fn gather_row(sizes: &Sizes, x: &[f32], k: usize, start: usize, row: &mut [f32]) {
    let ([kh, kw], [sy, sx], [top, left]) = (sizes.kernel, sizes.stride, sizes.before);
    let ([_, height, width], [_, _, cols]) = (sizes.input, sizes.output);
    let (channel, u, v) = (k / (kh * kw), k / kw % kh, k % kw);
    let picture = &x[channel * height * width..][..height * width];
    let mut at = 0;
    while at < row.len() {
        let (r, c) = ((start + at) / cols, (start + at) % cols);
        let run = (cols - c).min(row.len() - at);
        let out = &mut row[at..at + run];
        at += run;
        let line = (r * sy + u).checked_sub(top).filter(|&line| line < height);
        let Some(line) = line.map(|line| &picture[line * width..][..width]) else {
            out.fill(0.0);
            continue;
        };
        // Columns `first..last` of the run lie within the picture.
        let first = left.saturating_sub(v).div_ceil(sx).clamp(c, c + run) - c;
        let last = (width + left).saturating_sub(v).div_ceil(sx).clamp(c + first, c + run) - c;
        out[..first].fill(0.0);
        out[last..].fill(0.0);
        if first < last {
            let from = (c + first) * sx + v - left;
            if sx == 1 {
                out[first..last].copy_from_slice(&line[from..from + last - first]);
            } else {
                let picked = line[from..].iter().step_by(sx);
                out[first..last].iter_mut().zip(picked).for_each(|(y, x)| *y = *x);
            }
        }
    }
}

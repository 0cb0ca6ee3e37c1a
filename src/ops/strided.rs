//! Copies with strides: what permutations, slices, patches and repeats have in common.

use super::flat::flat;
use super::parallel::pieces;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::op::Way;
use crate::tensor::DType;
use bytemuck::{Pod, Zeroable};

const RANK: usize = 6;

/// `y[i] = x[offset + sum of index * stride]` over the extents of `y`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Strided {
    offset: usize,
    /// Extent of `y` and stride in `x` of each axis, outermost first; never more than [`RANK`] of them.
    axes: Vec<(usize, usize)>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    offset: u32,
    extents: [u32; RANK - 1],
    strides: [u32; RANK],
}

impl Strided {
    /// Merges axes that one stride walks through; extents of 1 go.
    pub(super) fn new(offset: usize, axes: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut merged: Vec<(usize, usize)> = Vec::new();
        for (extent, stride) in axes {
            match merged.last_mut() {
                _ if extent == 1 => {}
                Some(last) if last.1 == extent * stride => *last = (last.0 * extent, stride),
                _ => merged.push((extent, stride)),
            }
        }
        Self { offset, axes: merged }
    }

    fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.0).product()
    }

    /// The only way to run it: all time goes into memory.
    pub(super) fn ways(&self, dtype: DType, caps: &Caps) -> Vec<Way> {
        let count = self.count();
        let mut params = Params {
            count: count as u32,
            offset: self.offset as u32,
            extents: [1; RANK - 1],
            strides: [0; RANK],
        };
        for (i, &(extent, stride)) in self.axes.iter().rev().enumerate() {
            params.strides[RANK - 1 - i] = stride as u32;
            // The outermost extent follows from the count.
            if i + 1 < RANK {
                params.extents[RANK - 2 - i] = extent as u32;
            }
        }
        let kernel = KernelSpec::new(wgsl!("ops/strided")).elem(dtype);
        vec![Way::baseline(flat(kernel, &params, count, caps).inputs(1))]
    }

    /// The copy on the CPU.
    pub(super) fn copy(&self, x: &[f32], y: &mut [f32]) {
        let &(inner, stride) = self.axes.last().unwrap_or(&(1, 1));
        let outer = &self.axes[..self.axes.len().saturating_sub(1)];
        pieces(y, inner, |start, piece| {
            for (row, run) in (start / inner..).zip(piece.chunks_mut(inner)) {
                let (mut rest, mut at) = (row, self.offset);
                for &(extent, stride) in outer.iter().rev() {
                    at += rest % extent * stride;
                    rest /= extent;
                }
                if stride == 1 {
                    run.copy_from_slice(&x[at..at + run.len()]);
                } else {
                    run.iter_mut().enumerate().for_each(|(i, v)| *v = x[at + i * stride]);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_merge_where_one_stride_walks_through() {
        assert_eq!(Strided::new(0, [(2, 12), (3, 4), (4, 1)]).axes, [(24, 1)]);
        assert_eq!(Strided::new(0, [(1, 7), (4, 1), (3, 4)]).axes, [(4, 1), (3, 4)]);
        // A repeat is an axis of stride 0.
        assert_eq!(Strided::new(0, [(5, 1), (2, 0)]).axes, [(5, 1), (2, 0)]);
    }
}

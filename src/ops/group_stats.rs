//! `group_stats`: mean and variance of each chunk of each group of channels, over a part of the picture.

use super::is_activation;
use super::norm::far_from_zero;
use super::norm::radix;
use super::parallel::{pieces, sums};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;

/// Invocations of a workgroup and elements of each: their product is a chunk.
const WG: usize = 256;
const PER: usize = 16;

/// Mean, variance and share of the core in each run of [`GroupStats::CHUNK`] elements of each group of channels. The core is a
/// rectangle that is given before a run, so that each part of a picture is counted once where tiles overlap.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupStats {
    /// Groups; they divide the channels.
    pub groups: usize,
    /// Height and width in the unit of the core.
    pub units: [usize; 2],
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    length: u32,
    chunks: u32,
    count: u32,
    height: u32,
    width: u32,
    units_y: u32,
    units_x: u32,
}

/// Sizes of the groups of a tensor.
struct Sizes {
    rows: usize,
    length: usize,
    chunks: usize,
    height: usize,
    width: usize,
}

impl GroupStats {
    /// Elements of a chunk.
    pub const CHUNK: usize = WG * PER;

    fn sizes(&self, shape: &[usize]) -> Sizes {
        let length = shape[1] / self.groups * shape[2] * shape[3];
        Sizes {
            rows: shape[0] * self.groups,
            length,
            chunks: length.div_ceil(Self::CHUNK),
            height: shape[2],
            width: shape[3],
        }
    }

    /// Rows and columns of the core.
    fn core(&self, core: &[f32], sizes: &Sizes) -> [Range<usize>; 2] {
        let edge = |i: usize, extent: usize, units: usize| core[i] as usize * extent / units.max(1);
        [
            edge(0, sizes.height, self.units[0])..edge(1, sizes.height, self.units[0]),
            edge(2, sizes.width, self.units[1])..edge(3, sizes.width, self.units[1]),
        ]
    }
}

/// Rounding may make a variance negative; a NaN must stay one, which `max` would not let it.
fn variance(v: f64) -> f64 {
    if v < 0.0 { 0.0 } else { v }
}

impl Graph {
    /// Statistics of the groups of channels of `x`, `[n, c, h, w]`, within `core`: `u32` `[4]` with the first and the end of its
    /// rows and of its columns, in units of which the picture has `units`. The result is `f32` `[n * groups, chunks, 3]`: mean,
    /// variance, and elements of the core as a share of [`GroupStats::CHUNK`].
    ///
    /// # Errors
    /// If the groups do not divide the channels, or `x` is no activation of rank 4.
    pub fn group_stats(
        &mut self,
        x: Value,
        core: Value,
        groups: usize,
        units: [usize; 2],
    ) -> Result<Value, ShapeError> {
        self.push(GroupStats { groups, units }, &[x, core])
    }
}

impl Op for GroupStats {
    fn name(&self) -> &'static str {
        "group_stats"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, core]
                if is_activation(x)
                    && x.shape.len() == 4
                    && self.groups > 0
                    && x.shape[1].is_multiple_of(self.groups)
                    && !self.units.contains(&0)
                    && *core == TensorType::new(DType::U32, [4]) =>
            {
                let Sizes { rows, chunks, .. } = self.sizes(&x.shape);
                Ok(TensorType::new(DType::F32, [rows, chunks, 3]))
            }
            _ => Err(ShapeError::new(
                "group_stats",
                inputs,
                format!(
                    "wants an activation [n, c, h, w] with c a multiple of {} groups, and u32 [4]",
                    self.groups
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let x = &inputs[0];
        let sizes = self.sizes(&x.shape);
        let count = sizes.rows * sizes.chunks;
        let params = Params {
            length: sizes.length as u32,
            chunks: sizes.chunks as u32,
            count: count as u32,
            height: sizes.height as u32,
            width: sizes.width as u32,
            units_y: self.units[0] as u32,
            units_x: self.units[1] as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/group_stats"))
            .elem(x.dtype)
            .slot("row", "held")
            .set("WG", WG as u32)
            .set("LANES", WG as u32)
            .set("RADIX", radix(WG))
            .set("PER", PER as u32);
        vec![Way::baseline(Launch::new(kernel, &params, caps.grid(count)).inputs(2))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, core] = inputs else { return Vec::new() };
        let sizes = self.sizes(x.shape());
        let [rows, cols] = self.core(core.data, &sizes);
        let mut stats = Vec::new();
        for group in x.data.chunks_exact(sizes.length.max(1)) {
            for start in (0..sizes.length).step_by(Self::CHUNK) {
                let end = sizes.length.min(start + Self::CHUNK);
                let inside =
                    |i: &usize| rows.contains(&(i / sizes.width % sizes.height)) && cols.contains(&(i % sizes.width));
                let values: Vec<f64> = (start..end).filter(inside).map(|i| f64::from(group[i])).collect();
                let n = (values.len() as f64).max(1.0);
                let mean = values.iter().sum::<f64>() / n;
                let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
                let share = values.len() as f64 / Self::CHUNK as f64;
                stats.extend([mean, variance, share].map(|v| v as f32));
            }
        }
        stats
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, core] = inputs else { return false };
        let sizes = self.sizes(x.shape());
        let [rows, cols] = self.core(core.data, &sizes);
        // Runs of a chunk that lie in the core.
        let runs = |start: usize, end: usize| {
            let lines = start / sizes.width..end.div_ceil(sizes.width);
            let lines = lines.filter(|line| rows.contains(&(line % sizes.height)));
            let cols = cols.clone();
            lines.filter_map(move |line| {
                let first = (line * sizes.width + cols.start).max(start);
                let last = (line * sizes.width + cols.end).min(end);
                (first < last).then_some(first..last)
            })
        };
        pieces(output, 3, |first, piece| {
            for (at, stats) in (first / 3..).zip(piece.chunks_exact_mut(3)) {
                let group = &x.data[at / sizes.chunks * sizes.length..][..sizes.length];
                let start = at % sizes.chunks * Self::CHUNK;
                let end = sizes.length.min(start + Self::CHUNK);
                let (mut count, mut total) = (0, 0.0);
                for run in runs(start, end) {
                    count += run.len();
                    total += sums(&group[run], |v| [v])[0];
                }
                let n = (count as f64).max(1.0);
                let mean = (total / n) as f32;
                let (mut rest, mut squares) = (0.0, 0.0);
                for run in runs(start, end) {
                    let [first, second] = sums(&group[run], |v| [v - mean, (v - mean) * (v - mean)]);
                    rest += first / n;
                    squares += second / n;
                }
                stats.copy_from_slice(&[
                    (f64::from(mean) + rest) as f32,
                    variance(squares - rest * rest) as f32,
                    count as f32 / Self::CHUNK as f32,
                ]);
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 5.0 * Self::CHUNK as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |groups, units, dtype, shape: &[usize]| Case {
            op: Self { groups, units },
            inputs: vec![TensorType::new(dtype, shape), TensorType::new(DType::U32, [4])],
        };
        vec![
            case(1, [4, 4], DType::F32, &[1, 1, 4, 4]),
            case(2, [7, 5], DType::F32, &[2, 6, 7, 5]),
            case(1, [5, 3], DType::F16, &[1, 3, 10, 12]),
            // Several chunks, the last one ragged, rows across their borders.
            case(3, [13, 9], DType::F32, &[1, 6, 52, 63]),
            case(1, [7, 61], DType::F16, &[1, 3, 35, 61]),
            // Chunks without any element of the core.
            case(1, [8, 8], DType::F32, &[1, 2, 128, 64]),
            case(8, [8, 8], DType::F32, &[1, 32, 64, 64]),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let [y, x] = self.units.map(|n| n as u32);
        let core = [y / 4, (3 * y).div_ceil(4), x / 3, x];
        vec![
            far_from_zero(&random_tensor(&inputs[0], uniform)),
            Tensor::ids([4], &core),
        ]
    }
}

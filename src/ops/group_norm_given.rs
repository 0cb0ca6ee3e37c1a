//! `group_norm_given`: as `group_norm`, with mean and variance from outside.

use super::group_norm::{Sizes, chunking};
use super::norm::far_from_zero;
use super::parallel::pieces;
use super::{Act, is_activation};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `act((x - mean) / sqrt(variance + eps) * weight + bias)`, with a given mean and variance for each group of channels: those of
/// the whole picture, where `x` is a tile of it.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNormGiven {
    /// Groups; they divide the channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Applied last: [`Act::None`] or [`Act::Silu`].
    pub act: Act,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    length: u32,
    chunks: u32,
    count: u32,
    groups: u32,
    channels: u32,
    plane: u32,
    eps: f32,
}

impl Graph {
    /// As [`Graph::group_norm`], with `stats`, `f32` `[n * groups, 3]`: the mean, what its rounding left, and the variance.
    ///
    /// # Errors
    /// If the groups do not divide the channels, a vector does not fit, or `x` is no activation.
    pub fn group_norm_given(
        &mut self,
        x: Value,
        [weight, bias]: [Value; 2],
        stats: Value,
        groups: usize,
        eps: f32,
        act: Act,
    ) -> Result<Value, ShapeError> {
        self.push(GroupNormGiven { groups, eps, act }, &[x, weight, bias, stats])
    }
}

impl Op for GroupNormGiven {
    fn name(&self) -> &'static str {
        "group_norm_given"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, weight, bias, stats]
                if is_activation(x)
                    && x.shape.len() >= 2
                    && self.groups > 0
                    && x.shape[1].is_multiple_of(self.groups)
                    && *weight == TensorType::new(DType::F32, [x.shape[1]])
                    && bias == weight
                    && *stats == TensorType::new(DType::F32, [x.shape[0] * self.groups, 3])
                    && matches!(self.act, Act::None | Act::Silu) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "group_norm_given",
                inputs,
                format!(
                    "wants an activation [n, c, ..] with c a multiple of {0} groups, f32 weight and bias [c], f32 statistics [n * {0}, 3], and no activation function or silu",
                    self.groups
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let x = &inputs[0];
        let Sizes { rows, channels, plane } = Sizes::of(&x.shape, self.groups);
        let length = channels * plane;
        let (wg, per, whole) = chunking(plane);
        let chunks = length.div_ceil(wg * per);
        let params = Params {
            length: length as u32,
            chunks: chunks as u32,
            count: (rows * chunks) as u32,
            groups: self.groups as u32,
            channels: channels as u32,
            plane: plane as u32,
            eps: self.eps,
        };
        let kernel = KernelSpec::new(wgsl!("ops/group_norm_given"))
            .elem(x.dtype)
            .slot("gain", "vector")
            .slot("offset", "vector")
            .slot("act", self.act.slot())
            .set("WG", wg as u32)
            .set("PER", per as u32)
            .set("WHOLE", u32::from(whole));
        vec![Way::baseline(
            Launch::new(kernel, &params, caps.grid(rows * chunks)).inputs(4),
        )]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, weight, bias, stats] = inputs else {
            return Vec::new();
        };
        let Sizes { channels, plane, .. } = Sizes::of(x.shape(), self.groups);
        let normal = |(i, &v): (usize, &f32)| {
            let (row, c) = (i / (channels * plane), i / plane % weight.data.len());
            let [mean, rest, variance] = [0, 1, 2].map(|j| f64::from(stats.data[3 * row + j]));
            let v = (f64::from(v) - mean - rest) / (variance + f64::from(self.eps)).sqrt();
            let v = v * f64::from(weight.data[c]) + f64::from(bias.data[c]);
            self.act.apply(v) as f32
        };
        x.data.iter().enumerate().map(normal).collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, weight, bias, stats] = inputs else { return false };
        let Sizes { channels, plane, .. } = Sizes::of(x.shape(), self.groups);
        if plane == 0 {
            return true;
        }
        pieces(output, plane, |start, piece| {
            let planes = piece.chunks_exact_mut(plane).zip(x.data[start..].chunks_exact(plane));
            for (at, (y, x)) in (start / plane..).zip(planes) {
                let (row, c) = (at / channels, at % weight.data.len());
                let (mean, rest) = (stats.data[3 * row], stats.data[3 * row + 1]);
                let deviation = (f64::from(stats.data[3 * row + 2]) + f64::from(self.eps)).sqrt();
                let (gain, offset) = (deviation.recip() as f32 * weight.data[c], bias.data[c]);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mean - rest) * gain + offset;
                }
                self.act.apply_all(y);
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let act = if self.act == Act::None { 0.0 } else { 4.0 };
        Cost::streaming(inputs, output, 4.0 + act)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |groups, act, dtype, shape: &[usize]| {
            let vector = TensorType::new(DType::F32, [shape[1]]);
            Case {
                op: Self { groups, eps: 1e-6, act },
                inputs: vec![
                    TensorType::new(dtype, shape),
                    vector.clone(),
                    vector,
                    TensorType::new(DType::F32, [shape[0] * groups, 3]),
                ],
            }
        };
        vec![
            case(1, Act::None, DType::F32, &[1, 1, 1]),
            case(3, Act::None, DType::F32, &[5, 9]),
            case(2, Act::Silu, DType::F32, &[2, 6, 7, 5]),
            case(7, Act::None, DType::F16, &[1, 7, 3, 11]),
            // Several chunks, the last one ragged.
            case(2, Act::Silu, DType::F32, &[1, 6, 53, 59]),
            // Chunks within channels.
            case(2, Act::Silu, DType::F32, &[1, 4, 16, 32]),
            case(1, Act::Silu, DType::F16, &[2, 2, 48, 64]),
            case(32, Act::Silu, DType::F32, &[1, 64, 48, 48]),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let mut tensors: Vec<_> = inputs.iter().map(|ty| random_tensor(ty, uniform)).collect();
        tensors[0] = far_from_zero(&tensors[0]);
        // Means near those of `x`, positive variances.
        let rows = tensors[3].data.len() / 3;
        for (row, stats) in tensors[3].data.chunks_exact_mut(3).enumerate() {
            let far = if 2 * row >= rows { 100.0 } else { 0.0 };
            stats.copy_from_slice(&[stats[0] + far, stats[1] * 1e-3, stats[2].abs() + 0.1]);
        }
        tensors
    }
}

//! `group_norm`: each group of channels with mean 0 and variance 1.

use super::Act;
use super::is_activation;
use super::norm::{far_from_zero, radix};
use super::parallel::{moments, pieces};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// Invocations of a workgroup and elements of each, whose product is a chunk, and whether each chunk lies in one channel.
/// That saves a division and two loads for each element, so the sizes are chosen for it where they can be.
pub(super) fn chunking(plane: usize) -> (usize, usize, bool) {
    let sizes = [(256, 8..=32), (64, 4..=32)];
    let mut all = sizes
        .into_iter()
        .flat_map(|(wg, pers)| pers.rev().map(move |per| (wg, per)));
    match all.find(|(wg, per)| plane > 0 && plane.is_multiple_of(wg * per)) {
        Some((wg, per)) => (wg, per, true),
        None => (256, 16, false),
    }
}

/// `act((x - mean) / sqrt(variance + eps) * weight + bias)`, with mean and variance over each group of channels of each picture.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupNorm {
    /// Groups; they divide the channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Applied last: [`Act::None`] or [`Act::Silu`].
    pub act: Act,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StatsParams {
    length: u32,
    chunks: u32,
    count: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    stats: StatsParams,
    groups: u32,
    channels: u32,
    plane: u32,
    eps: f32,
}

/// Sizes of a normalisation.
pub(super) struct Sizes {
    /// Groups of all pictures.
    pub(super) rows: usize,
    /// Channels of a group.
    pub(super) channels: usize,
    /// Elements of a channel.
    pub(super) plane: usize,
}

impl Sizes {
    pub(super) fn of(shape: &[usize], groups: usize) -> Self {
        Self {
            rows: shape[0] * groups,
            channels: shape[1] / groups,
            plane: shape[2..].iter().product(),
        }
    }
}

impl Graph {
    /// Normalises each of `groups` groups of the channels of `x`, `[n, c, ..]`; `weight` and `bias` are `f32` `[c]`, `act` is
    /// none or SiLU. Same shape and type as `x`. In a graph [for tiles](Graph::for_tiles), statistics may come from outside.
    ///
    /// # Errors
    /// If the groups do not divide the channels, a vector does not fit, or `x` is no activation.
    pub fn group_norm(
        &mut self,
        x: Value,
        weight: Value,
        bias: Value,
        groups: usize,
        eps: f32,
        act: Act,
    ) -> Result<Value, ShapeError> {
        match self.enter_norm(x, groups)? {
            Some(stats) => self.group_norm_given(x, [weight, bias], stats, groups, eps, act),
            None => self.push(GroupNorm { groups, eps, act }, &[x, weight, bias]),
        }
    }
}

impl Op for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, weight, bias]
                if is_activation(x)
                    && x.shape.len() >= 2
                    && self.groups > 0
                    && x.shape[1].is_multiple_of(self.groups)
                    && *weight == TensorType::new(DType::F32, [x.shape[1]])
                    && bias == weight
                    && matches!(self.act, Act::None | Act::Silu) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "group_norm",
                inputs,
                format!(
                    "wants an activation [n, c, ..] with c a multiple of {} groups, f32 weight and bias [c], and no activation function or silu",
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
        let count = rows * chunks;
        let stats = StatsParams {
            length: length as u32,
            chunks: chunks as u32,
            count: count as u32,
        };
        let params = Params {
            stats,
            groups: self.groups as u32,
            channels: channels as u32,
            plane: plane as u32,
            eps: self.eps,
        };
        let kernel = |file| {
            let kernel = KernelSpec::new(file).elem(x.dtype);
            kernel
                .set("WG", wg as u32)
                .set("LANES", wg as u32)
                .set("RADIX", radix(wg))
                .set("PER", per as u32)
        };
        let first = kernel(wgsl!("ops/group_norm_stats")).slot("row", "held");
        let first = Launch::new(first, &stats, caps.grid(count))
            .writes_scratch(0)
            .read(2, Operand::Input(0));
        let second = kernel(wgsl!("ops/group_norm"))
            .slot("gain", "vector")
            .slot("offset", "vector")
            .slot("act", self.act.slot())
            .set("WHOLE", u32::from(whole));
        let second = Launch::new(second, &params, caps.grid(count))
            .inputs(3)
            .read(5, Operand::Scratch(0));
        vec![Way {
            name: Way::BASELINE,
            launches: vec![first, second],
            scratch: vec![(count.max(1) * 3 * size_of::<f32>()) as u64],
        }]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, weight, bias] = inputs else { return Vec::new() };
        let Sizes { channels, plane, .. } = Sizes::of(x.shape(), self.groups);
        let length = channels * plane;
        let mut y = Vec::with_capacity(x.data.len());
        for (r, row) in x.data.chunks_exact(length.max(1)).enumerate() {
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / length as f64;
            let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / length as f64;
            let deviation = (variance + f64::from(self.eps)).sqrt();
            for (i, &v) in row.iter().enumerate() {
                let c = r % self.groups * channels + i / plane;
                let v = (f64::from(v) - mean) / deviation * f64::from(weight.data[c]) + f64::from(bias.data[c]);
                y.push(self.act.apply(v) as f32);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, weight, bias] = inputs else { return false };
        let Sizes { channels, plane, .. } = Sizes::of(x.shape(), self.groups);
        let length = channels * plane;
        if length == 0 {
            return true;
        }
        pieces(output, length, |start, piece| {
            let rows = piece.chunks_exact_mut(length).zip(x.data[start..].chunks_exact(length));
            for (r, (y, x)) in rows.enumerate() {
                let (mean, rest, variance) = moments(x);
                let scale = (variance + f64::from(self.eps)).sqrt().recip() as f32;
                let first = (start / length + r) % self.groups * channels;
                let planes = y.chunks_exact_mut(plane).zip(x.chunks_exact(plane));
                for (c, (y, x)) in (first..).zip(planes) {
                    let (gain, offset) = (scale * weight.data[c], bias.data[c]);
                    for (y, x) in y.iter_mut().zip(x) {
                        *y = (x - mean - rest) * gain + offset;
                    }
                    self.act.apply_all(y);
                }
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let act = if self.act == Act::None { 0.0 } else { 4.0 };
        Cost::streaming(inputs, output, 8.0 + act)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |groups, act, dtype, shape: &[usize]| {
            let vector = TensorType::new(DType::F32, [shape[1]]);
            Case {
                op: Self { groups, eps: 1e-6, act },
                inputs: vec![TensorType::new(dtype, shape), vector.clone(), vector],
            }
        };
        vec![
            case(1, Act::None, DType::F32, &[1, 1, 1]),
            case(3, Act::None, DType::F32, &[5, 9]),
            case(2, Act::Silu, DType::F32, &[2, 6, 7, 5]),
            case(7, Act::None, DType::F32, &[1, 7, 3, 11]),
            // Several chunks, the last one ragged.
            case(2, Act::Silu, DType::F32, &[1, 6, 53, 59]),
            case(1, Act::None, DType::F32, &[2, 2, 2049]),
            case(4, Act::None, DType::F16, &[2, 12, 9, 7]),
            case(1, Act::Silu, DType::F16, &[1, 3, 61, 67]),
            // Chunks within channels.
            case(2, Act::Silu, DType::F32, &[1, 4, 16, 32]),
            case(1, Act::None, DType::F16, &[1, 2, 48, 64]),
            case(32, Act::Silu, DType::F32, &[1, 64, 48, 48]),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let mut tensors: Vec<_> = inputs.iter().map(|ty| random_tensor(ty, uniform)).collect();
        tensors[0] = far_from_zero(&tensors[0]);
        tensors
    }
}

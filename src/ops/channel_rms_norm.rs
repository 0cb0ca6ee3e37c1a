//! `channel_rms_norm`: the channels of each pixel divided by their root mean square.

use super::{Act, is_activation};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `act(x / max(|x|, 1e-12) * sqrt(c) * weight)`, with the length `|x|` over the channels of each pixel.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelRmsNorm {
    /// Applied last: [`Act::None`] or [`Act::Silu`].
    pub act: Act,
}

/// Shortest length that is divided by, as in PyTorch's `normalize`.
const EPS: f64 = 1e-12;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    pixels: u32,
    plane: u32,
    channels: u32,
}

/// Channels, and elements of each.
fn sizes(shape: &[usize]) -> (usize, usize) {
    (shape[1], shape[2..].iter().product())
}

impl Graph {
    /// Divides the channels of each pixel of `x`, `[n, c, ..]`, by their root mean square; `weight` is `f32` `[c]`, `act` is none
    /// or SiLU. Same shape and type as `x`.
    ///
    /// # Errors
    /// If the weight does not fit or `x` is no activation.
    pub fn channel_rms_norm(&mut self, x: Value, weight: Value, act: Act) -> Result<Value, ShapeError> {
        self.push(ChannelRmsNorm { act }, &[x, weight])
    }
}

impl Op for ChannelRmsNorm {
    fn name(&self) -> &'static str {
        "channel_rms_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, weight]
                if is_activation(x)
                    && x.shape.len() >= 2
                    && *weight == TensorType::new(DType::F32, [x.shape[1]])
                    && matches!(self.act, Act::None | Act::Silu) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "channel_rms_norm",
                inputs,
                "wants an activation [n, c, ..], an f32 weight [c], and no activation function or silu",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        const WG: usize = 128;
        let x = &inputs[0];
        let (channels, plane) = sizes(&x.shape);
        let pixels = x.shape[0] * plane;
        // Few pixels with many channels need more invocations for each.
        let shares = if pixels >= 1 << 14 { 4 } else { 16 };
        let params = Params {
            pixels: pixels as u32,
            plane: plane.max(1) as u32,
            channels: channels as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/channel_rms_norm"))
            .elem(x.dtype)
            .slot("gain", "vector")
            .slot("act", self.act.slot())
            .set("WG", WG as u32)
            .set("SHARES", shares as u32);
        let grid = caps.grid(pixels.div_ceil(WG / shares));
        vec![Way::baseline(Launch::new(kernel, &params, grid).inputs(2))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, weight] = inputs else { return Vec::new() };
        let (channels, plane) = sizes(x.shape());
        let mut y = vec![0.0; x.data.len()];
        for n in 0..x.shape()[0] {
            for p in 0..plane {
                let at = |c: usize| (n * channels + c) * plane + p;
                let squares: f64 = (0..channels).map(|c| f64::from(x.data[at(c)]).powi(2)).sum();
                let norm = squares.sqrt();
                let scale = (channels as f64).sqrt() / if norm < EPS { EPS } else { norm };
                for c in 0..channels {
                    let v = f64::from(x.data[at(c)]) * scale * f64::from(weight.data[c]);
                    y[at(c)] = self.act.apply(v) as f32;
                }
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, weight] = inputs else { return false };
        let (channels, plane) = sizes(x.shape());
        if channels * plane == 0 {
            return true;
        }
        let planes = x.data.chunks_exact(channels * plane);
        for (x, y) in planes.zip(output.chunks_exact_mut(channels * plane)) {
            let scales = scales(x, channels, plane);
            super::parallel::pieces(y, plane, |start, piece| {
                for (i, y) in piece.chunks_exact_mut(plane).enumerate() {
                    let c = start / plane + i;
                    let x = &x[c * plane..][..plane];
                    for ((y, x), scale) in y.iter_mut().zip(x).zip(&scales) {
                        *y = x * scale * weight.data[c];
                    }
                    self.act.apply_all(y);
                }
            });
        }
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let act = if self.act == Act::None { 0.0 } else { 4.0 };
        Cost::streaming(inputs, output, 4.0 + act)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |act, dtype, shape: &[usize]| Case {
            op: Self { act },
            inputs: vec![TensorType::new(dtype, shape), TensorType::new(DType::F32, [shape[1]])],
        };
        vec![
            case(Act::None, DType::F32, &[1, 1, 1]),
            case(Act::Silu, DType::F32, &[3, 5]),
            case(Act::None, DType::F32, &[2, 7, 5, 9]),
            case(Act::Silu, DType::F32, &[1, 33, 3, 11]),
            case(Act::None, DType::F32, &[1, 3, 131, 127]),
            case(Act::Silu, DType::F32, &[2, 2, 129, 65]),
            case(Act::None, DType::F16, &[1, 19, 7, 13]),
            case(Act::Silu, DType::F16, &[2, 5, 9, 31]),
            case(Act::Silu, DType::F32, &[1, 384, 16, 24]),
            case(Act::Silu, DType::F32, &[1, 96, 96, 96]),
        ]
    }
}

/// What each pixel is multiplied by, from sums over the channels plane by plane.
fn scales(x: &[f32], channels: usize, plane: usize) -> Vec<f32> {
    let mut squares = vec![0.0f32; plane];
    super::parallel::pieces(&mut squares, 1, |start, piece| {
        for row in x.chunks_exact(plane) {
            for (s, v) in piece.iter_mut().zip(&row[start..]) {
                *s += v * v;
            }
        }
        for s in piece {
            let norm = f64::from(*s).sqrt();
            *s = ((channels as f64).sqrt() / if norm < EPS { EPS } else { norm }) as f32;
        }
    });
    squares
}

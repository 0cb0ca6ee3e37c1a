//! `rotary`: rotary position embedding.

use super::flat::flat;
use super::is_activation;
use super::parallel::pieces;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// Rotates pairs of a head's features by angles that depend on the position; the variants say which features pair up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotary {
    /// `(2i, 2i + 1)`, as in Z-Image and FLUX.
    Interleaved,
    /// `(i, i + d/2)`, as in Qwen3 and Llama.
    Halves,
}

impl Rotary {
    /// Steps from the first of a pair to the first of the next, and to its own second.
    fn steps(self, half: usize) -> (usize, usize) {
        match self {
            Self::Interleaved => (2, 1),
            Self::Halves => (1, half),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    half: u32,
    heads: u32,
    time: u32,
    step: u32,
    gap: u32,
}

impl Graph {
    /// Rotates the pairs of `x`, `[b, t, h, d]`, by the angles whose `cos` and `sin` are `f32` `[t, d/2]`. Same shape and type.
    ///
    /// # Errors
    /// If `d` is odd, or if the tables do not fit.
    pub fn rotary(&mut self, x: Value, cos: Value, sin: Value, pairs: Rotary) -> Result<Value, ShapeError> {
        self.push(pairs, &[x, cos, sin])
    }
}

impl Op for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, cos, sin]
                if is_activation(x)
                    && x.shape.len() == 4
                    && x.shape[3].is_multiple_of(2)
                    && *cos == TensorType::new(DType::F32, [x.shape[1], x.shape[3] / 2])
                    && sin == cos =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "rotary",
                inputs,
                "wants an activation [b, t, h, d] with d even, and f32 tables [t, d/2]",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let shape = &output.shape;
        let half = shape[3] / 2;
        let count = output.count() / 2;
        let (step, gap) = self.steps(half);
        let params = Params {
            count: count as u32,
            half: half as u32,
            heads: shape[2] as u32,
            time: shape[1] as u32,
            step: step as u32,
            gap: gap as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/rotary")).elem(inputs[0].dtype);
        vec![Way::baseline(flat(kernel, &params, count, caps).inputs(3))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, cos, sin] = inputs else { return Vec::new() };
        let &[b, t, h, d] = x.shape() else { return Vec::new() };
        let mut y = vec![0.0; x.data.len()];
        let value = |at: usize| f64::from(x.data[at]);
        for row in 0..b * t * h {
            for i in 0..d / 2 {
                let (lo, hi) = match self {
                    Self::Interleaved => (row * d + 2 * i, row * d + 2 * i + 1),
                    Self::Halves => (row * d + i, row * d + i + d / 2),
                };
                let angle = row / h % t * (d / 2) + i;
                let (c, s) = (f64::from(cos.data[angle]), f64::from(sin.data[angle]));
                y[lo] = (value(lo) * c - value(hi) * s) as f32;
                y[hi] = (value(lo) * s + value(hi) * c) as f32;
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, cos, sin] = inputs else { return false };
        let &[_, t, h, d] = x.shape() else { return false };
        if x.data.is_empty() {
            return true;
        }
        let half = d / 2;
        pieces(output, d, |start, piece| {
            for (k, y) in piece.chunks_exact_mut(d).enumerate() {
                let row = start / d + k;
                let x = &x.data[row * d..][..d];
                let angle = row / h % t * half;
                let (cos, sin) = (&cos.data[angle..][..half], &sin.data[angle..][..half]);
                match self {
                    Self::Interleaved => {
                        let pairs = y.chunks_exact_mut(2).zip(x.chunks_exact(2));
                        for ((y, x), (c, s)) in pairs.zip(cos.iter().zip(sin)) {
                            y[0] = x[0] * c - x[1] * s;
                            y[1] = x[0] * s + x[1] * c;
                        }
                    }
                    Self::Halves => {
                        let (y0, y1) = y.split_at_mut(half);
                        let (x0, x1) = x.split_at(half);
                        for i in 0..half {
                            y0[i] = x0[i] * cos[i] - x1[i] * sin[i];
                            y1[i] = x0[i] * sin[i] + x1[i] * cos[i];
                        }
                    }
                }
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 3.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |op, dtype, [b, t, h, d]: [usize; 4]| {
            let table = TensorType::new(DType::F32, [t, d / 2]);
            Case {
                op,
                inputs: vec![TensorType::new(dtype, [b, t, h, d]), table.clone(), table],
            }
        };
        let mut cases = Vec::new();
        for op in [Self::Interleaved, Self::Halves] {
            cases.push(case(op, DType::F32, [1, 1, 1, 2]));
            cases.push(case(op, DType::F32, [2, 5, 3, 14]));
            cases.push(case(op, DType::F16, [2, 5, 3, 14]));
            cases.push(case(op, DType::F32, [1, 77, 8, 64]));
        }
        cases
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let x = random_tensor(&inputs[0], uniform);
        let angles = random_tensor(&inputs[1], uniform);
        let table = |f: fn(f32) -> f32| {
            let data = angles.data.iter().map(|v| f(v * std::f32::consts::PI)).collect();
            Tensor::new(inputs[1].shape.clone(), data)
        };
        vec![x, table(f32::cos), table(f32::sin)]
    }
}

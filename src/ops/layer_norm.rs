//! `layer_norm`: each row with mean 0 and variance 1.

use super::norm::{RowParams, choice, far_from_zero, spread};
use super::parallel::{moments, pieces};
use super::{is_activation, rows};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};

/// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis; the inputs are x and those of the vectors that are there.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: f32,
    /// Whether the weight is there.
    pub weight: bool,
    /// Whether the bias is there.
    pub bias: bool,
}

impl LayerNorm {
    /// Positions of weight and bias among the inputs.
    fn vectors(&self) -> (Option<usize>, Option<usize>) {
        let weight = self.weight.then_some(1);
        (weight, self.bias.then_some(1 + usize::from(self.weight)))
    }
}

impl Graph {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis; both vectors are `f32` of its length. Same shape
    /// and type as `x`.
    ///
    /// # Errors
    /// If `x` is a scalar or no activation, or if a vector does not fit.
    pub fn layer_norm(
        &mut self,
        x: Value,
        weight: Option<Value>,
        bias: Option<Value>,
        eps: f32,
    ) -> Result<Value, ShapeError> {
        let op = LayerNorm {
            eps,
            weight: weight.is_some(),
            bias: bias.is_some(),
        };
        let inputs: Vec<_> = [x].into_iter().chain(weight).chain(bias).collect();
        self.push(op, &inputs)
    }
}

impl Op for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, vectors @ ..]
                if is_activation(x)
                    && !x.shape.is_empty()
                    && vectors.len() == usize::from(self.weight) + usize::from(self.bias)
                    && vectors
                        .iter()
                        .all(|v| *v == TensorType::new(DType::F32, [x.shape.last()])) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "layer_norm",
                inputs,
                "wants an activation of rank 1 or more, and maybe an f32 weight and bias as long as its last axis",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let (rows, cols) = rows(&inputs[0]);
        let params = RowParams {
            rows: rows as u32,
            cols: cols as u32,
            eps: self.eps,
        };
        let kernel = KernelSpec::new(wgsl!("ops/layer_norm"))
            .elem(inputs[0].dtype)
            .slot("gain", choice(self.weight))
            .slot("offset", choice(self.bias));
        let (kernel, grid) = spread(kernel, rows, cols, caps);
        let mut launch = Launch::new(kernel, &params, grid).read(2, Operand::Input(0));
        let (weight, bias) = self.vectors();
        if let Some(i) = weight {
            launch = launch.read(3, Operand::Input(i));
        }
        if let Some(i) = bias {
            launch = launch.read(4, Operand::Input(i));
        }
        vec![Way::baseline(launch)]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let x = &inputs[0];
        let (weight, bias) = self.vectors();
        let entry = |i: usize, c: usize| f64::from(inputs[i].data[c]);
        let n = x.ty.shape.last() as f64;
        let mut y = Vec::with_capacity(x.data.len());
        for row in x.data.chunks_exact(x.ty.shape.last().max(1)) {
            let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            let deviation = (variance + f64::from(self.eps)).sqrt();
            for (c, &v) in row.iter().enumerate() {
                let gain = weight.map_or(1.0, |i| entry(i, c));
                let offset = bias.map_or(0.0, |i| entry(i, c));
                y.push(((f64::from(v) - mean) / deviation * gain + offset) as f32);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let x = inputs[0].data;
        let cols = inputs[0].ty.shape.last().max(1);
        let (weight, bias) = self.vectors();
        pieces(output, cols, |start, piece| {
            for (y, x) in piece.chunks_exact_mut(cols).zip(x[start..].chunks_exact(cols)) {
                let (mean, rest, variance) = moments(x);
                let scale = (variance + f64::from(self.eps)).sqrt().recip() as f32;
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mean - rest) * scale;
                }
                if let Some(i) = weight {
                    y.iter_mut().zip(inputs[i].data).for_each(|(y, w)| *y *= w);
                }
                if let Some(i) = bias {
                    y.iter_mut().zip(inputs[i].data).for_each(|(y, b)| *y += b);
                }
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 8.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shape: &[usize], weight: bool, bias: bool| {
            let x = TensorType::new(dtype, shape);
            let vector = TensorType::new(DType::F32, [x.shape.last()]);
            let vectors = vec![vector; usize::from(weight) + usize::from(bias)];
            Case {
                op: Self {
                    eps: 1e-5,
                    weight,
                    bias,
                },
                inputs: [x].into_iter().chain(vectors).collect(),
            }
        };
        vec![
            case(DType::F32, &[1], true, true),
            case(DType::F32, &[7, 77], true, true),
            case(DType::F32, &[7, 77], false, false),
            case(DType::F32, &[2, 3, 257], true, false),
            case(DType::F32, &[2, 3, 33], false, true),
            case(DType::F32, &[3, 1025], true, true),
            case(DType::F32, &[2, 8200], true, true),
            case(DType::F16, &[7, 77], true, true),
            case(DType::F16, &[3, 300], false, false),
            case(DType::F16, &[2, 1500], true, true),
            case(DType::F32, &[1, 77, 768], true, true),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let mut tensors: Vec<_> = inputs.iter().map(|ty| random_tensor(ty, uniform)).collect();
        tensors[0] = far_from_zero(&tensors[0]);
        tensors
    }
}

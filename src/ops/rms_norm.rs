//! `rms_norm`: each row divided by its root mean square.

use super::norm::{RowParams, choice, spread};
use super::parallel::{pieces, sums};
use super::{is_activation, rows};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way};
use crate::tensor::{DType, TensorType, View};

/// `x / sqrt(mean(x^2) + eps) * weight` over the last axis; the weight may be missing.
#[derive(Clone, Debug, PartialEq)]
pub struct RmsNorm {
    /// Added to the mean square.
    pub eps: f32,
}

impl Graph {
    /// `x / sqrt(mean(x^2) + eps) * weight` over the last axis; `weight` is `f32` of its length. Same shape and type as `x`.
    ///
    /// # Errors
    /// If `x` is a scalar or no activation, or if the weight does not fit.
    pub fn rms_norm(&mut self, x: Value, weight: Option<Value>, eps: f32) -> Result<Value, ShapeError> {
        let inputs: Vec<_> = [x].into_iter().chain(weight).collect();
        self.push(RmsNorm { eps }, &inputs)
    }
}

impl Op for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, vectors @ ..]
                if is_activation(x)
                    && !x.shape.is_empty()
                    && vectors.len() <= 1
                    && vectors
                        .iter()
                        .all(|v| *v == TensorType::new(DType::F32, [x.shape.last()])) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "rms_norm",
                inputs,
                "wants an activation of rank 1 or more, and maybe an f32 weight as long as its last axis",
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
        let kernel = KernelSpec::new(wgsl!("ops/rms_norm"))
            .elem(inputs[0].dtype)
            .slot("gain", choice(inputs.len() > 1));
        let (kernel, grid) = spread(kernel, rows, cols, caps);
        let mut launch = Launch::new(kernel, &params, grid).read(2, Operand::Input(0));
        if inputs.len() > 1 {
            launch = launch.read(3, Operand::Input(1));
        }
        vec![Way::baseline(launch)]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let Some((x, weight)) = inputs.split_first() else {
            return Vec::new();
        };
        let cols = x.ty.shape.last();
        let mut y = Vec::with_capacity(x.data.len());
        for row in x.data.chunks_exact(cols.max(1)) {
            let squares: f64 = row.iter().map(|&v| f64::from(v).powi(2)).sum();
            let rms = (squares / cols as f64 + f64::from(self.eps)).sqrt();
            for (c, &v) in row.iter().enumerate() {
                let gain = weight.first().map_or(1.0, |w| f64::from(w.data[c]));
                y.push((f64::from(v) / rms * gain) as f32);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let Some((x, weight)) = inputs.split_first() else {
            return false;
        };
        let cols = x.ty.shape.last().max(1);
        pieces(output, cols, |start, piece| {
            for (y, x) in piece.chunks_exact_mut(cols).zip(x.data[start..].chunks_exact(cols)) {
                let [squares] = sums(x, |v| [v * v]);
                let scale = (squares / cols as f64 + f64::from(self.eps)).sqrt().recip() as f32;
                match weight.first() {
                    Some(w) => {
                        for ((y, x), w) in y.iter_mut().zip(x).zip(w.data) {
                            *y = x * scale * w;
                        }
                    }
                    None => {
                        for (y, x) in y.iter_mut().zip(x) {
                            *y = x * scale;
                        }
                    }
                }
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 4.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |eps, dtype, shape: &[usize], weight: bool| {
            let x = TensorType::new(dtype, shape);
            let vector = TensorType::new(DType::F32, [x.shape.last()]);
            Case {
                op: Self { eps },
                inputs: [x].into_iter().chain(weight.then_some(vector)).collect(),
            }
        };
        vec![
            case(1e-6, DType::F32, &[1], true),
            case(1e-6, DType::F32, &[3, 1], false),
            case(1e-6, DType::F32, &[7, 77], true),
            case(1e-5, DType::F32, &[7, 77], false),
            case(1e-6, DType::F32, &[2, 5, 3, 64], true),
            case(0.1, DType::F32, &[5, 257], true),
            case(1e-6, DType::F32, &[3, 1025], true),
            case(1e-6, DType::F32, &[2, 8200], true),
            case(1e-6, DType::F16, &[7, 77], true),
            case(1e-5, DType::F16, &[2, 300], false),
            case(1e-5, DType::F16, &[2, 1500], true),
            case(1e-6, DType::F32, &[1, 77, 16, 128], true),
            case(1e-6, DType::F32, &[128, 1024], true),
        ]
    }
}

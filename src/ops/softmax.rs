//! `softmax`: normalised exponentials of each row.

use super::{is_activation, rows};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `softmax(scale * x)` over the last axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// Factor on the input, e.g. `1 / sqrt(head_dim)`.
    pub scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    rows: u32,
    cols: u32,
    scale: f32,
}

impl Graph {
    /// `softmax(scale * x)` over the last axis; same shape and type.
    ///
    /// # Errors
    /// If `x` is a scalar or no activation.
    pub fn softmax(&mut self, x: Value, scale: f32) -> Result<Value, ShapeError> {
        self.push(Softmax { scale }, &[x])
    }
}

impl Op for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) && !x.shape.is_empty() => Ok(x.clone()),
            _ => Err(ShapeError::new(
                "softmax",
                inputs,
                "wants one activation of rank 1 or more",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let (rows, cols) = rows(&inputs[0]);
        let params = Params {
            rows: rows as u32,
            cols: cols as u32,
            scale: self.scale,
        };
        let kernel = KernelSpec::new(wgsl!("ops/softmax"))
            .elem(inputs[0].dtype)
            .set("WG", if cols > 256 { 128 } else { 32 });
        vec![Way::baseline(Launch::new(kernel, &params, caps.grid(rows)).inputs(1))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let mut y = Vec::with_capacity(x.data.len());
        for row in x.data.chunks_exact(x.ty.shape.last()) {
            let scaled = row.iter().map(|&v| f64::from(self.scale) * f64::from(v));
            // The largest term is exp(0), so the sum cannot overflow.
            let max = scaled.clone().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scaled.clone().map(|v| (v - max).exp()).sum();
            y.extend(scaled.map(|v| ((v - max).exp() / sum) as f32));
        }
        y
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 5.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |scale, dtype, shape: &[usize]| Case {
            op: Self { scale },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(1.0, DType::F32, &[1]),
            case(1.0, DType::F32, &[3, 77]),
            case(0.125, DType::F32, &[2, 5, 1000]),
            case(100.0, DType::F32, &[4, 33]),
            case(0.125, DType::F16, &[2, 77]),
        ]
    }
}

//! `upsample_nearest`: each pixel a square.

use super::is_activation;
use super::strided::Strided;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Tolerance, Way};
use crate::tensor::{DType, Shape, TensorType, View};

/// Each pixel of `[n, c, h, w]` becomes a square of `factor` by `factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct UpsampleNearest {
    /// Side of the square.
    pub factor: usize,
}

impl Graph {
    /// `[n, c, h, w]` to `[n, c, factor h, factor w]`: each pixel becomes a square.
    ///
    /// # Errors
    /// If `x` is no activation of rank 4 or `factor` is 0.
    pub fn upsample_nearest(&mut self, x: Value, factor: usize) -> Result<Value, ShapeError> {
        self.push(UpsampleNearest { factor }, &[x])
    }
}

impl UpsampleNearest {
    fn strided(&self, shape: &Shape) -> Strided {
        let (height, width) = (shape[2], shape[3]);
        let planes = shape[0] * shape[1];
        // A repeat is an axis of stride 0.
        let axes = [
            (planes, height * width),
            (height, width),
            (self.factor, 0),
            (width, 1),
            (self.factor, 0),
        ];
        Strided::new(0, axes)
    }
}

impl Op for UpsampleNearest {
    fn name(&self) -> &'static str {
        "upsample_nearest"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) && x.shape.len() == 4 && self.factor > 0 => {
                let [h, w] = [2, 3].map(|axis| self.factor.saturating_mul(x.shape[axis]));
                Ok(TensorType::new(x.dtype, [x.shape[0], x.shape[1], h, w]))
            }
            _ => Err(ShapeError::new(
                "upsample_nearest",
                inputs,
                "wants an activation [n, c, h, w] and a factor of 1 or more",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        self.strided(&inputs[0].shape).ways(inputs[0].dtype, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let (height, width) = (x.shape()[2], x.shape()[3]);
        let mut y = Vec::new();
        for plane in x.data.chunks_exact(height * width) {
            for row in 0..height * self.factor {
                for col in 0..width * self.factor {
                    y.push(plane[row / self.factor * width + col / self.factor]);
                }
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        self.strided(&x.ty.shape).copy(x.data, output);
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |factor, dtype, shape: &[usize]| Case {
            op: Self { factor },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(1, DType::F32, &[1, 1, 1, 1]),
            case(2, DType::F32, &[2, 3, 5, 7]),
            case(3, DType::F32, &[1, 5, 4, 3]),
            case(2, DType::F16, &[1, 3, 7, 5]),
            case(2, DType::F32, &[1, 96, 16, 16]),
        ]
    }
}

//! `permute`: axes in another order.

use super::is_activation;
use super::strided::Strided;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Tolerance, Way};
use crate::tensor::{DType, Shape, TensorType, View};

/// Axis `i` of the result is axis `axes[i]` of the input.
#[derive(Clone, Debug, PartialEq)]
pub struct Permute {
    /// A permutation of `0..rank`.
    pub axes: Vec<usize>,
}

impl Graph {
    /// Axes in another order: axis `i` of the result is axis `axes[i]` of `x`, of rank 6 at most.
    ///
    /// # Errors
    /// If `axes` is no permutation of the axes of `x`, or `x` is no activation.
    pub fn permute(&mut self, x: Value, axes: &[usize]) -> Result<Value, ShapeError> {
        self.push(Permute { axes: axes.to_vec() }, &[x])
    }
}

impl Permute {
    fn strided(&self, shape: &Shape) -> Strided {
        let strides = shape.strides();
        Strided::new(0, self.axes.iter().map(|&a| (shape[a], strides[a])))
    }
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) && x.shape.len() <= 6 && is_permutation(&self.axes, x.shape.len()) => {
                let shape: Vec<_> = self.axes.iter().map(|&a| x.shape[a]).collect();
                Ok(TensorType::new(x.dtype, shape))
            }
            _ => Err(ShapeError::new(
                "permute",
                inputs,
                format!(
                    "wants an activation of rank 6 or less whose axes {:?} permutes",
                    self.axes
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        self.strided(&inputs[0].shape).ways(inputs[0].dtype, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let shape: Shape = self.axes.iter().map(|&a| x.shape()[a]).collect::<Vec<_>>().into();
        let (from, to) = (x.ty.shape.strides(), shape.strides());
        let mut y = vec![0.0; x.data.len()];
        for (i, &v) in x.data.iter().enumerate() {
            let place = |(k, &a): (usize, &usize)| i / from[a] % x.shape()[a] * to[k];
            y[self.axes.iter().enumerate().map(place).sum::<usize>()] = v;
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
        let case = |axes: &[usize], dtype, shape: &[usize]| Case {
            op: Self { axes: axes.to_vec() },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(&[0], DType::F32, &[1]),
            case(&[1, 0], DType::F32, &[17, 33]),
            case(&[0, 2, 1], DType::F32, &[3, 5, 7]),
            case(&[2, 0, 1], DType::F16, &[3, 5, 7]),
            case(&[5, 3, 1, 4, 2, 0], DType::F32, &[2, 3, 4, 5, 2, 3]),
            case(&[0, 1, 2, 3], DType::F16, &[2, 3, 1, 5]),
            case(&[0, 2, 1, 3], DType::F32, &[2, 96, 4, 64]),
        ]
    }
}

fn is_permutation(axes: &[usize], rank: usize) -> bool {
    axes.len() == rank && (0..rank).all(|a| axes.contains(&a))
}

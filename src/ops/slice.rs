//! `slice`: a range of an axis.

use super::is_activation;
use super::strided::Strided;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Tolerance, Way};
use crate::tensor::{DType, Shape, TensorType, View};

/// Elements `start..start + len` of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Which axis.
    pub axis: usize,
    /// First element.
    pub start: usize,
    /// Number of elements, at least 1.
    pub len: usize,
}

impl Graph {
    /// Elements `start..start + len` of an axis of `x`.
    ///
    /// # Errors
    /// If `x` has no such axis or elements, or is no activation.
    pub fn slice(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Result<Value, ShapeError> {
        self.push(Slice { axis, start, len }, &[x])
    }
}

impl Slice {
    fn strided(&self, shape: &Shape) -> Strided {
        let row: usize = shape[self.axis..].iter().product();
        let step = row / shape[self.axis];
        let outer = shape.count() / row;
        Strided::new(self.start * step, [(outer, row), (self.len * step, 1)])
    }
}

impl Op for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let end = self.start.saturating_add(self.len);
        match inputs {
            [x] if is_activation(x) && self.len > 0 && x.shape.get(self.axis).is_some_and(|&n| end <= n) => {
                let mut shape = x.shape.to_vec();
                shape[self.axis] = self.len;
                Ok(TensorType::new(x.dtype, shape))
            }
            _ => Err(ShapeError::new(
                "slice",
                inputs,
                format!(
                    "wants an activation with elements {}..{end} on axis {}",
                    self.start, self.axis
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        self.strided(&inputs[0].shape).ways(inputs[0].dtype, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let (stride, extent) = (x.ty.shape.strides()[self.axis], x.shape()[self.axis]);
        let inside = |i: usize| (self.start..self.start + self.len).contains(&(i / stride % extent));
        let kept = x.data.iter().enumerate().filter(|(i, _)| inside(*i));
        kept.map(|(_, &v)| v).collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        self.strided(&x.ty.shape).copy(x.data, output);
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, _: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(std::slice::from_ref(output), output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |axis, start, len, dtype, shape: &[usize]| Case {
            op: Self { axis, start, len },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(0, 0, 1, DType::F32, &[1]),
            case(0, 3, 5, DType::F32, &[9, 7]),
            case(1, 1, 3, DType::F32, &[3, 5, 7]),
            case(2, 6, 1, DType::F16, &[3, 5, 7]),
            case(0, 1, 2, DType::F16, &[3, 5]),
            case(0, 256, 256, DType::F32, &[1024]),
            case(1, 0, 64, DType::F32, &[2, 96, 256]),
        ]
    }
}

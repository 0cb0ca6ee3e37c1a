//! `binary`: sums, differences and products with broadcasting.

use super::broadcast;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, TensorType, View};

/// Arithmetic on two tensors, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
}

impl Graph {
    /// `a` and `b` combined element by element; shapes of rank up to 6 broadcast as in numpy.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or if both are not activations of one type.
    pub fn binary(&mut self, a: Value, b: Value, op: Binary) -> Result<Value, ShapeError> {
        self.push(op, &[a, b])
    }

    /// `a + b`
    ///
    /// # Errors
    /// As [`Graph::binary`].
    pub fn add(&mut self, a: Value, b: Value) -> Result<Value, ShapeError> {
        self.binary(a, b, Binary::Add)
    }

    /// `a - b`
    ///
    /// # Errors
    /// As [`Graph::binary`].
    pub fn sub(&mut self, a: Value, b: Value) -> Result<Value, ShapeError> {
        self.binary(a, b, Binary::Sub)
    }

    /// `a * b`
    ///
    /// # Errors
    /// As [`Graph::binary`].
    pub fn mul(&mut self, a: Value, b: Value) -> Result<Value, ShapeError> {
        self.binary(a, b, Binary::Mul)
    }
}

impl Op for Binary {
    fn name(&self) -> &'static str {
        "binary"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let output = if inputs.len() == 2 {
            broadcast::infer(inputs)
        } else {
            None
        };
        output.ok_or_else(|| {
            ShapeError::new(
                "binary",
                inputs,
                "wants two activations of one type and of rank 6 at most, whose shapes broadcast",
            )
        })
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let combine = match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
        };
        broadcast::ways(combine, inputs, output, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        broadcast::reference(inputs, |[a, b, _]| match self {
            Self::Add => a + b,
            Self::Sub => a - b,
            Self::Mul => a * b,
        })
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        match self {
            Self::Add => broadcast::compute(inputs, output, |[a, b, _]| a + b),
            Self::Sub => broadcast::compute(inputs, output, |[a, b, _]| a - b),
            Self::Mul => broadcast::compute(inputs, output, |[a, b, _]| a * b),
        }
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 1.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |op, dtype, a: &[usize], b: &[usize]| Case {
            op,
            inputs: vec![TensorType::new(dtype, a), TensorType::new(dtype, b)],
        };
        vec![
            case(Self::Add, DType::F32, &[1], &[1]),
            case(Self::Add, DType::F32, &[3, 77], &[3, 77]),
            case(Self::Sub, DType::F32, &[5, 7, 33], &[33]),
            case(Self::Sub, DType::F32, &[33], &[5, 7, 33]),
            case(Self::Mul, DType::F32, &[2, 5, 1], &[1, 7]),
            case(Self::Mul, DType::F32, &[2, 3, 5, 7], &[]),
            case(Self::Add, DType::F32, &[1, 3, 1, 9], &[2, 1, 5, 1]),
            case(Self::Sub, DType::F32, &[2, 1, 3, 1, 4], &[3, 1, 2, 1]),
            case(Self::Mul, DType::F32, &[2, 1, 3, 1, 2, 1], &[1, 3, 1, 2, 1, 5]),
            case(Self::Add, DType::F16, &[3, 77], &[3, 77]),
            case(Self::Sub, DType::F16, &[2, 5, 1], &[1, 7]),
            case(Self::Mul, DType::F16, &[3, 5, 7], &[3, 1, 7]),
            case(Self::Add, DType::F32, &[1, 64, 32, 32], &[1, 64, 1, 1]),
            case(Self::Add, DType::F16, &[256, 512], &[256, 512]),
        ]
    }
}

//! `gated_add`: a residual sum whose second part is scaled.

use super::broadcast;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, TensorType, View};

/// `x + gate * y`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatedAdd;

impl Graph {
    /// `x + gate * y`, where `gate` broadcasts to the shape of `x` and `y`, e.g. from `[d]` or `[b, 1, d]`.
    ///
    /// # Errors
    /// If it does not, if `x` and `y` differ in shape, or if all are not activations of one type.
    pub fn gated_add(&mut self, x: Value, gate: Value, y: Value) -> Result<Value, ShapeError> {
        self.push(GatedAdd, &[x, gate, y])
    }
}

impl Op for GatedAdd {
    fn name(&self) -> &'static str {
        "gated_add"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match (inputs, broadcast::infer(inputs)) {
            ([x, _, y], Some(output)) if x == y && output == *x => Ok(output),
            _ => Err(ShapeError::new(
                "gated_add",
                inputs,
                "wants x, a gate that broadcasts to its shape, and y of its shape, all activations of one type and rank 6 at most",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        broadcast::ways("gated_add", inputs, output, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        broadcast::reference(inputs, |[x, gate, y]| x + gate * y)
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        broadcast::compute(inputs, output, |[x, gate, y]| x + gate * y)
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, x: &[usize], gate: &[usize]| Case {
            op: Self,
            inputs: [x, gate, x].map(|s| TensorType::new(dtype, s)).to_vec(),
        };
        vec![
            case(DType::F32, &[1], &[1]),
            case(DType::F32, &[5, 33], &[33]),
            case(DType::F32, &[2, 7, 33], &[2, 1, 33]),
            case(DType::F32, &[3, 77], &[3, 77]),
            case(DType::F16, &[2, 7, 33], &[2, 1, 33]),
            case(DType::F32, &[1, 256, 384], &[1, 1, 384]),
        ]
    }
}

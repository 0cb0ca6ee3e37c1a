//! `swiglu`: the gate of Llama-like feed-forward blocks.

use super::act::{sigmoid_f64, silu};
use super::broadcast;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, TensorType, View};

/// `silu(gate) * up`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swiglu;

impl Graph {
    /// `silu(gate) * up`, element by element; same shape and type.
    ///
    /// # Errors
    /// If the two differ in shape or type, or are no activations.
    pub fn swiglu(&mut self, gate: Value, up: Value) -> Result<Value, ShapeError> {
        self.push(Swiglu, &[gate, up])
    }
}

impl Op for Swiglu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [gate, up] if gate == up && super::is_activation(gate) => Ok(gate.clone()),
            _ => Err(ShapeError::new(
                "swiglu",
                inputs,
                "wants two activations of one shape and type",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        broadcast::ways("swiglu", inputs, output, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        broadcast::reference(inputs, |[gate, up, _]| gate * sigmoid_f64(gate) * up)
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        broadcast::compute(inputs, output, |[gate, up, _]| silu(gate) * up)
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 5.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shape: &[usize]| Case {
            op: Self,
            inputs: vec![TensorType::new(dtype, shape); 2],
        };
        vec![
            case(DType::F32, &[1]),
            case(DType::F32, &[3, 77]),
            case(DType::F16, &[3, 77]),
            case(DType::F32, &[1, 77, 1536]),
        ]
    }
}

//! `modulate`: the scale and shift of adaptive norms.

use super::broadcast;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, TensorType, View};

/// `x * (1 + scale) + shift`; the shift may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modulate;

impl Graph {
    /// `x * (1 + scale) + shift`, where `scale` and `shift` broadcast to the shape of `x`, e.g. from `[d]` or `[b, 1, d]`.
    ///
    /// # Errors
    /// If they do not broadcast to it, or if all are not activations of one type.
    pub fn modulate(&mut self, x: Value, scale: Value, shift: Option<Value>) -> Result<Value, ShapeError> {
        let inputs: Vec<_> = [x, scale].into_iter().chain(shift).collect();
        self.push(Modulate, &inputs)
    }
}

impl Op for Modulate {
    fn name(&self) -> &'static str {
        "modulate"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match broadcast::infer(inputs) {
            Some(output) if (2..=3).contains(&inputs.len()) && output == inputs[0] => Ok(output),
            _ => Err(ShapeError::new(
                "modulate",
                inputs,
                "wants an activation of rank 6 at most, and a scale and maybe a shift of its type that broadcast to its shape",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let combine = if inputs.len() == 3 {
            "modulate_shift"
        } else {
            "modulate"
        };
        broadcast::ways(combine, inputs, output, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        // A missing shift reads as zero.
        broadcast::reference(inputs, |[x, scale, shift]| x * (1.0 + scale) + shift)
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        broadcast::compute(inputs, output, |[x, scale, shift]| x * (1.0 + scale) + shift)
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 3.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shapes: &[&[usize]]| Case {
            op: Self,
            inputs: shapes.iter().map(|&s| TensorType::new(dtype, s)).collect(),
        };
        vec![
            case(DType::F32, &[&[1], &[1]]),
            case(DType::F32, &[&[5, 33], &[33]]),
            case(DType::F32, &[&[2, 7, 33], &[2, 1, 33], &[2, 1, 33]]),
            case(DType::F32, &[&[2, 7, 33], &[33], &[2, 1, 33]]),
            case(DType::F32, &[&[3, 77], &[3, 77], &[3, 77]]),
            case(DType::F16, &[&[2, 7, 33], &[2, 1, 33], &[33]]),
            case(DType::F16, &[&[5, 33], &[33]]),
            case(DType::F32, &[&[1, 256, 384], &[1, 1, 384], &[1, 1, 384]]),
        ]
    }
}

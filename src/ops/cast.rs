//! `cast`: activations in another element type.

use super::flat::flat;
use super::is_activation;
use super::parallel::map;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Tolerance, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// The same values in another element type, rounded to nearest.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// Element type of the result: `f32` or `f16`.
    pub dtype: DType,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
}

impl Graph {
    /// The same values as `f32` or `f16`, rounded to nearest; no node where the type is that already. Above 65504, `f16` has
    /// only infinity.
    ///
    /// # Errors
    /// If `x` is no activation, or `dtype` is none of the two.
    pub fn cast(&mut self, x: Value, dtype: DType) -> Result<Value, ShapeError> {
        if self.ty(x).dtype == dtype {
            return Ok(x);
        }
        self.push(Cast { dtype }, &[x])
    }
}

impl Op for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) && is_activation(&x.with_dtype(self.dtype)) => Ok(x.with_dtype(self.dtype)),
            _ => Err(ShapeError::new(
                "cast",
                inputs,
                format!("wants one activation to make {}, and that f32 or f16", self.dtype),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let kernel = KernelSpec::new(wgsl!("ops/cast"))
            .elem(output.dtype)
            .slot("from", inputs[0].dtype.name());
        let params = Params {
            count: output.count() as u32,
        };
        vec![Way::baseline(flat(kernel, &params, output.count(), caps).inputs(1))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        inputs.first().map_or_else(Vec::new, |x| x.data.to_vec())
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        map(x.data, output, |v| v);
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |from, to, shape: &[usize]| Case {
            op: Self { dtype: to },
            inputs: vec![TensorType::new(from, shape)],
        };
        vec![
            case(DType::F32, DType::F32, &[1]),
            case(DType::F32, DType::F16, &[3, 77]),
            case(DType::F16, DType::F32, &[3, 77]),
            case(DType::F16, DType::F16, &[5, 3]),
            case(DType::F32, DType::F16, &[96, 256]),
        ]
    }
}

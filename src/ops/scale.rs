//! `scale`: multiplication and addition of constants.

use super::flat::flat;
use super::{is_activation, parallel::map};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `mul * x + add`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor.
    pub mul: f32,
    /// Term.
    pub add: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    mul: f32,
    add: f32,
}

impl Graph {
    /// `mul * x + add`, element by element; same shape and type.
    ///
    /// # Errors
    /// If `x` is no activation.
    pub fn scale(&mut self, x: Value, mul: f32, add: f32) -> Result<Value, ShapeError> {
        self.push(Scale { mul, add }, &[x])
    }
}

impl Op for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) => Ok(x.clone()),
            _ => Err(ShapeError::new("scale", inputs, "wants one activation")),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let params = Params {
            count: output.count() as u32,
            mul: self.mul,
            add: self.add,
        };
        let kernel = KernelSpec::new(wgsl!("ops/scale")).elem(inputs[0].dtype);
        vec![Way::baseline(flat(kernel, &params, output.count(), caps).inputs(1))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let scaled = |&v: &f32| (f64::from(self.mul) * f64::from(v) + f64::from(self.add)) as f32;
        x.data.iter().map(scaled).collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        map(x.data, output, |v| self.mul * v + self.add);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |mul, add, dtype, shape: &[usize]| Case {
            op: Self { mul, add },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(2.0, 1.0, DType::F32, &[1]),
            case(0.3611, 0.1159, DType::F32, &[3, 5, 77]),
            case(-1000.0, 0.0, DType::F32, &[257]),
            case(0.5, 0.5, DType::F16, &[3, 77]),
        ]
    }
}

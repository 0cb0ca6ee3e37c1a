//! `unary`: activation functions as operators of their own.

use super::act::{self, gelu, gelu_tanh, quick_gelu, relu, sigmoid, silu};
use super::flat::flat;
use super::{is_activation, parallel::map};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// A function of one variable, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// `max(v, 0)`
    Relu,
    /// `v * sigmoid(v)`
    Silu,
    /// `v * Phi(v)`, with the error function.
    Gelu,
    /// GELU by its tanh formula.
    GeluTanh,
    /// `v * sigmoid(1.702 v)`
    QuickGelu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-v))`
    Sigmoid,
}

impl Unary {
    const ALL: [Self; 7] = [
        Self::Relu,
        Self::Silu,
        Self::Gelu,
        Self::GeluTanh,
        Self::QuickGelu,
        Self::Tanh,
        Self::Sigmoid,
    ];

    /// The choice for the kernel slot `act`.
    pub fn slot(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
            Self::QuickGelu => "quick_gelu",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
        }
    }

    /// The definition.
    pub fn apply(self, v: f64) -> f64 {
        match self {
            Self::Relu => act::relu_f64(v),
            Self::Silu => v * act::sigmoid_f64(v),
            Self::Gelu => act::gelu_f64(v),
            Self::GeluTanh => act::gelu_tanh_f64(v),
            Self::QuickGelu => v * act::sigmoid_f64(1.702 * v),
            Self::Tanh => v.tanh(),
            Self::Sigmoid => act::sigmoid_f64(v),
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
}

impl Graph {
    /// `op(x)` element by element; same shape and type.
    ///
    /// # Errors
    /// If `x` is no activation.
    pub fn unary(&mut self, x: Value, op: Unary) -> Result<Value, ShapeError> {
        self.push(op, &[x])
    }
}

impl Op for Unary {
    fn name(&self) -> &'static str {
        "unary"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) => Ok(x.clone()),
            _ => Err(ShapeError::new("unary", inputs, "wants one activation")),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let params = Params {
            count: output.count() as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/unary"))
            .elem(inputs[0].dtype)
            .slot("act", self.slot());
        vec![Way::baseline(flat(kernel, &params, output.count(), caps).inputs(1))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        x.data.iter().map(|&v| self.apply(f64::from(v)) as f32).collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        match self {
            Self::Relu => map(x.data, output, relu),
            Self::Silu => map(x.data, output, silu),
            Self::Gelu => map(x.data, output, gelu),
            Self::GeluTanh => map(x.data, output, gelu_tanh),
            Self::QuickGelu => map(x.data, output, quick_gelu),
            Self::Tanh => map(x.data, output, f32::tanh),
            Self::Sigmoid => map(x.data, output, sigmoid),
        }
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 5.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |op, dtype, shape: &[usize]| Case {
            op,
            inputs: vec![TensorType::new(dtype, shape)],
        };
        let mut cases = Vec::new();
        for op in Self::ALL {
            cases.push(case(op, DType::F32, &[EXTREMES.len()]));
            cases.push(case(op, DType::F32, &[3, 5, 77]));
            cases.push(case(op, DType::F16, &[3, 77]));
        }
        cases.push(case(Self::Silu, DType::F32, &[1]));
        cases.push(case(Self::Silu, DType::F32, &[1, 64, 32, 32]));
        cases
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let mut x = random_tensor(&inputs[0], uniform);
        if x.data.len() == EXTREMES.len() {
            x.data.copy_from_slice(&EXTREMES);
        } else {
            // Wide enough for the tails.
            x.data.iter_mut().for_each(|v| *v *= 6.0);
        }
        vec![x.rounded()]
    }
}

/// Where exponentials overflow, and what must pass through.
const EXTREMES: [f32; 8] = [0.0, -0.0, 1.0, 100.0, -100.0, 1000.0, -1000.0, f32::NAN];

//! `concat`: tensors one after another along an axis.

use super::flat::flat;
use super::is_activation;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Operand, Tolerance, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// Tensors one after another along an axis; all other extents are equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// Which axis.
    pub axis: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    length: u32,
    stride: u32,
    offset: u32,
}

impl Graph {
    /// Tensors of one type, one after another along an axis; all other extents are equal.
    ///
    /// # Errors
    /// If there are none, or they do not fit.
    pub fn concat(&mut self, values: &[Value], axis: usize) -> Result<Value, ShapeError> {
        self.push(Concat { axis }, values)
    }
}

impl Concat {
    /// Elements of a row that starts at the axis.
    fn row(&self, shape: &[usize]) -> usize {
        shape[self.axis..].iter().product()
    }
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let rule = || {
            let rule = format!(
                "wants activations of one type whose shapes differ on axis {} only",
                self.axis
            );
            ShapeError::new("concat", inputs, rule)
        };
        let first = inputs
            .first()
            .filter(|x| is_activation(x) && self.axis < x.shape.len())
            .ok_or_else(rule)?;
        let mut shape = first.shape.to_vec();
        shape[self.axis] = 0;
        for x in inputs {
            let mut other = x.shape.to_vec();
            let extent = other.get_mut(self.axis).map(|n| std::mem::replace(n, shape[self.axis]));
            let extent = extent
                .filter(|_| other == shape && x.dtype == first.dtype)
                .ok_or_else(rule)?;
            shape[self.axis] += extent;
        }
        Ok(TensorType::new(first.dtype, shape))
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let kernel = KernelSpec::new(wgsl!("ops/concat")).elem(output.dtype);
        let mut offset = 0;
        let launch = |(i, x): (usize, &TensorType)| {
            let length = self.row(&x.shape);
            let params = Params {
                count: x.count() as u32,
                length: length as u32,
                stride: self.row(&output.shape) as u32,
                offset: offset as u32,
            };
            offset += length;
            flat(kernel.clone(), &params, x.count(), caps).read(2, Operand::Input(i))
        };
        vec![Way {
            name: Way::BASELINE,
            launches: inputs.iter().enumerate().map(launch).collect(),
            scratch: Vec::new(),
        }]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let outer: usize = inputs.first().map_or(0, |x| x.shape()[..self.axis].iter().product());
        let mut y = Vec::new();
        for o in 0..outer {
            for x in inputs {
                let length = self.row(x.shape());
                y.extend_from_slice(&x.data[o * length..][..length]);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let stride: usize = inputs.iter().map(|x| self.row(x.shape())).sum();
        let mut offset = 0;
        for x in inputs {
            let length = self.row(x.shape());
            for (y, x) in output.chunks_exact_mut(stride).zip(x.data.chunks_exact(length)) {
                y[offset..offset + length].copy_from_slice(x);
            }
            offset += length;
        }
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |axis, dtype, shapes: &[&[usize]]| Case {
            op: Self { axis },
            inputs: shapes.iter().map(|&shape| TensorType::new(dtype, shape)).collect(),
        };
        vec![
            case(0, DType::F32, &[&[1]]),
            case(0, DType::F32, &[&[3, 5], &[1, 5], &[7, 5]]),
            case(1, DType::F32, &[&[2, 3, 5], &[2, 4, 5]]),
            case(2, DType::F16, &[&[2, 3, 5], &[2, 3, 1], &[2, 3, 4]]),
            // More inputs than a dispatch could bind.
            case(
                1,
                DType::F32,
                &[
                    &[3, 1],
                    &[3, 2],
                    &[3, 3],
                    &[3, 4],
                    &[3, 5],
                    &[3, 6],
                    &[3, 7],
                    &[3, 8],
                    &[3, 9],
                ],
            ),
            case(0, DType::F32, &[&[64, 256], &[32, 256]]),
        ]
    }
}

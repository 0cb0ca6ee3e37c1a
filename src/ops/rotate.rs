//! `rotate`: ConvRot's rotation of activations.

use super::flat::flat;
use super::parallel::pieces;
use super::{is_activation, rows};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way};
use crate::quant::rotation;
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `x H` in groups of neighbours along the last axis, `H` the matrix of [`rotation`].
#[derive(Clone, Debug, PartialEq)]
pub struct Rotate {
    /// Elements of a group: a power of 4.
    pub group: usize,
}

/// Elements that a workgroup holds: all of WebGPU's default 16 KiB at most.
const TILE: usize = 1024;
const LARGEST_TILE: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StageParams {
    count: u32,
    stride: u32,
}

impl Graph {
    /// `x` rotated in groups of `group` neighbours along its last axis; twice is `x` again. Same shape and type.
    ///
    /// # Errors
    /// If `x` is no activation, or `group` no power of 4 that divides its last axis.
    pub fn rotate(&mut self, x: Value, group: usize) -> Result<Value, ShapeError> {
        self.push(Rotate { group }, &[x])
    }
}

impl Op for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x)
                && !x.shape.is_empty()
                && rotation::is_group(self.group)
                && x.shape.last().is_multiple_of(self.group) =>
            {
                Ok(x.clone())
            }
            _ => Err(ShapeError::new(
                "rotate",
                inputs,
                format!(
                    "wants an activation whose last axis groups of {}, a power of 4, fill",
                    self.group
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let count = output.count();
        let inner = self.group.min(LARGEST_TILE);
        let tile = inner.max(TILE);
        let kernel = KernelSpec::new(wgsl!("ops/rotate"))
            .elem(inputs[0].dtype)
            .set("GROUP", inner as u32)
            .set("TILE", tile as u32)
            .set("WG", 256);
        let params = Params { count: count as u32 };
        let mut launches = vec![Launch::new(kernel, &params, caps.grid(count.div_ceil(tile))).inputs(1)];
        let mut stride = inner;
        while stride < self.group {
            let params = StageParams {
                count: (count / 4) as u32,
                stride: stride as u32,
            };
            let kernel = KernelSpec::new(wgsl!("ops/rotate_stage")).elem(inputs[0].dtype);
            launches.push(flat(kernel, &params, count / 4, caps));
            stride *= 4;
        }
        vec![Way {
            name: Way::BASELINE,
            launches,
            scratch: Vec::new(),
        }]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let groups = x.data.chunks_exact(self.group);
        let element = |x: &[f32], i: usize| -> f64 {
            let terms = x.iter().enumerate();
            terms
                .map(|(j, &v)| f64::from(v) * f64::from(rotation::entry(self.group, i, j)))
                .sum()
        };
        groups
            .flat_map(|x| (0..x.len()).map(move |i| element(x, i) as f32))
            .collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        pieces(output, self.group, |start, piece| {
            piece.copy_from_slice(&x.data[start..start + piece.len()]);
            rotation::rotate(piece, self.group);
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let (rows, cols) = rows(output);
        let stages = f64::from(self.group.trailing_zeros()) / 2.0;
        Cost {
            flops: (rows * cols) as f64 * stages * 4.0,
            ..Cost::streaming(inputs, output, 0.0)
        }
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |group, dtype, shape: &[usize]| Case {
            op: Self { group },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        use DType::{F16, F32};
        vec![
            case(4, F32, &[4]),
            case(4, F32, &[33, 20]),
            case(16, F32, &[7, 3, 48]),
            case(64, F16, &[5, 192]),
            case(64, F32, &[31, 64]),
            case(256, F32, &[1, 256]),
            case(256, F32, &[19, 768]),
            case(256, F16, &[3, 1280]),
            case(1024, F32, &[3, 2048]),
            case(4096, F32, &[2, 4096]),
            case(4096, F16, &[1, 8192]),
            case(16_384, F32, &[2, 16_384]),
            case(16_384, F16, &[1, 16_384]),
        ]
    }
}

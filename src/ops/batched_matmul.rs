//! `batched_matmul`: products of two activations.

use super::{is_activation, tiles::Tiles};
use crate::cpu::gemm::{Mat, Threads, gemm};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way};
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `scale * a b` for each pair of matrices, or `scale * a b^T`.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchedMatmul {
    /// Whether `b` is `[.., n, k]` and not `[.., k, n]`.
    pub transpose_b: bool,
    /// Factor on the product.
    pub scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    batches: u32,
    m: u32,
    n: u32,
    k: u32,
    scale: f32,
}

impl Graph {
    /// `scale * a b` over the last two axes: `a` of `[.., m, k]` and `b` of `[.., k, n]`, or `[.., n, k]` with `transpose_b`, give
    /// `[.., m, n]`. Leading axes are equal.
    ///
    /// # Errors
    /// If the operands are no activations of one type, or their sizes do not fit.
    pub fn batched_matmul(&mut self, a: Value, b: Value, transpose_b: bool, scale: f32) -> Result<Value, ShapeError> {
        self.push(BatchedMatmul { transpose_b, scale }, &[a, b])
    }
}

/// Sizes of checked operands.
struct Sizes {
    batches: usize,
    m: usize,
    n: usize,
    k: usize,
}

impl BatchedMatmul {
    fn sizes(&self, a: &TensorType, b: &TensorType) -> Sizes {
        let (lead, last) = a.shape.split_at(a.shape.len() - 2);
        let b = &b.shape[b.shape.len() - 2..];
        Sizes {
            batches: lead.iter().product(),
            m: last[0],
            n: b[usize::from(!self.transpose_b)],
            k: last[1],
        }
    }
}

impl Op for BatchedMatmul {
    fn name(&self) -> &'static str {
        "batched_matmul"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let refuse = |rule: &str| Err(ShapeError::new("batched_matmul", inputs, rule));
        let [a, b] = inputs else {
            return refuse("wants a and b");
        };
        if !is_activation(a) || a.dtype != b.dtype {
            return refuse("a and b must be activations of one type");
        }
        let rank = a.shape.len();
        if rank < 2 || b.shape.len() != rank || a.shape[..rank - 2] != b.shape[..rank - 2] {
            return refuse("a and b must have equal leading axes before the last two");
        }
        let Sizes { m, n, k, .. } = self.sizes(a, b);
        if b.shape[rank - 1 - usize::from(!self.transpose_b)] != k {
            return refuse(match self.transpose_b {
                true => "inner sizes differ: a [.., m, k], b [.., n, k]",
                false => "inner sizes differ: a [.., m, k], b [.., k, n]",
            });
        }
        let y = [&a.shape[..rank - 2], &[m, n]].concat();
        Ok(TensorType::new(a.dtype, y))
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let Sizes { batches, m, n, k } = self.sizes(&inputs[0], &inputs[1]);
        let tiles = Tiles::new(m, n, batches);
        let params = Params {
            batches: batches as u32,
            m: m as u32,
            n: n as u32,
            k: k as u32,
            scale: self.scale,
        };
        let kernel = tiles
            .fill(KernelSpec::new(wgsl!("ops/batched_matmul")))
            .elem(inputs[0].dtype)
            .set("TRANSPOSED", u32::from(self.transpose_b))
            .set("ALONG_J", u32::from(!self.transpose_b));
        vec![Way::baseline(
            Launch::new(kernel, &params, caps.grid(tiles.count())).inputs(2),
        )]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [a, b] = inputs else { return Vec::new() };
        let Sizes { batches, m, n, k } = self.sizes(a.ty, b.ty);
        let mut y = Vec::with_capacity(batches * m * n);
        for p in 0..batches {
            let b_at = |l: usize, j: usize| match self.transpose_b {
                true => b.data[(p * n + j) * k + l],
                false => b.data[(p * k + l) * n + j],
            };
            for i in 0..m {
                let a = &a.data[(p * m + i) * k..][..k];
                for j in 0..n {
                    let products = a.iter().enumerate().map(|(l, &v)| f64::from(v) * f64::from(b_at(l, j)));
                    y.push((f64::from(self.scale) * products.sum::<f64>()) as f32);
                }
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [a, b] = inputs else { return false };
        let Sizes { batches, m, n, k } = self.sizes(a.ty, b.ty);
        if output.is_empty() {
            return true;
        }
        let product = |p: usize, y: &mut [f32], threads| {
            let (a, b) = (&a.data[p * m * k..][..m * k], &b.data[p * k * n..][..k * n]);
            let b = match self.transpose_b {
                true => Mat::rows(b, k).t(),
                false => Mat::rows(b, n),
            };
            gemm([m, n, k], Mat::rows(a, k), b, y, n, self.scale, 0.0, threads);
        };
        #[cfg(feature = "native")]
        if batches > 1 {
            use rayon::prelude::*;
            let products = output.par_chunks_mut(m * n).enumerate();
            products.for_each(|(p, y)| product(p, y, Threads::One));
            return true;
        }
        for (p, y) in output.chunks_mut(m * n).enumerate().take(batches) {
            product(p, y, Threads::All);
        }
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0 * inputs[0].shape.last() as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |transpose_b, scale, dtype, lead: &[usize], [m, n, k]: [usize; 3]| {
            let b = if transpose_b { [n, k] } else { [k, n] };
            Case {
                op: Self { transpose_b, scale },
                inputs: vec![
                    TensorType::new(dtype, [lead, &[m, k]].concat()),
                    TensorType::new(dtype, [lead, &b].concat()),
                ],
            }
        };
        vec![
            case(false, 1.0, DType::F32, &[], [1, 1, 1]),
            case(false, 1.0, DType::F32, &[3], [33, 17, 65]),
            case(true, 0.125, DType::F32, &[2, 3], [17, 70, 33]),
            case(false, -2.0, DType::F16, &[2], [70, 66, 20]),
            case(true, 1.0, DType::F16, &[2], [5, 129, 31]),
            case(true, 1.0, DType::F32, &[32], [129, 130, 9]),
            case(false, 1.0, DType::F16, &[128], [65, 66, 3]),
            case(true, 0.125, DType::F32, &[4], [96, 96, 64]),
            case(false, 1.0, DType::F32, &[4], [96, 64, 96]),
        ]
    }
}

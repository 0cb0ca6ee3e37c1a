//! `matmul_i8`: products of codes in integers, scaled by row and by column.

use super::{Act, Epilogue, Fused, is_packed_matrix, rows};
use crate::cpu::codes;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way};
use crate::tensor::{DType, Part, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `y[.., j] = epilogue(f32(sum_k x[.., k] * w[j, k]) * (s[..] * t[j]))` for codes `x` and `w` and scales `s` and `t`; the sum is an
/// `i32` and exact.
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulI8 {
    /// Element type of the result.
    pub dtype: DType,
    /// What happens to the scaled sums.
    pub fused: Fused,
}

/// With more codes in a row, a sum of products of -128 might overflow.
const MAX_K: usize = (1 << 17) - 1;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    m: u32,
    n: u32,
    k: u32,
    first: u32,
    cols: u32,
}

impl Graph {
    /// `residual + gate * act(x w^T * (s t) + bias)` for codes `x` of `[.., k]` with a scale `s` for each row, as
    /// [`Graph::quantize_rows`] gives them, and a weight `w` of codes `[n, k]` with `t` of `[n]`: `[.., n]` in the graph's type.
    ///
    /// # Errors
    /// If these do not fit each other, or a part of the epilogue the output; the epilogue has no scale of its own.
    pub fn matmul_i8(
        &mut self,
        (x, s): (Value, Value),
        (w, t): (Value, Value),
        epilogue: Epilogue,
    ) -> Result<Value, ShapeError> {
        let (dtype, fused) = (self.dtype(), epilogue.fused());
        self.push(MatmulI8 { dtype, fused }, &epilogue.inputs(&[x, w, s, t]))
    }
}

impl MatmulI8 {
    fn way(&self, name: &'static str, four: &'static str, inputs: &[TensorType], caps: &Caps) -> Way {
        let ((m, k), cols) = (rows(&inputs[0]), inputs[1].shape[0]);
        let ly = match m {
            0..=16 => 4,
            17..=32 => 8,
            _ => 16,
        };
        let launch = |(index, part): (usize, Part)| {
            let n = part.ty.shape[0];
            let params = Params {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                first: part.first as u32,
                cols: cols as u32,
            };
            let kernel = KernelSpec::new(wgsl!("ops/matmul_i8"))
                .elem(self.dtype)
                .slot("four", four)
                .set("LY", ly as u32)
                .set("WHOLE", u32::from(k.is_multiple_of(4)));
            let grid = caps.grid(m.div_ceil(4 * ly) * n.div_ceil(64));
            let launch = Launch::new(self.fused.fill(kernel), &params, grid).inputs(1);
            let launch = launch.read(3, Operand::Part(1, index)).read(7, Operand::Input(3));
            self.fused.bind(launch.read(8, Operand::Input(2)), 4)
        };
        Way {
            name,
            ..Way::parts(caps.parts(&inputs[1]).into_iter().enumerate().map(launch).collect())
        }
    }
}

impl Op for MatmulI8 {
    fn name(&self) -> &'static str {
        "matmul_i8"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let refuse = |rule: &str| Err(ShapeError::new("matmul_i8", inputs, rule));
        let [x, w, s, t, ..] = inputs else {
            return refuse("wants x, w and their scales");
        };
        if x.dtype != DType::I8 || x.shape.is_empty() || w.dtype != DType::I8 || !is_packed_matrix(w) {
            return refuse("x [.., k] and w [n, k] must be I8 codes");
        }
        if x.shape.last() != w.shape[1] || w.count() == 0 {
            return refuse("inner sizes differ: x [.., k], w [n, k]");
        }
        if w.shape[1] > MAX_K {
            return refuse("rows of 2^17 codes and more might overflow their sum");
        }
        let vector = |len: usize| TensorType::new(DType::F32, [len]);
        if *s != vector(rows(x).0) || *t != vector(w.shape[0]) {
            return refuse("wants an f32 scale for each row of x and of w");
        }
        if self.fused.scale {
            return refuse("the epilogue has no scale of its own");
        }
        let mut y = x.shape.to_vec();
        if let Some(last) = y.last_mut() {
            *last = w.shape[0];
        }
        let y = TensorType::new(self.dtype, y);
        self.fused.check("matmul_i8", inputs, 4, &y, w.shape[0])?;
        Ok(y)
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let baseline = self.way(Way::BASELINE, "unpacked", inputs, caps);
        if !caps.packed_dot || caps.parts(&inputs[1]).len() > 1 {
            return vec![baseline];
        }
        vec![self.way("packed", "packed", inputs, caps), baseline]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, w, s, t, parts @ ..] = inputs else {
            return Vec::new();
        };
        let (k, n) = (w.shape()[1], w.shape()[0]);
        let fused = self.fused.values(parts);
        let (a, b) = (x.values(), w.values());
        let mut y = Vec::with_capacity(a.len() / k * n);
        for (i, a) in a.chunks_exact(k).enumerate() {
            for (j, b) in b.chunks_exact(k).enumerate() {
                let sum: i64 = a.iter().zip(b).map(|(&a, &b)| a as i64 * b as i64).sum();
                let scaled = sum as f64 * f64::from(s.data[i]) * f64::from(t.data[j]);
                y.push(fused.define(scaled, i * n + j, j) as f32);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, w, s, t, parts @ ..] = inputs else { return false };
        let (k, n) = (w.shape()[1], w.shape()[0]);
        codes::multiply(k, &x.values(), w.blocks, |i, j, sum| {
            output[i * n + j] = sum as f32 * (s.data[i] * t.data[j]);
        });
        self.fused.values(parts).finish_all_rows(output, n);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0 * inputs[1].shape[1] as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shape: &[usize], n: usize, bias, act, residual, gate| {
            let fused = Fused {
                bias,
                act,
                residual,
                gate,
                scale: false,
            };
            let x = TensorType::new(DType::I8, shape);
            let (m, k) = rows(&x);
            let y = TensorType::new(dtype, [&shape[..shape.len() - 1], &[n]].concat());
            let vector = |len: usize| TensorType::new(DType::F32, [len]);
            let mut inputs = vec![x, TensorType::new(DType::I8, [n, k]), vector(m), vector(n)];
            inputs.extend(fused.types(&y, n));
            Case {
                op: Self { dtype, fused },
                inputs,
            }
        };
        use Act::{None, Silu};
        use DType::{F16, F32};
        vec![
            case(F32, &[1, 4], 1, false, None, false, false),
            case(F32, &[33, 64], 17, true, None, true, true),
            case(F32, &[2, 35, 132], 70, false, Silu, false, false),
            case(F32, &[19, 37], 67, true, None, true, false),
            case(F32, &[3, 2052], 65, true, None, false, false),
            case(F16, &[40, 48], 130, true, Silu, true, true),
            case(F16, &[300], 5, false, None, false, false),
        ]
    }
}

//! `matmul`: activations times a weight matrix, with a fused epilogue.

use super::{Act, Epilogue, Fused, is_activation, is_packed_matrix, is_weight, tiles::Tiles};
use crate::cpu::gemm::{Mat, Threads, gemm};
use crate::cpu::packed;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way};
use crate::tensor::{DType, Part, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `y[.., j] = epilogue(sum_k x[.., k] * w[j, k])`.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// What happens to the sums.
    pub fused: Fused,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    m: u32,
    n: u32,
    k: u32,
    first: u32,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct LanesParams {
    m: u32,
    n: u32,
    k: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RowsParams {
    n: u32,
    k: u32,
}

impl Graph {
    /// `residual + gate * act(scale * x w^T + bias)` for `x` of `[.., k]` and a weight `w` of `[n, k]`: `[.., n]`, typed like `x`.
    ///
    /// # Errors
    /// If the inner sizes differ, `x` is no activation or `w` no matrix of floats, blocks or I8 codes; if a part of the epilogue does not
    /// fit the output, or a gate comes without a residual.
    pub fn matmul(&mut self, x: Value, w: Value, epilogue: Epilogue) -> Result<Value, ShapeError> {
        let fused = epilogue.fused();
        self.push(Matmul { fused }, &epilogue.inputs(&[x, w]))
    }
}

/// `m`, `n` and `k` of checked inputs.
fn sizes(x: &TensorType, w: &TensorType) -> [usize; 3] {
    let (n, k) = (w.shape[0], w.shape[1]);
    [x.count() / k.max(1), n, k]
}

impl Matmul {
    fn kernel(&self, kernel: KernelSpec, inputs: &[TensorType]) -> KernelSpec {
        let kernel = kernel.elem(inputs[0].dtype).slot("weight", inputs[1].dtype.name());
        self.fused.fill(kernel)
    }

    fn way(&self, name: &'static str, kernel: KernelSpec, params: &impl bytemuck::NoUninit, grid: [u32; 3]) -> Way {
        Way::single(name, self.fused.bind(Launch::new(kernel, params, grid).inputs(2), 2))
    }

    fn baseline(&self, inputs: &[TensorType], caps: &Caps) -> Way {
        let [m, cols, k] = sizes(&inputs[0], &inputs[1]);
        let launch = |(index, part): (usize, Part)| {
            let n = part.ty.shape[0];
            let tiles = Tiles::new(m, n, 1);
            let params = Params {
                m: m as u32,
                n: n as u32,
                k: k as u32,
                first: part.first as u32,
                cols: cols as u32,
            };
            let kernel = self.kernel(tiles.fill(KernelSpec::new(wgsl!("ops/matmul"))), inputs);
            let launch = Launch::new(kernel, &params, caps.grid(tiles.count())).inputs(1);
            self.fused.bind(launch.read(3, Operand::Part(1, index)), 2)
        };
        Way::parts(caps.parts(&inputs[1]).into_iter().enumerate().map(launch).collect())
    }

    /// For software adapters such as llvmpipe.
    fn lanes(&self, inputs: &[TensorType], caps: &Caps) -> Way {
        let [m, n, k] = sizes(&inputs[0], &inputs[1]);
        let kernel = match inputs[1].dtype.is_packed() && k.is_multiple_of(8) {
            true => KernelSpec::new(wgsl!("ops/matmul_lanes8")),
            false => KernelSpec::new(wgsl!("ops/matmul_lanes")).set("PAIRS", u32::from(k.is_multiple_of(2))),
        };
        let params = LanesParams {
            m: m as u32,
            n: n as u32,
            k: k as u32,
        };
        let grid = caps.grid(m.div_ceil(16) * n.div_ceil(32));
        self.way("lanes", self.kernel(kernel, inputs), &params, grid)
    }

    /// For few rows, where reading the weights is all that matters.
    fn rows(&self, inputs: &[TensorType], caps: &Caps) -> Way {
        const COLS: usize = 4;
        let [m, n, k] = sizes(&inputs[0], &inputs[1]);
        // Packed weights are cheap to decode in eights.
        let step = match inputs[1].dtype.is_packed() && k.is_multiple_of(8) {
            true => 8,
            false if k.is_multiple_of(2) => 2,
            false => 1,
        };
        let kernel = KernelSpec::new(wgsl!("ops/matmul_rows"))
            .set("M", m as u32)
            .set("COLS", COLS as u32)
            .set("STEP", step)
            .set("WG", 64);
        let params = RowsParams {
            n: n as u32,
            k: k as u32,
        };
        self.way(
            "rows",
            self.kernel(kernel, inputs),
            &params,
            caps.grid(n.div_ceil(COLS)),
        )
    }
}

impl Op for Matmul {
    fn name(&self) -> &'static str {
        "matmul"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let refuse = |rule: &str| Err(ShapeError::new("matmul", inputs, rule));
        let [x, w, ..] = inputs else {
            return refuse("wants x and w");
        };
        if !is_activation(x) || x.shape.is_empty() {
            return refuse("x must be an activation of rank 1 or more");
        }
        if w.shape.len() != 2 || !(is_weight(w) || is_packed_matrix(w)) {
            return refuse("w must be a weight [n, k] of F32, F16, BF16, I8 or whole blocks");
        }
        if x.shape.last() != w.shape[1] {
            return refuse("inner sizes differ: x [.., k], w [n, k]");
        }
        if w.count() == 0 {
            return refuse("w must not be empty");
        }
        let mut y = x.shape.to_vec();
        if let Some(last) = y.last_mut() {
            *last = w.shape[0];
        }
        let y = TensorType::new(x.dtype, y);
        self.fused.check("matmul", inputs, 2, &y, w.shape[0])?;
        Ok(y)
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let mut ways = Vec::new();
        if caps.parts(&inputs[1]).len() > 1 {
            return vec![self.baseline(inputs, caps)];
        }
        // For few rows all that counts is reading the weights: on llvmpipe `lanes` loses to `rows` there.
        if (1..=4).contains(&sizes(&inputs[0], &inputs[1])[0]) {
            ways.push(self.rows(inputs, caps));
        }
        if caps.lanes() {
            ways.push(self.lanes(inputs, caps));
        }
        ways.push(self.baseline(inputs, caps));
        ways
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, w, parts @ ..] = inputs else { return Vec::new() };
        let [m, n, k] = sizes(x.ty, w.ty);
        let fused = self.fused.values(parts);
        let w = w.values();
        let mut y = Vec::with_capacity(m * n);
        for i in 0..m {
            for j in 0..n {
                let (a, b) = (&x.data[i * k..][..k], &w[j * k..][..k]);
                let sum = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                y.push(fused.define(sum, i * n + j, j) as f32);
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, w, parts @ ..] = inputs else { return false };
        let [m, n, k] = sizes(x.ty, w.ty);
        if w.blocks.is_empty() {
            let (a, b) = (Mat::rows(x.data, k), Mat::rows(w.data, k).t());
            gemm([m, n, k], a, b, output, n, 1.0, 0.0, Threads::All);
        } else {
            packed::multiply([m, n, k], x.data, *w, output);
        }
        self.fused.values(parts).finish_all_rows(output, n);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0 * inputs[1].shape[1] as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |x, w, shape: &[usize], n: usize, bias, act, residual, gate| {
            let fused = Fused {
                bias,
                act,
                residual,
                gate,
                scale: w == DType::I8,
            };
            let x = TensorType::new(x, shape);
            let k = x.shape.last();
            let y = [&shape[..shape.len() - 1], &[n]].concat();
            let y = TensorType::new(x.dtype, y);
            let mut inputs = vec![x, TensorType::new(w, [n, k])];
            inputs.extend(fused.types(&y, n));
            Case {
                op: Self { fused },
                inputs,
            }
        };
        use Act::{Gelu, GeluTanh, None, Relu, Silu};
        use DType::{BF16, F16, F32, I8, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
        vec![
            case(F32, F32, &[1, 1], 1, false, None, false, false),
            case(F32, F32, &[33, 65], 17, false, None, false, false),
            case(F32, F32, &[2, 35, 130], 70, true, Silu, true, true),
            case(F32, F16, &[33, 65], 17, true, Relu, false, false),
            case(F32, F16, &[66, 66], 129, false, Gelu, true, false),
            case(F32, BF16, &[19, 37], 67, true, GeluTanh, true, false),
            case(F32, BF16, &[65, 128], 96, false, None, true, true),
            case(F16, F16, &[40, 50], 70, true, Silu, true, true),
            case(F16, BF16, &[17, 33], 33, false, None, false, false),
            case(F16, F32, &[3, 20, 48], 31, true, None, true, false),
            case(F32, F32, &[301], 45, true, Silu, true, true),
            case(F32, F16, &[2, 128], 37, false, None, false, false),
            case(F32, BF16, &[4, 77], 50, true, None, true, true),
            case(F16, BF16, &[3, 130], 65, true, Gelu, false, false),
            case(F32, BF16, &[1, 5], 3000, false, None, false, false),
            case(F32, F32, &[130, 2], 130, true, None, false, false),
            case(F32, BF16, &[65, 9], 16_257, true, None, false, false),
            case(F32, BF16, &[1, 256], 1024, true, None, false, false),
            case(F32, BF16, &[96, 256], 682, false, None, false, false),
            case(F32, Q8_0, &[33, 64], 17, true, None, true, true),
            case(F32, Q8_0, &[2, 35, 96], 131, false, Silu, false, false),
            case(F16, Q8_0, &[3, 160], 65, true, None, false, false),
            case(F32, Q4_0, &[33, 96], 17, true, None, true, false),
            case(F16, Q4_0, &[2, 64], 33, false, None, false, false),
            case(F32, Q4_1, &[2, 17, 64], 35, true, Silu, false, false),
            case(F32, Q5_0, &[33, 96], 17, false, Gelu, false, false),
            case(F32, Q5_0, &[1, 32], 65, true, None, false, false),
            case(F32, Q5_1, &[18, 64], 67, true, None, true, true),
            case(F32, Q2K, &[17, 512], 35, true, None, false, false),
            case(F32, Q3K, &[17, 256], 67, false, None, true, false),
            case(F16, Q3K, &[3, 512], 33, false, None, false, false),
            case(F32, Q4K, &[33, 256], 17, true, None, true, true),
            case(F16, Q4K, &[35, 512], 66, true, Silu, false, false),
            case(F32, Q4K, &[2, 768], 50, true, None, false, false),
            case(F32, Q5K, &[19, 512], 35, true, None, false, false),
            case(F32, Q6K, &[17, 256], 67, true, Gelu, false, false),
            case(F32, Q6K, &[4, 768], 33, false, None, false, false),
            case(F16, Q6K, &[33, 512], 65, true, None, true, true),
            case(F32, I8, &[33, 64], 17, true, None, true, true),
            case(F32, I8, &[35, 37], 131, false, Silu, false, false),
            case(F16, I8, &[3, 162], 65, true, None, false, false),
        ]
    }
}

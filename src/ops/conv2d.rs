//! `conv2d`: filters over pictures, with a fused epilogue.

use super::{Act, Epilogue, Fused, is_activation, is_weight, tiles::Tiles};
use crate::cpu::conv::{self, Sizes};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way};
use crate::tensor::{DType, Part, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// How filters move over a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Rows and columns from one patch to the next.
    pub stride: [usize; 2],
    /// Zeros around the picture: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl Conv2d {
    /// Stride 1, and `n` zeros on every side.
    pub const fn padded(n: usize) -> Self {
        Self {
            stride: [1, 1],
            padding: [n; 4],
        }
    }
}

/// [`Conv2d`] as an op:
/// `y[b, o, p, q] = epilogue(sum_{c, i, j} w[o, c, i, j] * x[b, c, p * stride - top + i, q * stride - left + j])`.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolve {
    /// How the filters move.
    pub conv: Conv2d,
    /// What happens to the sums.
    pub fused: Fused,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    pictures: u32,
    channels: u32,
    height: u32,
    width: u32,
    filters: u32,
    rows: u32,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PartParams {
    of: Params,
    first: u32,
    all_filters: u32,
}

impl Params {
    fn of(s: &Sizes) -> Self {
        Self {
            pictures: s.batches as u32,
            channels: s.ci as u32,
            height: s.x[0] as u32,
            width: s.x[1] as u32,
            filters: s.co as u32,
            rows: s.y[0] as u32,
            cols: s.y[1] as u32,
        }
    }
}

impl Graph {
    /// `residual + act(conv(x, w) + bias)` for pictures `x` of `[n, ci, h, w]` and filters `w` of `[co, ci, kh, kw]`:
    /// `[n, co, p, q]` with `p = (h + top + bottom - kh) / stride + 1` and `q` likewise, typed like `x`.
    ///
    /// # Errors
    /// If the channels differ, `x` is no activation or `w` no F32, F16 or BF16 filter; if a filter is larger than the padded
    /// picture, a stride is zero, a part of the epilogue does not fit the output, or there is a gate.
    pub fn conv2d(&mut self, x: Value, w: Value, conv: Conv2d, epilogue: Epilogue) -> Result<Value, ShapeError> {
        let fused = epilogue.fused();
        self.push(Convolve { conv, fused }, &epilogue.inputs(&[x, w]))
    }
}

impl Convolve {
    fn sizes(&self, x: &TensorType, w: &TensorType, y: &TensorType) -> Sizes {
        Sizes {
            batches: x.shape[0],
            ci: x.shape[1],
            co: w.shape[0],
            x: [x.shape[2], x.shape[3]],
            kernel: [w.shape[2], w.shape[3]],
            y: [y.shape[2], y.shape[3]],
            stride: self.conv.stride,
            before: [self.conv.padding[0], self.conv.padding[1]],
        }
    }

    fn kernel(&self, kernel: KernelSpec, s: &Sizes, inputs: &[TensorType]) -> KernelSpec {
        let kernel = kernel
            .elem(inputs[0].dtype)
            .slot("weight", inputs[1].dtype.name())
            .set("KH", s.kernel[0] as u32)
            .set("KW", s.kernel[1] as u32)
            .set("SY", s.stride[0] as u32)
            .set("SX", s.stride[1] as u32)
            .set("TOP", s.before[0] as u32)
            .set("LEFT", s.before[1] as u32);
        self.fused.fill(kernel)
    }

    fn way(&self, name: &'static str, kernel: KernelSpec, s: &Sizes, inputs: &[TensorType], grid: [u32; 3]) -> Way {
        let launch = Launch::new(self.kernel(kernel, s, inputs), &Params::of(s), grid).inputs(2);
        Way::single(name, self.fused.bind(launch, 2))
    }

    fn baseline(&self, s: &Sizes, inputs: &[TensorType], parts: Vec<Part>, caps: &Caps) -> Way {
        let launch = |(index, part): (usize, Part)| {
            let filters = part.ty.shape[0];
            let params = PartParams {
                of: Params {
                    filters: filters as u32,
                    ..Params::of(s)
                },
                first: part.first as u32,
                all_filters: s.co as u32,
            };
            let tiles = Tiles::new(filters, s.pixels(), s.batches);
            let kernel = tiles.fill(KernelSpec::new(wgsl!("ops/conv2d"))).set("ALONG_J", 1);
            let launch = Launch::new(self.kernel(kernel, s, inputs), &params, caps.grid(tiles.count())).inputs(1);
            self.fused.bind(launch.read(3, Operand::Part(1, index)), 2)
        };
        Way::parts(parts.into_iter().enumerate().map(launch).collect())
    }

    /// Extent of the output along an axis, if the filter fits and kernels can count to its end.
    fn extent(&self, axis: usize, x: usize, kernel: usize) -> Option<usize> {
        let [before, after] = [self.conv.padding[axis], self.conv.padding[axis + 2]];
        let padded = x.checked_add(before)?.checked_add(after)?;
        if padded > i32::MAX as usize {
            return None;
        }
        padded
            .checked_sub(kernel)?
            .checked_div(self.conv.stride[axis])?
            .checked_add(1)
    }
}

impl Op for Convolve {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let refuse = |rule: &str| Err(ShapeError::new("conv2d", inputs, rule));
        let [x, w, ..] = inputs else {
            return refuse("wants x and w");
        };
        if !is_activation(x) || x.shape.len() != 4 || x.shape[2] == 0 || x.shape[3] == 0 {
            return refuse("x must be an activation [n, ci, h, w] with pixels");
        }
        if !is_weight(w) || w.shape.len() != 4 || w.count() == 0 {
            return refuse("w must be a weight [co, ci, kh, kw] of F32, F16 or BF16, and not empty");
        }
        if x.shape[1] != w.shape[1] {
            return refuse("channels differ: x [n, ci, h, w], w [co, ci, kh, kw]");
        }
        if self.conv.stride.iter().any(|s| !(1..=i32::MAX as usize).contains(s)) {
            return refuse("a stride must be 1 or more");
        }
        let extent = |axis: usize| self.extent(axis, x.shape[axis + 2], w.shape[axis + 2]);
        let (Some(height), Some(width)) = (extent(0), extent(1)) else {
            return refuse("the filter must fit the padded picture, and that must be smaller than 2^31");
        };
        if self.fused.gate {
            return refuse("a convolution has no gate");
        }
        let y = TensorType::new(x.dtype, [x.shape[0], w.shape[0], height, width]);
        self.fused.check("conv2d", inputs, 2, &y, w.shape[0])?;
        Ok(y)
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let s = self.sizes(&inputs[0], &inputs[1], output);
        let parts = caps.parts(&inputs[1]);
        let mut ways = Vec::new();
        if parts.len() > 1 {
            return vec![self.baseline(&s, inputs, parts, caps)];
        }
        if caps.lanes() && s.stride[0] == 1 {
            let eights = if s.co <= 8 { 1 } else { 2 };
            let kernel = KernelSpec::new(wgsl!("ops/conv2d_columns")).set("EIGHTS", eights as u32);
            let count = s.co.div_ceil(8 * eights) * s.y[0].div_ceil(8) * s.y[1].div_ceil(8) * s.batches;
            ways.push(self.way("columns", kernel, &s, inputs, caps.grid(count)));
        } else if caps.lanes() {
            let kernel = KernelSpec::new(wgsl!("ops/conv2d_lanes"));
            let count = s.co.div_ceil(16) * s.pixels().div_ceil(32) * s.batches;
            ways.push(self.way("lanes", kernel, &s, inputs, caps.grid(count)));
        }
        ways.push(self.baseline(&s, inputs, parts, caps));
        ways
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, w, parts @ ..] = inputs else { return Vec::new() };
        let types: Vec<_> = inputs.iter().map(|view| view.ty.clone()).collect();
        let Ok(output) = self.infer(&types) else {
            return Vec::new();
        };
        let s = self.sizes(x.ty, w.ty, &output);
        let fused = self.fused.values(parts);
        let mut y = Vec::with_capacity(output.count());
        for b in 0..s.batches {
            for o in 0..s.co {
                for p in 0..s.y[0] {
                    for q in 0..s.y[1] {
                        let sum = patch(&s, x.data, w.data, [b, o, p, q]);
                        y.push(fused.define(sum, y.len(), o) as f32);
                    }
                }
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, w, parts @ ..] = inputs else { return false };
        let types: Vec<_> = inputs.iter().map(|view| view.ty.clone()).collect();
        let Ok(y) = self.infer(&types) else { return false };
        let s = self.sizes(x.ty, w.ty, &y);
        conv::convolve(&s, x.data, w.data, &self.fused.values(parts), output);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let filter = inputs[1].count() / inputs[1].shape[0].max(1);
        Cost::streaming(inputs, output, 2.0 * filter as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        use Act::{Gelu, None, Relu, Silu};
        use DType::{BF16, F16, F32};
        let same = Conv2d::padded(1);
        let down = Conv2d {
            stride: [2, 2],
            padding: [0, 0, 1, 1],
        };
        let moved = |stride, padding| Conv2d { stride, padding };
        let point = Conv2d::padded(0);
        vec![
            case([F32, F32], [1, 1, 1, 1], [1, 1, 1], point, [false, false], None),
            case([F32, F32], [1, 1, 1, 1], [3, 3, 3], same, [true, false], None),
            case([F32, F32], [1, 3, 9, 13], [5, 3, 3], same, [true, false], Silu),
            case([F32, BF16], [2, 5, 7, 11], [17, 3, 3], same, [true, true], Relu),
            case([F32, F16], [1, 17, 12, 7], [3, 3, 3], same, [false, true], None),
            case([F16, BF16], [1, 6, 9, 10], [20, 3, 3], same, [true, true], Silu),
            case([F16, F32], [2, 3, 5, 8], [70, 3, 3], same, [true, false], None),
            case([F32, BF16], [1, 5, 9, 12], [7, 3, 3], down, [true, false], None),
            case([F16, F16], [2, 4, 8, 8], [4, 3, 3], down, [false, false], Gelu),
            case(
                [F32, F32],
                [1, 5, 13, 6],
                [3, 3, 3],
                moved([2, 1], [1, 1, 1, 1]),
                [true, false],
                None,
            ),
            case([F32, F32], [2, 33, 5, 7], [19, 1, 1], point, [true, true], None),
            case([F16, F16], [1, 18, 6, 6], [35, 1, 1], point, [true, false], None),
            case(
                [F32, BF16],
                [1, 6, 11, 9],
                [5, 1, 1],
                moved([2, 2], [0; 4]),
                [true, false],
                None,
            ),
            case(
                [F32, F32],
                [1, 3, 11, 10],
                [6, 5, 5],
                Conv2d::padded(2),
                [true, true],
                Silu,
            ),
            case(
                [F32, F16],
                [1, 4, 9, 10],
                [6, 3, 1],
                moved([1, 1], [1, 0, 1, 0]),
                [true, false],
                None,
            ),
            case(
                [F32, F32],
                [1, 4, 6, 9],
                [3, 1, 4],
                moved([1, 3], [0, 1, 0, 3]),
                [false, false],
                None,
            ),
            // Padding wider than the filter, and a single output.
            case(
                [F32, F32],
                [1, 2, 3, 2],
                [3, 2, 2],
                moved([1, 1], [3, 2, 0, 4]),
                [true, false],
                None,
            ),
            case(
                [F32, F32],
                [1, 7, 4, 4],
                [9, 4, 4],
                moved([4, 4], [0; 4]),
                [true, false],
                None,
            ),
            // Enough tiles for the large ones.
            case([F32, F32], [2, 1, 64, 130], [72, 1, 1], point, [true, false], None),
            case([F32, BF16], [1, 32, 32, 32], [32, 3, 3], same, [true, true], Silu),
            case([F32, BF16], [1, 96, 16, 16], [96, 3, 3], same, [true, false], None),
        ]
    }
}

/// The sum over one patch.
fn patch(s: &Sizes, x: &[f32], w: &[f32], [b, o, p, q]: [usize; 4]) -> f64 {
    let mut sum = 0.0;
    for c in 0..s.ci {
        for i in 0..s.kernel[0] {
            for j in 0..s.kernel[1] {
                let row = (p * s.stride[0] + i).wrapping_sub(s.before[0]);
                let col = (q * s.stride[1] + j).wrapping_sub(s.before[1]);
                if row < s.x[0] && col < s.x[1] {
                    let weight = w[((o * s.ci + c) * s.kernel[0] + i) * s.kernel[1] + j];
                    sum += f64::from(weight) * f64::from(x[((b * s.ci + c) * s.x[0] + row) * s.x[1] + col]);
                }
            }
        }
    }
    sum
}

/// Pictures `x`, filters `[co, kh, kw]`, and whether there are a bias and a residual.
fn case(
    [x, w]: [DType; 2],
    pictures: [usize; 4],
    [co, kh, kw]: [usize; 3],
    conv: Conv2d,
    [bias, residual]: [bool; 2],
    act: Act,
) -> Case<Convolve> {
    let fused = |bias, residual| Fused {
        bias,
        act,
        residual,
        gate: false,
        scale: false,
    };
    let mut inputs = vec![
        TensorType::new(x, pictures),
        TensorType::new(w, [co, pictures[1], kh, kw]),
    ];
    let plain = Convolve {
        conv,
        fused: fused(false, false),
    };
    let op = Convolve {
        conv,
        fused: fused(bias, residual),
    };
    if let Ok(y) = plain.infer(&inputs) {
        inputs.extend(op.fused.types(&y, co));
    }
    Case { op, inputs }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convolved(stride: usize, padding: usize, gate: bool) -> Result<TensorType, ShapeError> {
        let fused = Fused {
            residual: gate,
            gate,
            ..Fused::default()
        };
        let conv = Conv2d {
            stride: [stride; 2],
            padding: [padding; 4],
        };
        let ty = |shape: [usize; 4]| TensorType::new(DType::F32, shape);
        Convolve { conv, fused }.infer(&[ty([1, 2, 4, 5]), ty([3, 2, 5, 5])])
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(convolved(2, 1, false).is_ok_and(|y| y.shape[..] == [1, 3, 1, 2]));
        for (stride, padding, gate) in [(0, 1, false), (1, 0, false), (1, usize::MAX, false), (1, 1, true)] {
            assert!(convolved(stride, padding, gate).is_err(), "{stride} {padding} {gate}");
        }
    }
}

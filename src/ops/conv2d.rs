//! `conv2d`: two-dimensional convolution, as neural networks mean it.

use super::epilogue::{Epilogue, Fused};
use super::tiles::Tiles;
use super::{is_activation, is_weight};
use crate::cpu::conv::{Sizes, conv};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Way};
use crate::ops::Act;
use crate::tensor::{DType, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// How the filter moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2d {
    /// Steps down and across.
    pub stride: [usize; 2],
    /// Zeros above, to the left, below, to the right.
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

/// [`Conv2d`] with what is fused behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolve {
    /// How the filter moves.
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

impl Graph {
    /// `x` `[n, ci, h, w]` convolved with the weight `w` `[co, ci, kh, kw]`: `[n, co, ..]`. The epilogue may have a bias, an
    /// activation function and a residual.
    ///
    /// # Errors
    /// If channels differ, the filter is larger than the padded picture, or a part of the epilogue does not fit.
    pub fn conv2d(&mut self, x: Value, w: Value, conv: Conv2d, epilogue: Epilogue) -> Result<Value, ShapeError> {
        let fused = epilogue.fused();
        self.push(Convolve { conv, fused }, &epilogue.inputs(&[x, w]))
    }
}

impl Convolve {
    /// Height and width of the output.
    fn output(&self, x: &[usize], w: &[usize]) -> Option<[usize; 2]> {
        let [top, left, bottom, right] = self.conv.padding;
        let [sy, sx] = self.conv.stride;
        let rows = (x[2] + top + bottom).checked_sub(w[2])?.checked_div(sy)? + 1;
        let cols = (x[3] + left + right).checked_sub(w[3])?.checked_div(sx)? + 1;
        Some([rows, cols])
    }

    fn sizes(&self, x: &[usize], w: &[usize]) -> Sizes {
        let [rows, cols] = self.output(x, w).unwrap_or([0, 0]);
        Sizes {
            input: [x[1], x[2], x[3]],
            output: [w[0], rows, cols],
            kernel: [w[2], w[3]],
            stride: self.conv.stride,
            before: [self.conv.padding[0], self.conv.padding[1]],
        }
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
        if !is_activation(x) || x.shape.len() != 4 {
            return refuse("x must be an activation [n, c, h, w]");
        }
        if !is_weight(w) || w.shape.len() != 4 || w.count() == 0 {
            return refuse("w must be a weight [filters, channels, height, width] of F32, F16 or BF16");
        }
        if x.shape[1] != w.shape[1] {
            return refuse("channels differ: x [n, c, h, w], w [filters, c, ..]");
        }
        if self.fused.gate {
            return refuse("a convolution has no gate");
        }
        let Some([rows, cols]) = self.output(&x.shape, &w.shape) else {
            return refuse("the filter is larger than the padded picture, or the stride is 0");
        };
        let y = TensorType::new(x.dtype, [x.shape[0], w.shape[0], rows, cols]);
        self.fused.check("conv2d", inputs, 2, &y, w.shape[0])?;
        Ok(y)
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let sizes = self.sizes(&x.shape, &w.shape);
        let [channels, height, width] = sizes.input.map(|n| n as u32);
        let [filters, rows, cols] = sizes.output;
        let tiles = Tiles::new(filters, rows * cols, x.shape[0]);
        let params = Params {
            pictures: x.shape[0] as u32,
            channels,
            height,
            width,
            filters: filters as u32,
            rows: rows as u32,
            cols: cols as u32,
        };
        let set = |kernel: KernelSpec, names: [&'static str; 2], values: [usize; 2]| {
            kernel.set(names[0], values[0] as u32).set(names[1], values[1] as u32)
        };
        let kernel = KernelSpec::new(wgsl!("ops/conv2d"))
            .elem(x.dtype)
            .slot("weight", w.dtype.name());
        let kernel = set(kernel, ["KH", "KW"], sizes.kernel);
        let kernel = set(kernel, ["SY", "SX"], sizes.stride);
        let kernel = set(kernel, ["TOP", "LEFT"], sizes.before);
        let kernel = self.fused.fill(tiles.fill(kernel.set("ALONG_J", 1)));
        let launch = Launch::new(kernel, &params, caps.grid(tiles.count())).inputs(2);
        vec![Way::baseline(self.fused.bind(launch, 2))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, w, parts @ ..] = inputs else { return Vec::new() };
        let fused = self.fused.values(parts);
        let Sizes {
            input: [channels, height, width],
            output: [filters, rows, cols],
            kernel: [kh, kw],
            stride,
            before,
        } = self.sizes(x.shape(), w.shape());
        let mut y = Vec::new();
        for n in 0..x.shape()[0] {
            for o in 0..filters {
                for at in 0..rows * cols {
                    let mut sum = 0.0;
                    for k in 0..channels * kh * kw {
                        let row = (at / cols * stride[0] + k / kw % kh).wrapping_sub(before[0]);
                        let col = (at % cols * stride[1] + k % kw).wrapping_sub(before[1]);
                        if row < height && col < width {
                            let from = ((n * channels + k / (kh * kw)) * height + row) * width + col;
                            sum += f64::from(x.data[from]) * f64::from(w.data[o * channels * kh * kw + k]);
                        }
                    }
                    y.push(fused.define(sum, y.len(), o) as f32);
                }
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, w, parts @ ..] = inputs else { return false };
        let sizes = self.sizes(x.shape(), w.shape());
        let fused = self.fused.values(parts);
        let [filters, rows, cols] = sizes.output;
        let (picture, result) = (sizes.input.iter().product::<usize>(), filters * rows * cols);
        let pictures = output
            .chunks_exact_mut(result.max(1))
            .zip(x.data.chunks_exact(picture.max(1)));
        for (n, (y, x)) in pictures.enumerate() {
            conv(&sizes, x, w.data, y);
            fused.finish_all_planes(y, rows * cols, n * result);
        }
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        let depth: usize = inputs[1].shape[1..].iter().product();
        Cost::streaming(inputs, output, 2.0 * depth as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        use DType::{BF16, F16, F32};
        let case = |x, w, shape: [usize; 4], filter: [usize; 3], conv, bias, act, residual| {
            let fused = Fused {
                bias,
                act,
                residual,
                gate: false,
            };
            let op = Self { conv, fused };
            let w = TensorType::new(w, [filter[0], shape[1], filter[1], filter[2]]);
            let x = TensorType::new(x, shape);
            let [rows, cols] = op.output(&x.shape, &w.shape).unwrap_or([0, 0]);
            let y = TensorType::new(x.dtype, [shape[0], filter[0], rows, cols]);
            let mut inputs = vec![x, w];
            inputs.extend(fused.types(&y, filter[0]));
            Case { op, inputs }
        };
        let (same, none) = (Conv2d::padded(1), Conv2d::padded(0));
        let halve = Conv2d {
            stride: [2, 2],
            padding: [0, 0, 1, 1],
        };
        let skewed = Conv2d {
            stride: [1, 3],
            padding: [2, 0, 1, 4],
        };
        vec![
            case(F32, F32, [1, 1, 1, 1], [1, 1, 1], none, false, Act::None, false),
            case(F32, F32, [1, 1, 1, 1], [2, 3, 3], same, true, Act::None, false),
            case(F32, F32, [2, 3, 7, 5], [5, 3, 3], same, true, Act::Silu, true),
            case(F32, F16, [1, 5, 9, 11], [17, 3, 3], same, false, Act::Relu, false),
            case(F32, BF16, [1, 17, 6, 13], [3, 3, 3], same, true, Act::None, false),
            case(F32, F16, [1, 4, 9, 8], [6, 3, 3], halve, true, Act::None, false),
            case(
                F32,
                F32,
                [1, 3, 8, 10],
                [4, 5, 5],
                Conv2d::padded(2),
                false,
                Act::Gelu,
                false,
            ),
            case(F32, F32, [1, 2, 6, 17], [3, 3, 1], skewed, true, Act::None, true),
            case(F32, F16, [2, 33, 5, 7], [35, 1, 1], none, true, Act::None, true),
            case(F32, BF16, [1, 6, 8, 6], [4, 1, 1], halve, false, Act::GeluTanh, false),
            case(F16, F16, [1, 7, 9, 6], [5, 3, 3], same, true, Act::Silu, true),
            case(F16, F32, [1, 5, 8, 9], [3, 3, 3], halve, true, Act::None, false),
            case(F16, BF16, [2, 9, 5, 4], [8, 1, 1], none, false, Act::None, false),
            // More patches than the CPU writes out at once.
            case(F32, F32, [1, 130, 33, 31], [2, 3, 3], same, false, Act::None, false),
            case(F32, F16, [1, 96, 16, 16], [96, 3, 3], same, true, Act::None, true),
            case(F32, F16, [1, 32, 64, 64], [32, 3, 3], same, true, Act::Silu, false),
        ]
    }
}

//! `row_scales` and `quantize_rows`: activations as signed codes, one scale for each row.

use super::flat::flat;
use super::parallel::pieces;
use super::{is_activation, rows};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Tolerance, Way, random_tensor};
use crate::quant::rotation::MIN_SCALE;
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `s[r] = max(max_c |x[r, c]| / 127, 1e-30)` over the last axis.
#[derive(Clone, Debug, PartialEq)]
pub struct RowScales;

/// The codes nearest to `x[r, c] / s[r]`, halves to the even one.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantizeRows;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ScalesParams {
    rows: u32,
    cols: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct CodesParams {
    count: u32,
    elements: u32,
    cols: u32,
}

impl Graph {
    /// Activations as codes and the scale of each row over the last axis: I8 like `x`, and `f32` `[rows]`.
    ///
    /// # Errors
    /// If `x` is a scalar or no activation.
    pub fn quantize_rows(&mut self, x: Value) -> Result<(Value, Value), ShapeError> {
        let scales = self.push(RowScales, &[x])?;
        Ok((self.push(QuantizeRows, &[x, scales])?, scales))
    }
}

/// NaN where the row has one.
fn scale_of(row: &[f32]) -> f32 {
    let largest = row
        .iter()
        .fold(0.0f32, |m, v| if m >= v.abs() || m.is_nan() { m } else { v.abs() });
    let scale = largest / 127.0;
    if scale < MIN_SCALE { MIN_SCALE } else { scale }
}

fn code_of(v: f32, scale: f32) -> f32 {
    let code = (v / scale).round_ties_even().clamp(-128.0, 127.0);
    if code.is_nan() { 0.0 } else { code }
}

impl Op for RowScales {
    fn name(&self) -> &'static str {
        "row_scales"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x] if is_activation(x) && !x.shape.is_empty() => Ok(TensorType::new(DType::F32, [rows(x).0])),
            _ => Err(ShapeError::new(
                "row_scales",
                inputs,
                "wants an activation of rank 1 or more",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let (rows, cols) = rows(&inputs[0]);
        let params = ScalesParams {
            rows: rows as u32,
            cols: cols as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/row_scales"))
            .elem(inputs[0].dtype)
            .set("WG", if cols > 1024 { 256 } else { 64 });
        vec![Way::baseline(Launch::new(kernel, &params, caps.grid(rows)).inputs(1))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        x.data.chunks_exact(x.ty.shape.last().max(1)).map(scale_of).collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        let cols = x.ty.shape.last().max(1);
        pieces(output, 1, |start, piece| {
            for (s, row) in piece.iter_mut().zip(x.data[start * cols..].chunks_exact(cols)) {
                *s = scale_of(row);
            }
        });
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, inputs[0].shape.last() as f64)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shape: &[usize]| Case {
            op: Self,
            inputs: vec![TensorType::new(dtype, shape)],
        };
        vec![
            case(DType::F32, &[1]),
            case(DType::F32, &[5, 7]),
            case(DType::F32, &[2, 35, 130]),
            case(DType::F32, &[3, 2050]),
            case(DType::F16, &[7, 77]),
        ]
    }
}

impl Op for QuantizeRows {
    fn name(&self) -> &'static str {
        "quantize_rows"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [x, s] if is_activation(x) && !x.shape.is_empty() && *s == TensorType::new(DType::F32, [rows(x).0]) => {
                Ok(x.with_dtype(DType::I8))
            }
            _ => Err(ShapeError::new(
                "quantize_rows",
                inputs,
                "wants an activation of rank 1 or more, and an f32 scale for each of its rows",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let words = output.count().div_ceil(4);
        let params = CodesParams {
            count: words as u32,
            elements: output.count() as u32,
            cols: inputs[0].shape.last() as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/quantize_rows")).elem(inputs[0].dtype);
        let launch = flat(kernel, &params, words, caps);
        vec![Way::baseline(
            launch.read(2, Operand::Input(0)).read(3, Operand::Input(1)),
        )]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x, s] = inputs else { return Vec::new() };
        let rows = x.data.chunks_exact(x.ty.shape.last().max(1)).zip(s.data);
        rows.flat_map(|(row, &scale)| row.iter().map(move |&v| code_of(v, scale)))
            .collect()
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x, s] = inputs else { return false };
        let cols = x.ty.shape.last().max(1);
        pieces(output, cols, |start, piece| {
            let rows = piece.chunks_exact_mut(cols).zip(x.data[start..].chunks_exact(cols));
            for ((y, x), &scale) in rows.zip(&s.data[start / cols..]) {
                y.iter_mut().zip(x).for_each(|(y, &v)| *y = code_of(v, scale));
            }
        });
        true
    }

    /// WGSL's division may be off by 2.5 units in the last place, which moves a value between two codes to the other one.
    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance { nmse: 1e-6, max: 8e-3 }
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 2.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, shape: &[usize]| {
            let x = TensorType::new(dtype, shape);
            let scales = TensorType::new(DType::F32, [rows(&x).0]);
            Case {
                op: Self,
                inputs: vec![x, scales],
            }
        };
        vec![
            case(DType::F32, &[1]),
            case(DType::F32, &[5, 7]),
            case(DType::F32, &[2, 35, 130]),
            case(DType::F32, &[300, 4]),
            case(DType::F16, &[7, 77]),
        ]
    }

    /// Scales are those of the rows.
    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let x = random_tensor(&inputs[0], uniform);
        let scales = RowScales.reference(&[x.view()]);
        let scales = Tensor::of(inputs[1].clone(), scales);
        vec![x, scales]
    }
}

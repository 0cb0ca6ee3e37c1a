//! Layers that multiply with a weight matrix, whatever the file holds it as: floats, blocks, or int8 codes with scales.

use crate::adapter::{Layer, adapted};
use crate::checkpoint::{TensorInfo, Weights};
use crate::error::{Result, ShapeError};
use crate::graph::{Graph, Value};
use crate::ops::Epilogue;
use crate::plan::ConvrotPath;
use crate::quant::{convrot::Marker, rotation};
use crate::tensor::{DType, Tensor};

/// Largest group that the `dense` path multiplies with the matrix itself.
const LARGEST_DENSE: usize = 1024;

/// What a layer needs beyond its weights, so that large activations do it no harm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guard {
    /// The weight is used in single precision and in its true basis, never as blocks or codes.
    pub force_f32: bool,
    /// Factor on the input, undone before the bias: a power of 2, so that nothing is lost.
    pub prescale: f32,
}

impl Default for Guard {
    fn default() -> Self {
        Self {
            force_f32: false,
            prescale: 1.0,
        }
    }
}

/// `x w^T`, with the `weight` below `w` of `out` rows.
///
/// # Errors
/// If there is no such weight, or something does not fit.
pub fn linear(g: &mut Graph, w: &Weights, x: Value, out: usize, epilogue: Epilogue) -> Result<Value> {
    linear_guarded(g, w, x, out, epilogue, Guard::default())
}

/// `x w^T + b`.
///
/// # Errors
/// As [`linear`].
pub fn linear_bias(g: &mut Graph, w: &Weights, x: Value, out: usize, epilogue: Epilogue) -> Result<Value> {
    let bias = g.vector(w, "bias", out)?;
    linear(g, w, x, out, epilogue.bias(bias))
}

/// As [`linear`], with a [`Guard`]. Adapters see `x` as it is, neither prescaled nor rotated.
///
/// # Errors
/// As [`linear`].
pub fn linear_guarded(
    g: &mut Graph,
    w: &Weights,
    x: Value,
    out: usize,
    epilogue: Epilogue,
    guard: Guard,
) -> Result<Value> {
    adapted(g, w, (x, Layer::Linear), out, epilogue, |g, epilogue| {
        product(g, w, x, out, epilogue, guard)
    })
}

/// Rows of the table that is the `weight` below `w`, `[rows, cols]`, at `ids`: `[ids, cols]`.
///
/// # Errors
/// As [`linear`].
pub fn embedding(g: &mut Graph, w: &Weights, ids: Value, [rows, cols]: [usize; 2]) -> Result<Value> {
    let info = w.info("weight")?;
    let packed = info.device()?.is_packed() && w.convrot() != ConvrotPath::Compat && g.dtype() == DType::F32;
    let marker = info.int8().map(|int8| int8.marker);
    let Some(marker) = marker.filter(|_| packed) else {
        let table = g.weight(w, "weight", [rows, cols])?;
        return Ok(g.embedding(table, ids)?);
    };
    let (codes, scales) = g.codes(w, "weight", [rows, cols])?;
    let codes = g.embedding(codes, ids)?;
    let scales = g.reshape(scales, [rows, 1])?;
    let scales = g.embedding(scales, ids)?;
    let x = g.mul(codes, scales)?;
    Ok(match marker.group {
        Some(group) => g.rotate(x, group)?,
        None => x,
    })
}

fn product(g: &mut Graph, w: &Weights, x: Value, out: usize, epilogue: Epilogue, guard: Guard) -> Result<Value> {
    let inner = g.shape(x).last();
    let x = prescaled(g, x, guard.prescale)?;
    let info = w.info("weight")?;
    let marker = info.int8().map(|int8| int8.marker);
    let f32 = guard.force_f32 || marker.is_some_and(|m| m.full_precision);
    let float = match (marker, w.convrot()) {
        (Some(_), _) if f32 => Some(DType::F32),
        // Half precision only where it loses no row.
        (Some(_), _) if info.device()? == DType::F16 => Some(w.checkpoint().true_basis_dtype(&info.name)?),
        (Some(_), _) if !info.device()?.is_packed() => Some(info.device()?),
        (Some(_), ConvrotPath::Compat) => Some(w.checkpoint().true_basis_dtype(&info.name)?),
        (Some(_), _) => None,
        (None, _) if f32 && info.device()?.is_packed() => Some(DType::F32),
        (None, _) => {
            let weight = g.weight(w, "weight", [out, inner])?;
            let epilogue = unscaled(g, epilogue, out, guard.prescale)?;
            return Ok(g.matmul(x, weight, epilogue)?);
        }
    };
    match (float, marker) {
        (None, Some(marker)) => int8(g, w, x, out, (epilogue, guard.prescale), marker),
        (float, _) => {
            let weight = g.weight_as(w, "weight", [out, inner], float.unwrap_or(DType::F32))?;
            let epilogue = unscaled(g, epilogue, out, guard.prescale)?;
            Ok(g.matmul(x, weight, epilogue)?)
        }
    }
}

fn prescaled(g: &mut Graph, x: Value, factor: f32) -> Result<Value, ShapeError> {
    if factor == 1.0 {
        return Ok(x);
    }
    let key = format!("prescale {factor}");
    let [x, _] = g.once(Some(x), key, |g| g.scale(x, factor, 0.0).map(|x| [x, x]))?;
    Ok(x)
}

/// The epilogue that also undoes the prescaling: its scales come before the bias.
fn unscaled(g: &mut Graph, epilogue: Epilogue, out: usize, prescale: f32) -> Result<Epilogue, ShapeError> {
    let scale = match epilogue.scale {
        _ if prescale == 1.0 => epilogue.scale,
        Some(scale) => Some(g.scale(scale, prescale.recip(), 0.0)?),
        None => Some(g.constant(Tensor::new([out], vec![prescale.recip(); out]))),
    };
    Ok(Epilogue { scale, ..epilogue })
}

/// Products with the codes of a layer. What is made of the input is made once for all layers that share it.
fn int8(
    g: &mut Graph,
    w: &Weights,
    x: Value,
    out: usize,
    (epilogue, prescale): (Epilogue, f32),
    marker: Marker,
) -> Result<Value> {
    let inner = g.shape(x).last();
    let (codes, scales) = g.codes(w, "weight", [out, inner])?;
    let scales = match epilogue.scale {
        Some(own) => g.mul(scales, own)?,
        None => scales,
    };
    let all = unscaled(g, epilogue.scale(scales), out, prescale)?;
    let path = w.convrot();
    let x = match marker.group {
        Some(group) => rotated(g, x, group, path)?,
        None => x,
    };
    if path != ConvrotPath::Native {
        return Ok(g.matmul(x, codes, all)?);
    }
    let [x, rows] = g.once(Some(x), "codes".into(), |g| {
        g.quantize_rows(x).map(|(x, rows)| [x, rows])
    })?;
    let columns = all.scale.unwrap_or(scales);
    let epilogue = Epilogue { scale: None, ..all };
    Ok(g.matmul_i8((x, rows), (codes, columns), epilogue)?)
}

fn rotated(g: &mut Graph, x: Value, group: usize, path: ConvrotPath) -> Result<Value, ShapeError> {
    let dense = path == ConvrotPath::Dense && group <= LARGEST_DENSE;
    if path == ConvrotPath::Dense && !dense {
        tracing::info!(
            group,
            "group is too large for the dense path: the rotation is an operator"
        );
    }
    let [x, _] = g.once(Some(x), format!("rotate {group}"), |g| {
        let y = if dense {
            by_matrix(g, x, group)?
        } else {
            g.rotate(x, group)?
        };
        Ok([y, y])
    })?;
    Ok(x)
}

/// The rotation as a product with its matrix, which is symmetric.
fn by_matrix(g: &mut Graph, x: Value, group: usize) -> Result<Value, ShapeError> {
    let [matrix, _] = g.once(None, format!("matrix {group}"), |g| {
        let matrix = g.constant(Tensor::new([group, group], rotation::matrix(group)));
        Ok([matrix, matrix])
    })?;
    let shape = g.shape(x).clone();
    let groups = g.reshape(x, [shape.count() / group, group])?;
    let y = g.matmul(groups, matrix, Epilogue::default())?;
    g.reshape(y, shape)
}

/// Whether a weight is in blocks or codes on the device, with int8 layers on `path`.
pub(crate) fn stays_packed(info: &TensorInfo, path: ConvrotPath) -> bool {
    let float = info
        .int8()
        .is_some_and(|int8| path == ConvrotPath::Compat || int8.marker.full_precision);
    info.shape.len() == 2 && info.device().is_ok_and(DType::is_packed) && !float
}

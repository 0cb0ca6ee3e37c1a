//! The bytes of a tensor in its new type, a few rows at a time.

use super::{Conversion, Fate, Planned, Sink};
use crate::checkpoint::CheckpointError;
use crate::error::Result;
use crate::quant::rotation;
use crate::tensor::{DType, Shape, Tensor, TensorType};
use std::ops::Range;

/// Elements that are converted at a time, at least a row.
const CHUNK: usize = 1 << 20;

/// Ranges of rows that make about a chunk each; a tensor without axes is one row.
fn chunks(shape: &Shape) -> impl Iterator<Item = Range<usize>> + use<> {
    let rows = shape.first().copied().unwrap_or(1);
    let step = (CHUNK / (shape.count() / rows.max(1)).max(1)).max(1);
    (0..rows).step_by(step).map(move |start| start..rows.min(start + step))
}

/// Writes a tensor that keeps its bytes or takes another type.
pub(super) fn write(conversion: &Conversion<'_>, planned: &Planned<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let info = planned.info;
    match planned.fate {
        Fate::Becomes(dtype) => {
            for rows in chunks(&info.shape) {
                let values = conversion.checkpoint.stored_rows(info, rows.clone())?;
                let bytes = convert(dtype, info.shape.last(), &values);
                check_range(planned, dtype, &bytes, rows.start * values.len() / rows.len().max(1))?;
                sink.tensor(&bytes)?;
            }
        }
        _ => {
            for piece in conversion.checkpoint.stored_bytes(info)?.chunks(4 * CHUNK) {
                sink.tensor(piece)?;
            }
        }
    }
    Ok(())
}

/// Writes the codes of a rotated matrix; gives the scales of its rows.
pub(super) fn write_codes(
    conversion: &Conversion<'_>,
    planned: &Planned<'_>,
    group: usize,
    sink: &mut Sink<'_>,
) -> Result<Vec<f32>> {
    let (info, k) = (planned.info, planned.info.shape.last());
    let mut scales = Vec::with_capacity(info.shape[0]);
    for rows in chunks(&info.shape) {
        let mut values = conversion.checkpoint.stored_rows(info, rows)?;
        let rows = in_rows(&mut values, k, |row| {
            rotation::rotate(row, group);
            let mut codes = vec![0; k];
            let scale = rotation::quantize_row(row, &mut codes);
            (codes, scale)
        });
        for (codes, scale) in rows {
            scales.push(scale);
            sink.tensor(bytemuck::cast_slice(&codes))?;
        }
    }
    Ok(scales)
}

/// Values as a file has them.
fn convert(dtype: DType, k: usize, values: &[f32]) -> Vec<u8> {
    if !dtype.is_blocks() {
        let ty = TensorType::new(dtype, [values.len()]);
        let mut bytes = Tensor::of(ty, values.to_vec()).to_bytes();
        bytes.truncate(dtype.bytes(values.len()));
        return bytes;
    }
    let mut values = values.to_vec();
    in_rows(&mut values, k, |row| crate::quant::encode(dtype, row)).concat()
}

/// Applies `f` to every row of `k` values, on all threads; results in order.
fn in_rows<T: Send>(values: &mut [f32], k: usize, f: impl Fn(&mut [f32]) -> T + Send + Sync) -> Vec<T> {
    #[cfg(feature = "native")]
    {
        use rayon::prelude::*;
        values.par_chunks_exact_mut(k).map(f).collect()
    }
    #[cfg(not(feature = "native"))]
    values.chunks_exact_mut(k).map(f).collect()
}

/// A value that F16 cannot hold would become an infinity: better no file.
fn check_range(planned: &Planned<'_>, dtype: DType, bytes: &[u8], first: usize) -> Result<()> {
    let Some(index) = crate::checkpoint::first_non_finite(dtype, bytes) else {
        return Ok(());
    };
    Err(CheckpointError::DType {
        file: planned.info.file().to_owned(),
        name: planned.info.stored.clone(),
        found: format!("too large at element {} for {dtype}", first + index),
        wanted: "values up to 65504; convert to bf16 or f32".into(),
    }
    .into())
}

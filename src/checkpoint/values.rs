//! Bytes and values of tensors: as the file has them, as a device stores them, and on the host.

use super::{Checkpoint, CheckpointError, Part, TensorInfo};
use crate::error::Error;
use crate::quant;
use crate::tensor::{DType, Shape, Tensor, TensorType, append_floats, decode};
use std::borrow::Cow;
use std::ops::Range;

impl Checkpoint {
    /// Bytes of one of [`Checkpoint::stored`].
    ///
    /// # Errors
    /// If the file is only described.
    pub(crate) fn stored_bytes(&self, info: &TensorInfo) -> Result<&[u8], CheckpointError> {
        let bytes = self.storages[info.storage]
            .bytes()
            .ok_or_else(|| CheckpointError::Header {
                file: info.file.to_string(),
                reason: format!("`{}` is only described: the file has no values", info.stored),
            })?;
        Ok(&bytes[info.start..info.start + info.len])
    }

    /// Values of rows along the first axis of one of [`Checkpoint::stored`]; a tensor without axes is one row.
    ///
    /// # Errors
    /// If the file is only described, or the rows hold a NaN or infinity, or are no floats.
    pub(crate) fn stored_rows(&self, info: &TensorInfo, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        if let Some(int8) = info.int8() {
            return self.stored_int8_rows(info, int8, rows);
        }
        let dtype = info.weight()?;
        let bytes = self.stored_bytes(info)?;
        let (dtype, bytes) = match Shape::from(info.shape.get(1..).unwrap_or_default()).count() {
            row if row.is_multiple_of(dtype.block().0) => (dtype, Cow::Borrowed(bytes)),
            // Rows that are no whole blocks, as of vectors and small filters.
            _ => (DType::F32, Cow::Owned(as_f32(dtype, bytes))),
        };
        let row = bytes.len() / info.shape.first().copied().unwrap_or(1).max(1);
        let bytes = &bytes[rows.start * row..rows.end * row];
        match first_non_finite(dtype, bytes) {
            Some(index) => Err(CheckpointError::NonFinite {
                file: info.file.to_string(),
                name: info.stored.clone(),
                index: rows.start * Shape::from(info.shape.get(1..).unwrap_or_default()).count() + index,
            }),
            None => Ok(decode(dtype, bytes)),
        }
    }

    /// The tensor that a graph means by `name`, and which [`Part`] of it, if not all.
    pub(super) fn find(&self, name: &str) -> Result<(&TensorInfo, Option<Part>), CheckpointError> {
        match Part::parse(name) {
            Some(part) if self.get(name).is_none() => Ok((self.info(&part.name)?, Some(part))),
            _ => Ok((self.info(name)?, None)),
        }
    }

    /// Bytes of a tensor or of a [`Part`] as they are in the file, little-endian, and their type. A part that begins or ends within
    /// blocks is decoded to F32.
    ///
    /// # Errors
    /// If the tensor or its bytes are not there, or its type is unusable.
    pub fn raw(&self, name: &str) -> Result<(DType, Cow<'_, [u8]>), CheckpointError> {
        let (info, part) = self.find(name)?;
        let dtype = info.weight()?;
        let bytes = self.stored_bytes(info)?;
        let bytes = match info.repeat {
            1 => Cow::Borrowed(bytes),
            n => Cow::Owned(bytes.repeat(n)),
        };
        let Some(part) = part else {
            return Ok((dtype, bytes));
        };
        self.part_shape(info, &part)?;
        // Blocks cannot be cut.
        let step: usize = info.shape[part.axis + 1..].iter().product();
        Ok(match step.is_multiple_of(dtype.block().0) {
            true => (dtype, Cow::Owned(part.cut(info, &bytes))),
            false => (DType::F32, Cow::Owned(part.cut(info, &as_f32(dtype, &bytes)))),
        })
    }

    /// As [`Checkpoint::raw`], of rows along the first axis only, that are to become `wanted`; a tensor without axes is one row.
    pub(super) fn raw_rows(
        &self,
        name: &str,
        rows: &Range<usize>,
        wanted: DType,
    ) -> Result<(TensorType, Cow<'_, [u8]>), CheckpointError> {
        let (dtype, bytes) = self.raw(name)?;
        if dtype == DType::I8 && wanted != DType::I8 {
            let (ty, values) = self.reconstruct(name, rows.clone())?;
            return Ok((ty, Cow::Owned(bytemuck::cast_slice(&values).to_vec())));
        }
        let mut shape = self.shape_of(name)?;
        let (dtype, bytes) = match Shape::from(shape.get(1..).unwrap_or_default()).count() {
            row if row.is_multiple_of(dtype.block().0) => (dtype, bytes),
            // Rows that are no whole blocks, as of vectors and small filters.
            _ => (DType::F32, Cow::Owned(as_f32(dtype, &bytes))),
        };
        let row = bytes.len() / shape.first().copied().unwrap_or(1).max(1);
        let range = rows.start * row..rows.end * row;
        let bytes = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        match first_non_finite(dtype, &bytes) {
            Some(index) => Err(CheckpointError::NonFinite {
                file: self.name.clone(),
                name: name.to_owned(),
                index: rows.start * Shape::from(shape.get(1..).unwrap_or_default()).count() + index,
            }),
            None => {
                if let Some(first) = shape.first_mut() {
                    *first = rows.len();
                }
                Ok((TensorType::new(dtype, shape), bytes))
            }
        }
    }

    /// Rows of a tensor or of a [`Part`] along its first axis, converted to `dtype` as the device stores it.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    ///
    /// # Panics
    /// If the tensor has fewer rows.
    pub fn rows(&self, name: &str, dtype: DType, rows: Range<usize>) -> Result<Cow<'_, [u8]>, CheckpointError> {
        if let Some(patched) = self.patched(name, &rows, dtype)? {
            let bytes = patched.to_dtype(dtype).to_bytes();
            self.fits(name, dtype, &bytes)?;
            return Ok(Cow::Owned(bytes));
        }
        if self.reconstructs(name, dtype)? {
            return Ok(Cow::Owned(self.reconstructed_bytes(name, dtype, rows)?));
        }
        let (ty, bytes) = self.raw_rows(name, &rows, dtype)?;
        if ty.dtype != dtype {
            let bytes = Tensor::from_bytes(ty, &bytes).to_dtype(dtype).to_bytes();
            self.fits(name, dtype, &bytes)?;
            return Ok(Cow::Owned(bytes));
        }
        let whole = bytes.len().is_multiple_of(4);
        Ok(match (dtype.is_blocks(), whole) {
            (true, _) => Cow::Owned(quant::pack(dtype, &bytes)),
            (false, true) => bytes,
            (false, false) => {
                let mut bytes = bytes.into_owned();
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                Cow::Owned(bytes)
            }
        })
    }

    /// Half precision may not reach as far as the values did.
    pub(super) fn fits(&self, name: &str, dtype: DType, bytes: &[u8]) -> Result<(), CheckpointError> {
        match dtype {
            DType::F16 if first_non_finite(dtype, bytes).is_some() => Err(CheckpointError::DType {
                file: self.name.clone(),
                name: name.to_owned(),
                found: "beyond 65504, more than f16 holds".into(),
                wanted: "bf16 or f32".into(),
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn shape_of(&self, name: &str) -> Result<Vec<usize>, CheckpointError> {
        Ok(match self.find(name)? {
            (info, Some(part)) => self.part_shape(info, &part)?.to_vec(),
            (info, None) => info.shape.to_vec(),
        })
    }

    pub(super) fn part_shape(&self, info: &TensorInfo, part: &Part) -> Result<Shape, CheckpointError> {
        part.shape(&info.shape).ok_or_else(|| CheckpointError::MissingTensor {
            file: self.name.clone(),
            name: part.to_string(),
            nearest: None,
        })
    }

    /// A tensor or a [`Part`] on the host, converted to `dtype`: values, or bytes where `dtype` is packed.
    ///
    /// # Errors
    /// If the tensor or its bytes are not there, its type is unusable, or it holds a NaN or infinity.
    pub fn load(&self, name: &str, dtype: DType) -> Result<Tensor, CheckpointError> {
        let rows = self.shape_of(name)?.first().copied().unwrap_or(1);
        if let Some(patched) = self.patched(name, &(0..rows), dtype)? {
            return Ok(patched.to_dtype(dtype));
        }
        let (ty, bytes) = self.raw_rows(name, &(0..rows), dtype)?;
        Ok(if ty.dtype == dtype && dtype.is_packed() {
            Tensor::packed(ty, bytes.into_owned())
        } else if ty.dtype == dtype {
            Tensor::from_bytes(ty, &bytes)
        } else if dtype == DType::F32 {
            // They are that already: no copies, which for a large weight would be most of what loading takes.
            Tensor::of(ty.with_dtype(dtype), Tensor::from_bytes(ty, &bytes).data)
        } else {
            Tensor::from_bytes(ty, &bytes).to_dtype(dtype)
        })
    }
}

impl Checkpoint {
    /// As [`Checkpoint::load`], after `room` has given a vector for as many bytes, in `f32`. Floats are decoded right into it; what takes
    /// more than that to convert has its own.
    ///
    /// # Errors
    /// As [`Checkpoint::load`], or if there is no room.
    pub(crate) fn load_in(
        &self,
        name: &str,
        dtype: DType,
        room: impl FnOnce(usize) -> Result<Vec<f32>, Error>,
    ) -> Result<Tensor, Error> {
        let shape = self.shape_of(name)?;
        let rows = 0..shape.first().copied().unwrap_or(1);
        let ty = TensorType::new(dtype, shape);
        let mut values = room(dtype.bytes(ty.count()).div_ceil(4))?;
        if dtype == DType::F32 && self.patched(name, &rows, dtype)?.is_none() {
            let (found, bytes) = self.raw_rows(name, &rows, dtype)?;
            if append_floats(&mut values, found.dtype, &bytes) {
                return Ok(Tensor::of(ty, values));
            }
        }
        drop(values);
        Ok(self.load(name, dtype)?)
    }
}

/// Blocks as little-endian `f32`.
fn as_f32(dtype: DType, blocks: &[u8]) -> Vec<u8> {
    let values = quant::decode(dtype, blocks);
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Index of the first element whose exponent is all ones.
pub(crate) fn first_non_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    // A whole chunk is looked through before the place is looked for: so it can be done many at once.
    fn find<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
        const CHUNK: usize = 4096;
        let bad = |b: &[u8]| b.try_into().is_ok_and(&bad);
        let any = |chunk: &[u8]| chunk.chunks_exact(N).fold(false, |any, b| any | bad(b));
        let chunk = bytes.chunks(CHUNK).position(any)?;
        let at = bytes[chunk * CHUNK..].chunks_exact(N).position(bad)?;
        Some(chunk * CHUNK / N + at)
    }
    let half = |mask: u16| find(bytes, move |b| u16::from_le_bytes(b) & mask == mask);
    match dtype {
        DType::F16 => half(0x7c00),
        DType::BF16 => half(0x7f80),
        DType::F32 => find(bytes, |b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
        DType::U32 | DType::I8 => None,
        blocks => quant::first_non_finite(blocks, bytes),
    }
}

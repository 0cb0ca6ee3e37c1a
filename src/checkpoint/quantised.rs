//! Int8 layers: a weight of codes with its scales and its marker, which are tensors of their own in the file.
//!
//! The parts are gathered under the names of the file, before these are mapped: the weight then carries what it needs wherever
//! renaming and splitting of fused rows take it. Scales of what came out are added as `NAME_scale`, one for each row.

use super::names::Tensors;
use super::safetensors;
use super::{Checkpoint, CheckpointError, FileDType, Storage, TensorInfo};
use crate::quant::convrot::{self, Audit, Marker, Refusal};
use crate::quant::rotation::MIN_SCALE;
use crate::tensor::{self, DType, Shape, Tensor, TensorType};
use half::f16;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const MARKER: &str = ".comfy_quant";
const WEIGHT: &str = ".weight";
const SCALE: &str = ".weight_scale";

/// How the codes of an `int8_tensorwise` weight are to be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Int8Layer {
    /// What its marker says.
    pub marker: Marker,
    /// Codes in a row.
    k: usize,
    /// Where the codes of the whole weight start.
    start: usize,
    /// The scales of the whole weight: one for each row, or one.
    scale: TensorInfo,
}

impl Int8Layer {
    /// Whether there is one scale for all rows in the file.
    pub fn is_per_tensor(&self) -> bool {
        self.scale.shape.count() == 1
    }

    /// Scales of a weight that is this layer's or some rows of it: as a tensor named after it.
    fn scales_of(&self, weight: &TensorInfo) -> Option<TensorInfo> {
        let (last, extents) = weight.shape.split_last()?;
        if *last != self.k {
            return None;
        }
        let rows: usize = extents.iter().product();
        let single = self.is_per_tensor();
        let size = self.scale.len / self.scale.shape.count().max(1);
        let first = (weight.start - self.start) / self.k.max(1);
        Some(TensorInfo {
            name: format!("{}_scale", weight.name),
            shape: Shape::from(extents),
            start: self.scale.start + if single { 0 } else { first * size },
            len: if single { size } else { rows * size },
            repeat: if single { rows } else { 1 },
            ..self.scale.clone()
        })
    }
}

fn refused(file: &str, name: &str, refusal: Refusal) -> CheckpointError {
    let Refusal { key, value, accepted } = refusal;
    CheckpointError::Quantised {
        file: file.to_owned(),
        name: name.to_owned(),
        key,
        value,
        accepted,
    }
}

/// Takes scales and markers out of the tensors of a file and gives them to the weights that they belong to.
pub(super) fn gather(file: &str, mut tensors: Tensors, storages: &[Arc<Storage>]) -> Result<Tensors, CheckpointError> {
    let is_codes = |info: &TensorInfo| info.dtype == FileDType::Weight(DType::I8);
    if !tensors.values().any(|t| is_codes(t) || t.name.ends_with(MARKER)) {
        return Ok(tensors);
    }
    let mut markers = in_tensors(file, &mut tensors, storages)?;
    in_headers(file, &tensors, storages, &mut markers)?;
    for (layer, marker) in markers {
        let refuse = |refusal| refused(file, &layer, refusal);
        let int8 = parts(&layer, marker, &mut tensors, storages).map_err(refuse)?;
        if let Some(weight) = tensors.get_mut(&format!("{layer}{WEIGHT}")) {
            weight.int8 = Some(Arc::new(int8));
        }
    }
    let bare = |t: &&TensorInfo| is_codes(t) && t.int8.is_none() && t.shape.len() > 1 && t.name.ends_with(WEIGHT);
    match tensors.values().find(bare) {
        Some(bare) => Err(refused(
            file,
            &bare.name,
            Refusal::new(
                "marker",
                "missing",
                format!(
                    "a U8 tensor `comfy_quant` beside the I8 weight, or the layer in `{}`",
                    convrot::HEADER_KEY
                ),
            ),
        )),
        None => Ok(tensors),
    }
}

/// Markers that are tensors, by layer.
fn in_tensors(
    file: &str,
    tensors: &mut Tensors,
    storages: &[Arc<Storage>],
) -> Result<BTreeMap<String, Marker>, CheckpointError> {
    let names: Vec<String> = tensors.keys().filter(|n| n.ends_with(MARKER)).cloned().collect();
    let mut markers = BTreeMap::new();
    for name in names {
        let Some(info) = tensors.remove(&name) else { continue };
        let layer = info.name.strip_suffix(MARKER).unwrap_or(&info.name).to_owned();
        let marker = match bytes(&info, storages) {
            _ if info.dtype != FileDType::Other(::safetensors::Dtype::U8) || info.shape.len() != 1 => {
                let found = format!("{} {}", info.dtype, info.shape);
                Err(Refusal::new("comfy_quant", found, "U8 of one axis"))
            }
            Some(bytes) => Marker::parse(bytes),
            None => Ok(assumed(tensors.get(&format!("{layer}{WEIGHT}")))),
        };
        let marker = marker.map_err(|refusal| refused(file, &layer, refusal))?;
        markers.insert(layer, marker);
    }
    Ok(markers)
}

/// Of a file that is only described, what writers do is assumed: the largest group up to the usual that divides a row.
fn assumed(weight: Option<&TensorInfo>) -> Marker {
    let shape = weight.map_or(&[][..], |weight| &weight.shape[..]);
    let k = shape.last().copied().unwrap_or(convrot::DEFAULT_GROUP);
    let groups = std::iter::successors(Some(convrot::DEFAULT_GROUP), |group| Some(group / 4));
    Marker {
        group: groups
            .take_while(|&group| group >= 4)
            .find(|&group| k.is_multiple_of(group)),
        experts: (shape.len() == 3).then(|| shape[0]),
        ..Marker::default()
    }
}

/// Adds the markers of the header form whose weights are there.
fn in_headers(
    file: &str,
    tensors: &Tensors,
    storages: &[Arc<Storage>],
    markers: &mut BTreeMap<String, Marker>,
) -> Result<(), CheckpointError> {
    for storage in storages {
        let Some(text) = storage.bytes().and_then(|b| safetensors::note(b, convrot::HEADER_KEY)) else {
            continue;
        };
        let layers = convrot::header_layers(&text).map_err(|refusal| refused(file, convrot::HEADER_KEY, refusal))?;
        for (layer, json) in layers {
            if !tensors.contains_key(&format!("{layer}{WEIGHT}")) {
                continue;
            }
            let marker = Marker::of_json(&json).map_err(|refusal| refused(file, &layer, refusal))?;
            if markers.get(&layer).is_some_and(|other| *other != marker) {
                let found = format!("{json} in the header and another in a tensor");
                return Err(refused(file, &layer, Refusal::new("marker", found, "the same in both")));
            }
            markers.insert(layer, marker);
        }
    }
    Ok(())
}

/// Puts a layer together and takes its scales out of the tensors.
fn parts(layer: &str, marker: Marker, tensors: &mut Tensors, storages: &[Arc<Storage>]) -> Result<Int8Layer, Refusal> {
    let scale = tensors.remove(&format!("{layer}{SCALE}"));
    let weight = tensors
        .get(&format!("{layer}{WEIGHT}"))
        .ok_or_else(|| Refusal::new("weight", "missing", format!("a tensor `{layer}{WEIGHT}`")))?;
    if weight.dtype != FileDType::Weight(DType::I8) {
        return Err(Refusal::new("weight", weight.dtype, "I8"));
    }
    let rows = marker.rows(&weight.shape)?;
    let scale = scale.ok_or_else(|| Refusal::new("weight_scale", "missing", format!("a tensor `{layer}{SCALE}`")))?;
    let float = [DType::F32, DType::F16, DType::BF16].map(FileDType::Weight);
    if !float.contains(&scale.dtype) {
        return Err(Refusal::new("weight_scale", scale.dtype, "F32, F16 or BF16"));
    }
    let count = scale.shape.count();
    let single = count == 1 && marker.group.is_none();
    if count != rows && !single {
        let accepted = match marker.group {
            Some(_) => format!("{rows}, one for each row"),
            None => format!("{rows}, one for each row, or 1"),
        };
        return Err(Refusal::new("weight_scale", format!("{count} scales"), accepted));
    }
    let k = weight.shape.last();
    if let (Some(scales), Some(codes)) = (bytes(&scale, storages), bytes(weight, storages)) {
        check_scales(&decoded(&scale, scales), codes, k * rows / count.max(1))?;
    }
    Ok(Int8Layer {
        marker,
        k,
        start: weight.start,
        scale,
    })
}

/// Scales are finite and above zero, unless all codes that they scale are zero; `each` codes have a scale.
fn check_scales(scales: &[f32], codes: &[u8], each: usize) -> Result<(), Refusal> {
    for (row, &scale) in scales.iter().enumerate() {
        let zeros = || codes[row * each..(row + 1) * each].iter().all(|&code| code == 0);
        if !scale.is_finite() || (scale <= 0.0 && !zeros()) {
            let key = format!("weight_scale of row {row}");
            return Err(Refusal::new(key, scale, "finite, and above 0 where a code is not 0"));
        }
    }
    Ok(())
}

fn decoded(info: &TensorInfo, bytes: &[u8]) -> Vec<f32> {
    info.dtype
        .weight()
        .map_or_else(Vec::new, |dtype| tensor::decode(dtype, bytes))
}

fn bytes<'a>(info: &TensorInfo, storages: &'a [Arc<Storage>]) -> Option<&'a [u8]> {
    storages[info.storage].bytes()?.get(info.start..info.start + info.len)
}

/// Adds the scales of every int8 weight, under the name that the weight has now.
pub(super) fn add_scales(file: &str, mut tensors: Tensors) -> Result<Tensors, CheckpointError> {
    let weights: Vec<_> = tensors.values().filter(|t| t.int8.is_some()).cloned().collect();
    for weight in weights {
        let scales = weight.int8().and_then(|int8| int8.scales_of(&weight));
        let added = scales.is_some_and(|scales| tensors.insert(scales.name.clone(), scales).is_none());
        if !added {
            let found = format!("{} of {}", weight.shape, weight.stored);
            return Err(refused(
                file,
                &weight.name,
                Refusal::new("weight", found, "rows of one stored weight"),
            ));
        }
    }
    Ok(tensors)
}

impl Checkpoint {
    /// Every int8 layer, by the weight's name, with what half precision would do to its scales; empty for files that are only
    /// described.
    ///
    /// # Errors
    /// If scales cannot be read.
    pub fn audits(&self) -> Result<Vec<(&TensorInfo, Audit)>, CheckpointError> {
        let layers = self
            .tensors()
            .filter(|info| info.is_int8_tensorwise() && self.has_values());
        layers
            .map(|info| {
                let scales = self.load(&format!("{}_scale", info.name), DType::F32)?;
                Ok((info, Audit::of(&scales.data)))
            })
            .collect()
    }

    /// Whether any weight is an int8 layer's.
    pub fn has_int8(&self) -> bool {
        self.tensors().any(TensorInfo::is_int8_tensorwise)
    }

    /// The smallest type that holds the weight of an int8 layer in its true basis: F16, or F32 where a row is too large or too
    /// small for it.
    ///
    /// # Errors
    /// If the scales cannot be read.
    pub(crate) fn true_basis_dtype(&self, name: &str) -> Result<DType, CheckpointError> {
        let Some(int8) = self.info(name)?.int8().filter(|_| self.has_values()) else {
            return Ok(DType::F16);
        };
        let spread = (int8.marker.group.unwrap_or(1) as f32).sqrt();
        let scales = self.load(&format!("{name}_scale"), DType::F32)?.data;
        let fits = |scale: f32| {
            let largest = 128.0 * scale;
            scale <= MIN_SCALE || (largest * spread < f16::MAX.to_f32() && largest > f16::MIN_POSITIVE.to_f32())
        };
        Ok(if scales.into_iter().all(fits) {
            DType::F16
        } else {
            DType::F32
        })
    }

    /// Whether `name` is a weight of codes that are to become values of `dtype`.
    pub(super) fn reconstructs(&self, name: &str, dtype: DType) -> Result<bool, CheckpointError> {
        let (info, _) = self.find(name)?;
        Ok(info.dtype == FileDType::Weight(DType::I8) && dtype != DType::I8)
    }

    /// Rows along the first axis of an int8 weight, scaled and turned back to the true basis.
    pub(super) fn reconstruct(
        &self,
        name: &str,
        rows: Range<usize>,
    ) -> Result<(TensorType, Vec<f32>), CheckpointError> {
        let (info, part) = self.find(name)?;
        let whole_rows = part.as_ref().is_none_or(|part| part.axis == 0);
        let Some(int8) = info.int8().filter(|_| whole_rows) else {
            return Err(CheckpointError::DType {
                file: self.name.clone(),
                name: name.to_owned(),
                found: "I8 codes without scales".into(),
                wanted: "F32, F16, BF16 or blocks from Q8_0 to Q6_K".into(),
            });
        };
        let mut shape = self.shape_of(name)?;
        shape[0] = rows.len();
        let first = part.map_or(0, |part| part.range.start);
        let (_, codes) = self.raw(&info.name)?;
        let scales = self.load(&format!("{}_scale", info.name), DType::F32)?.data;
        // Rows of codes in a row along the first axis.
        let each = shape[1..].iter().product::<usize>() / int8.k.max(1);
        let range = (first + rows.start) * each..(first + rows.end) * each;
        let codes = &codes[range.start * int8.k..range.end * int8.k];
        let values = convrot::reconstruct(codes, int8.k, &scales[range], int8.marker.group);
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(CheckpointError::NonFinite {
                file: self.name.clone(),
                name: name.to_owned(),
                index: rows.start * each * int8.k + index,
            });
        }
        Ok((TensorType::new(DType::F32, shape), values))
    }

    /// As [`Checkpoint::stored_rows`] of an int8 weight.
    pub(super) fn stored_int8_rows(
        &self,
        info: &TensorInfo,
        int8: &Int8Layer,
        rows: Range<usize>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let each = info.shape[1..].iter().product::<usize>() / int8.k.max(1);
        let range = rows.start * each..rows.end * each;
        let scales = decoded(&int8.scale, self.stored_bytes(&int8.scale)?);
        let scales = match int8.is_per_tensor() {
            true => vec![scales[0]; range.len()],
            false => scales[range.clone()].to_vec(),
        };
        let codes = &self.stored_bytes(info)?[range.start * int8.k..range.end * int8.k];
        Ok(convrot::reconstruct(codes, int8.k, &scales, int8.marker.group))
    }

    /// As [`Checkpoint::rows`] of an int8 weight, a few rows at a time.
    pub(super) fn reconstructed_bytes(
        &self,
        name: &str,
        dtype: DType,
        rows: Range<usize>,
    ) -> Result<Vec<u8>, CheckpointError> {
        const ELEMENTS: usize = 1 << 20;
        let (info, _) = self.find(name)?;
        let row: usize = info.shape.iter().skip(1).product();
        // Blocks lie in pairs on the device, so all of theirs are packed together.
        let step = match dtype.is_blocks() {
            true => rows.len().max(1),
            false => (ELEMENTS / row.max(1)).max(1),
        };
        let mut bytes = Vec::with_capacity(dtype.bytes(rows.len() * row).next_multiple_of(4));
        for start in rows.clone().step_by(step) {
            let (ty, values) = self.raw_rows(name, &(start..rows.end.min(start + step)), dtype)?;
            let count = ty.count();
            let rows = Tensor::from_bytes(ty, &values).to_dtype(dtype).to_bytes();
            self.fits(name, dtype, &rows)?;
            bytes.extend(&rows[..dtype.bytes(count).min(rows.len())]);
        }
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ok(bytes)
    }
}

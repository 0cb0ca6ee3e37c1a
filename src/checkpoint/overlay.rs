//! Checkpoints with adapters: the files of another, changed when they are loaded, and tensors beside them.

use super::{Checkpoint, CheckpointError, FileDType, Part, Storage, TensorInfo};
use crate::adapter::{Extras, Overlay, Site};
use crate::tensor::{DType, Shape, Tensor, TensorType};
use std::ops::Range;
use std::sync::Arc;

impl TensorInfo {
    /// Where its bytes begin in the file: rows of one tensor that has become several lie in this order.
    pub(crate) fn offset(&self) -> usize {
        self.start
    }
}

impl Checkpoint {
    /// The same files with `overlay`'s changes, and `extras` beside their tensors.
    pub(crate) fn overlaid(&self, overlay: Overlay, extras: Extras) -> Self {
        let mut new = self.clone();
        let file: Arc<str> = "adapter".into();
        for (name, tensor) in extras {
            let bytes = tensor.to_bytes();
            let info = TensorInfo {
                name: name.clone(),
                stored: name.clone(),
                dtype: FileDType::Weight(tensor.ty.dtype),
                len: tensor.ty.dtype.bytes(tensor.ty.count()),
                shape: tensor.ty.shape,
                file: file.clone(),
                storage: new.storages.len(),
                start: 0,
                retyped: None,
                repeat: 1,
                int8: None,
            };
            new.tensors.insert(name, info);
            new.storages.push(Arc::new(Storage::Bytes(bytes.into())));
        }
        new.overlay = Some(Arc::new(overlay));
        new
    }

    /// What adapters add to the output of the layer at `path`.
    pub(crate) fn site(&self, path: &str) -> Option<&Site> {
        self.overlay.as_ref()?.sites.get(path)
    }

    /// Rows with the changes of adapters, in `f32`; `None` where nothing changes.
    pub(super) fn patched(
        &self,
        name: &str,
        rows: &Range<usize>,
        wanted: DType,
    ) -> Result<Option<Tensor>, CheckpointError> {
        let Some(overlay) = &self.overlay else {
            return Ok(None);
        };
        let part = Part::parse(name).filter(|_| self.get(name).is_none());
        let whole = part.as_ref().map_or(name, |part| &part.name);
        let Some(patch) = overlay.patches.get(whole) else {
            return Ok(None);
        };
        if wanted.is_packed() {
            return Err(CheckpointError::DType {
                file: self.name.clone(),
                name: name.to_owned(),
                found: "merged with an adapter".into(),
                wanted: wanted.to_string(),
            });
        }
        // Of a part, all of the tensor is computed and then cut.
        let all = match part {
            Some(_) => 0..self.shape_of(whole)?.first().copied().unwrap_or(1),
            None => rows.clone(),
        };
        let (ty, bytes) = self.raw_rows(whole, &all, DType::F32)?;
        let mut tensor = Tensor::from_bytes(ty, &bytes);
        tensor.ty.dtype = DType::F32;
        patch.apply(all, &mut tensor.data)?;
        if let Some(index) = tensor.first_non_finite() {
            return Err(CheckpointError::NonFinite {
                file: format!("{} with an adapter", self.name),
                name: name.to_owned(),
                index,
            });
        }
        match part {
            None => Ok(Some(tensor)),
            Some(part) => self.cut(&part, rows, &tensor).map(Some),
        }
    }

    /// Rows of a part of a whole tensor.
    fn cut(&self, part: &Part, rows: &Range<usize>, whole: &Tensor) -> Result<Tensor, CheckpointError> {
        let info = self.info(&part.name)?;
        let mut shape = self.part_shape(info, part)?.to_vec();
        let bytes = part.cut(info, bytemuck::cast_slice(&whole.data));
        let row = Shape::from(shape.get(1..).unwrap_or_default()).count() * 4;
        if let Some(first) = shape.first_mut() {
            *first = rows.len();
        }
        let ty = TensorType::new(DType::F32, shape);
        Ok(Tensor::from_bytes(ty, &bytes[rows.start * row..rows.end * row]))
    }
}

//! What the values of a weight are made of: two names with the same source have the same values.

use super::{Checkpoint, CheckpointError, Part, TensorInfo};
use crate::tensor::DType;
use std::ops::Range;
use std::sync::Arc;

/// Where the values of a weight come from. Addresses are those of what the checkpoint shares with its clones, so a source means
/// something only as long as one of them lives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Source {
    /// Address of the file's bytes.
    storage: usize,
    /// Which of them.
    bytes: Range<usize>,
    /// Element type in the file; `None` for one that no weight can have.
    dtype: Option<DType>,
    /// How often the bytes come in a row.
    repeat: usize,
    /// A part that is no range of the bytes.
    part: Option<(usize, Range<usize>)>,
    /// What else the values depend on: the scales of codes that are decoded, the changes of an adapter.
    beside: Option<(usize, String)>,
}

impl Checkpoint {
    /// What the values of the tensor or [`Part`] called `name` are made of, if they are wanted as `wanted`.
    ///
    /// # Errors
    /// If there is no such tensor.
    pub(crate) fn source(&self, name: &str, wanted: DType) -> Result<Source, CheckpointError> {
        let (info, part) = self.find(name)?;
        if let Some(part) = &part {
            self.part_shape(info, part)?;
        }
        let whole = part.as_ref().map_or(name, |part| &part.name);
        let decoded = info.int8().filter(|_| wanted != DType::I8);
        let beside = match (&self.overlay, decoded) {
            (Some(overlay), _) if overlay.patches.contains_key(whole) => Some(Arc::as_ptr(overlay) as usize),
            (_, Some(layer)) => Some(std::ptr::from_ref(layer) as usize),
            _ => None,
        };
        let beside = beside.map(|address| (address, whole.to_owned()));
        let mut bytes = info.start..info.start + info.len;
        let mut rest = part.as_ref();
        if let (None, Some(rows)) = (&beside, rest.and_then(|part| rows(info, part))) {
            bytes = rows;
            rest = None;
        }
        Ok(Source {
            storage: Arc::as_ptr(&self.storages[info.storage]) as usize,
            bytes,
            dtype: info.dtype.weight(),
            repeat: info.repeat,
            part: rest.map(|part| (part.axis, part.range.clone())),
            beside,
        })
    }

    /// Finds out whether the values of `name` can be read now.
    ///
    /// # Errors
    /// If there is no such tensor, or the file is only described.
    pub(crate) fn readable(&self, name: &str) -> Result<(), CheckpointError> {
        let (info, _) = self.find(name)?;
        self.stored_bytes(info).map(|_| ())
    }
}

/// Bytes of a part that is whole rows of a tensor.
fn rows(info: &TensorInfo, part: &Part) -> Option<Range<usize>> {
    let (block, size) = info.dtype.weight()?.block();
    let row: usize = info.shape.get(1..)?.iter().product();
    let whole = part.axis == 0 && info.repeat == 1 && row.is_multiple_of(block);
    let at = |row_index: usize| info.start + row_index * (row / block) * size;
    whole.then(|| at(part.range.start)..at(part.range.end))
}

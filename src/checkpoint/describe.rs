//! Header-only descriptions: the names, types and shapes of a published checkpoint without its bytes.

use super::safetensors::Entry;
use super::{Checkpoint, CheckpointError, FileDType, Source, Storage};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Description {
    config: Option<Value>,
    tensors: BTreeMap<String, (::safetensors::Dtype, Vec<usize>)>,
}

impl Checkpoint {
    /// A checkpoint without values, from JSON such as `{"config": {…}, "tensors": {"norm.weight": ["BF16", [64]], …}}`: enough
    /// to detect the model and to plan its memory.
    ///
    /// # Errors
    /// If the JSON says something else, or a size overflows.
    pub fn describe(name: &str, json: &str) -> Result<Self, CheckpointError> {
        let invalid = |reason: String| CheckpointError::Header {
            file: name.to_owned(),
            reason,
        };
        let description: Description = serde_json::from_str(json).map_err(|e| invalid(e.to_string()))?;
        let mut start = 0usize;
        let mut entries = Vec::new();
        for (tensor, (dtype, dims)) in description.tensors {
            let end = dims
                .iter()
                .try_fold(1usize, |n, &d| n.checked_mul(d))
                .and_then(|n| n.checked_mul(dtype.bitsize()))
                .and_then(|bits| start.checked_add(bits / 8))
                .ok_or_else(|| invalid(format!("`{tensor}` of shape {dims:?} is too large")))?;
            entries.push(Entry {
                name: tensor,
                dtype: FileDType::of(dtype),
                shape: dims.into(),
                start,
                len: end - start,
            });
            start = end;
        }
        let source = Source {
            file: name.to_owned(),
            storage: Storage::Absent,
            entries,
            metadata: None,
            config: None,
        };
        Ok(Self::assemble(name, vec![source])?.with_config(description.config))
    }
}

//! The safetensors format: eight bytes of header length, a JSON header, then the bytes of all tensors without gaps.

use super::{CheckpointError, FileDType};
use crate::tensor::Shape;
use ::safetensors::tensor::Metadata;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The format's own limit on headers.
const MAX_HEADER: u64 = 100_000_000;
const LENGTH: usize = 8;

/// A tensor as a header lists it; `start` counts from the start of the file.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: FileDType,
    pub(super) shape: Shape,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// Entries of a whole file. Every byte range that comes out lies inside `bytes`.
pub(super) fn read(file: &str, bytes: &[u8]) -> Result<Vec<Entry>, CheckpointError> {
    let header = |reason: String| CheckpointError::Header {
        file: file.to_owned(),
        reason,
    };
    let truncated = |wanted| CheckpointError::Truncated {
        file: file.to_owned(),
        wanted,
        found: bytes.len() as u64,
    };
    let Some(length) = bytes.first_chunk::<LENGTH>() else {
        return Err(truncated(LENGTH as u64));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER {
        return Err(header(format!(
            "it claims to be {length} bytes long, the format allows {MAX_HEADER}"
        )));
    }
    let data = LENGTH + length as usize;
    let Some(text) = bytes.get(LENGTH..data) else {
        return Err(truncated(data as u64));
    };
    // Checks that sizes fit shapes and that the ranges follow one another.
    let metadata: Metadata = serde_json::from_slice(text).map_err(|e| header(e.to_string()))?;
    let wanted = (data as u64).saturating_add(metadata.data_len() as u64);
    let found = bytes.len() as u64;
    if found < wanted {
        return Err(truncated(wanted));
    }
    if found > wanted {
        return Err(header(format!("{} bytes after the last tensor", found - wanted)));
    }
    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| Entry {
            name,
            dtype: FileDType::of(info.dtype),
            shape: info.shape.clone().into(),
            start: data + info.data_offsets.0,
            len: info.data_offsets.1 - info.data_offsets.0,
        })
        .collect())
}

/// A text of the header's `__metadata__`, if the bytes begin with a header that has it.
pub(super) fn note(bytes: &[u8], key: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Notes {
        __metadata__: BTreeMap<String, String>,
    }
    let length = u64::from_le_bytes(*bytes.first_chunk()?);
    let end = LENGTH.checked_add(usize::try_from(length).ok()?)?;
    let mut notes: Notes = serde_json::from_slice(bytes.get(LENGTH..end)?).ok()?;
    notes.__metadata__.remove(key)
}

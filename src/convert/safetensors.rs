//! Writes safetensors: eight bytes of header length, a JSON header, then the bytes of all tensors without gaps.

use super::{Conversion, Fate, Sink, rows, rule};
use crate::checkpoint::{CONFIG, CheckpointError, FileDType};
use crate::error::Result;
use crate::quant::convrot;
use crate::tensor::DType;
use serde_json::{Map, Value, json};

/// A tensor of the new file.
struct Entry {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: u64,
}

pub(super) fn write(conversion: &Conversion<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let entries = entries(conversion)?;
    sink.put(&header(conversion, &entries))?;
    let mut markers = Vec::new();
    for planned in &conversion.tensors {
        if let Fate::Convrot { group } = planned.fate {
            let scales = rows::write_codes(conversion, planned, group, sink)?;
            sink.tensor(bytemuck::cast_slice(&scales))?;
            markers.push(rule::marker(group));
        } else {
            rows::write(conversion, planned, sink)?;
        }
    }
    // Of any length, so they come last.
    markers.iter().try_for_each(|marker| sink.tensor(marker.as_bytes()))
}

/// The tensors in the order of their bytes.
fn entries(conversion: &Conversion<'_>) -> Result<Vec<Entry>> {
    let (mut entries, mut markers) = (Vec::new(), Vec::new());
    for planned in &conversion.tensors {
        let info = planned.info;
        let shape = info.shape.to_vec();
        let entry = |name: String, dtype: String, shape: Vec<usize>, bytes| Entry {
            name,
            dtype,
            shape,
            bytes,
        };
        match planned.fate {
            Fate::Convrot { group } => {
                let (n, marker) = (shape[0], rule::marker(group).len());
                let layer = info.stored.strip_suffix("weight").unwrap_or(&info.stored);
                entries.push(entry(
                    info.stored.clone(),
                    "I8".into(),
                    shape,
                    info.shape.count() as u64,
                ));
                entries.push(entry(
                    format!("{layer}weight_scale"),
                    "F32".into(),
                    vec![n, 1],
                    4 * n as u64,
                ));
                markers.push(entry(
                    format!("{layer}comfy_quant"),
                    "U8".into(),
                    vec![marker],
                    marker as u64,
                ));
            }
            fate => {
                let bytes = fate.byte_len(info);
                let dtype = match (fate, info.dtype) {
                    (Fate::Becomes(dtype), _) => upper(dtype),
                    (_, FileDType::Weight(dtype)) => upper(dtype),
                    (_, other) => other.to_string(),
                };
                entries.push(entry(info.stored.clone(), dtype, shape, bytes));
            }
        }
    }
    entries.extend(markers);
    let mut names: Vec<_> = entries.iter().map(|e| e.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(CheckpointError::Header {
            file: conversion.checkpoint.name().to_owned(),
            reason: format!("`{}` is there already", pair[0]),
        }
        .into()),
        None => Ok(entries),
    }
}

fn upper(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

fn header(conversion: &Conversion<'_>, entries: &[Entry]) -> Vec<u8> {
    let mut header = Map::new();
    let mut metadata = Map::from_iter([("format".to_owned(), Value::from("pt"))]);
    metadata.extend(conversion.config().map(|config| (CONFIG.to_owned(), config.into())));
    // Layers that stay int8 need the markers that they have there.
    if conversion
        .tensors
        .iter()
        .any(|p| p.info.is_int8_tensorwise() && p.fate == Fate::Kept)
    {
        let markers = conversion.checkpoint.note(convrot::HEADER_KEY);
        metadata.extend(markers.map(|text| (convrot::HEADER_KEY.to_owned(), text.into())));
    }
    header.insert("__metadata__".into(), metadata.into());
    let mut at = 0u64;
    for entry in entries {
        let end = at + entry.bytes;
        let value = json!({ "dtype": entry.dtype, "shape": entry.shape, "data_offsets": [at, end] });
        header.insert(entry.name.clone(), value);
        at = end;
    }
    let mut text = Value::from(header).to_string();
    // The bytes of tensors begin at a multiple of eight.
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

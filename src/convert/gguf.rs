//! Writes GGUF, version 3: magic, counts, metadata, tensor list, then the bytes of all tensors, each at a multiple of 32.
//! Layout: `docs/gguf.md` of the ggml project.

use super::{Conversion, Fate, Planned, Sink, rows};
use crate::checkpoint::{CONFIG, FileDType};
use crate::error::Result;
use crate::models::Model;
use crate::tensor::DType;

const VERSION: u32 = 3;
const ALIGNMENT: u64 = 32;
const UINT32: u32 = 4;
const STRING: u32 = 8;

pub(super) fn write(conversion: &Conversion<'_>, sink: &mut Sink<'_>) -> Result<()> {
    let head = head(conversion);
    sink.put(&head)?;
    for planned in &conversion.tensors {
        rows::write(conversion, planned, sink)?;
        let bytes = planned.fate.byte_len(planned.info);
        sink.put(&vec![0; (bytes.next_multiple_of(ALIGNMENT) - bytes) as usize])?;
    }
    Ok(())
}

fn head(conversion: &Conversion<'_>) -> Vec<u8> {
    let mut meta = vec![
        ("general.architecture", Meta::Text(architecture(conversion))),
        ("general.quantization_version", Meta::Number(2)),
        ("general.alignment", Meta::Number(ALIGNMENT as u32)),
    ];
    meta.extend(conversion.config().map(|config| (CONFIG, Meta::Text(config))));
    let mut head = b"GGUF".to_vec();
    head.extend(VERSION.to_le_bytes());
    head.extend((conversion.tensors.len() as u64).to_le_bytes());
    head.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in meta {
        text(&mut head, key);
        match value {
            Meta::Text(value) => {
                head.extend(STRING.to_le_bytes());
                text(&mut head, &value);
            }
            Meta::Number(value) => {
                head.extend(UINT32.to_le_bytes());
                head.extend(value.to_le_bytes());
            }
        }
    }
    let mut at = 0u64;
    for planned in &conversion.tensors {
        let shape = &planned.info.shape;
        text(&mut head, &planned.info.stored);
        head.extend((shape.len() as u32).to_le_bytes());
        // Innermost first.
        shape.iter().rev().for_each(|&n| head.extend((n as u64).to_le_bytes()));
        head.extend(dtype(planned).ggml().unwrap_or(u32::MAX).to_le_bytes());
        head.extend(at.to_le_bytes());
        at += planned.fate.byte_len(planned.info).next_multiple_of(ALIGNMENT);
    }
    head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
    head
}

enum Meta {
    Text(String),
    Number(u32),
}

fn text(head: &mut Vec<u8>, text: &str) {
    head.extend((text.len() as u64).to_le_bytes());
    head.extend(text.as_bytes());
}

/// The type in the new file. Planning has refused what has none.
fn dtype(planned: &Planned<'_>) -> DType {
    match (planned.fate, planned.info.dtype) {
        (Fate::Becomes(dtype), _) | (_, FileDType::Weight(dtype)) => dtype,
        _ => DType::F32,
    }
}

/// What ComfyUI-GGUF and llama.cpp call the model.
fn architecture(conversion: &Conversion<'_>) -> String {
    match Model::read(conversion.checkpoint) {
        Ok(Model::ZImage(_)) => "lumina2".into(),
        Ok(Model::Qwen3(_)) => "qwen3".into(),
        Ok(other) => other.entry().name.to_ascii_lowercase().replace(' ', "-"),
        Err(_) => "unknown".into(),
    }
}

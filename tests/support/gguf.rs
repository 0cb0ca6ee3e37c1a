//! GGUF files written by the letter of the format, for tests of the reader.

#![allow(dead_code, reason = "each test uses a part of it")]

use rotile::quant;
use rotile::tensor::{DType, Tensor};

/// A file under construction.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    /// Keys, kinds and bytes of values.
    pub(crate) metadata: Vec<(String, u32, Vec<u8>)>,
    pub(crate) tensors: Vec<Stored>,
}

#[derive(Clone)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) number: u32,
    /// Outermost first.
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
    /// Added to the offset that belongs to it.
    pub(crate) shift: u64,
}

/// Text with its length.
pub(crate) fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A list of `count` values of a kind.
pub(crate) fn list(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

/// ggml's number of a type.
pub(crate) fn number(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::BF16 => 30,
        other => panic!("no test writes {other}"),
    }
}

impl File {
    pub(crate) fn new() -> Self {
        Self {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, key: &str, kind: u32, value: impl AsRef<[u8]>) -> Self {
        self.metadata.push((key.to_owned(), kind, value.as_ref().to_vec()));
        self
    }

    pub(crate) fn with_text(self, key: &str, value: &str) -> Self {
        self.with(key, 8, text(value))
    }

    pub(crate) fn tensor(mut self, name: &str, number: u32, shape: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors.push(Stored {
            name: name.to_owned(),
            number,
            shape: shape.to_vec(),
            bytes,
            shift: 0,
        });
        self
    }

    /// Values rounded to `dtype`.
    pub(crate) fn values(self, name: &str, dtype: DType, shape: &[usize], values: &[f32]) -> Self {
        let bytes = match dtype.is_blocks() {
            true => quant::encode(dtype, values),
            false => {
                let mut bytes = Tensor::new(shape, values.to_vec()).to_dtype(dtype).to_bytes();
                bytes.truncate(dtype.bytes(values.len()));
                bytes
            }
        };
        self.tensor(name, number(dtype), shape, bytes)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, kind, value) in &self.metadata {
            out.extend(text(key));
            out.extend(kind.to_le_bytes());
            out.extend(value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor
                .shape
                .iter()
                .rev()
                .for_each(|&d| out.extend((d as u64).to_le_bytes()));
            out.extend(tensor.number.to_le_bytes());
            out.extend((offset as u64 + tensor.shift).to_le_bytes());
            offset += tensor.bytes.len().next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

impl Default for File {
    fn default() -> Self {
        Self::new()
    }
}

//! Model files in another element type: what each tensor becomes, and writing it tensor by tensor.
//!
//! A [`Conversion`] is planned first: every name, type and size is known before a byte is written. Writing then holds a few rows
//! in memory at a time, whatever the size of the file.

mod gguf;
mod rows;
mod rule;
mod safetensors;

pub use rule::{Fate, WeightType};

use crate::checkpoint::{Checkpoint, CheckpointError, TensorInfo};
use crate::engine::Cancel;
use crate::error::{Error, Result};
use std::io::Write;

/// A format of model files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Plain types and int8 with scales.
    Safetensors,
    /// Plain types and blocks.
    Gguf,
}

impl Container {
    /// The format that a file name ends with.
    pub fn of(file: &str) -> Option<Self> {
        let (_, extension) = file.rsplit_once('.')?;
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Some(Self::Safetensors),
            "gguf" => Some(Self::Gguf),
            _ => None,
        }
    }

    /// Its name, which is its extension too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        }
    }
}

/// A planned conversion of a checkpoint.
#[derive(Debug)]
pub struct Conversion<'a> {
    checkpoint: &'a Checkpoint,
    container: Container,
    tensors: Vec<Planned<'a>>,
}

/// A tensor of the source and what becomes of it.
#[derive(Clone, Debug)]
pub struct Planned<'a> {
    /// The tensor, under the name that it has in its file.
    pub info: &'a TensorInfo,
    /// What it becomes.
    pub fate: Fate,
    /// Why it is not what was asked for.
    pub reason: Option<String>,
}

/// Where a conversion is: bytes written, of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Bytes of tensors so far.
    pub bytes: u64,
    /// Bytes of all tensors.
    pub of: u64,
}

impl<'a> Conversion<'a> {
    /// Decides what every tensor of `checkpoint` becomes.
    ///
    /// # Errors
    /// If the container cannot hold the target, or a tensor has a type that it cannot hold.
    pub fn plan(checkpoint: &'a Checkpoint, target: WeightType, container: Container) -> Result<Self> {
        target.check(container)?;
        let mut tensors = Vec::new();
        let stored = checkpoint.stored();
        // Said of the weight, not of the marker that comes before it.
        for info in stored.iter().filter(|info| info.is_int8_tensorwise()) {
            rule::decide(info, target, container)?;
        }
        for info in stored.iter().filter(|info| !rule::is_spent(info, stored, target)) {
            let (fate, reason) = rule::decide(info, target, container)?;
            tensors.push(Planned { info, fate, reason });
        }
        // Within a class of alignment the order stays that of the names.
        tensors.sort_by_key(|planned| std::cmp::Reverse(planned.fate.alignment(planned.info)));
        Ok(Self {
            checkpoint,
            container,
            tensors,
        })
    }

    /// The tensors with what they become, in the order of the file.
    pub fn tensors(&self) -> &[Planned<'a>] {
        &self.tensors
    }

    /// Bytes of all tensors in the new file.
    pub fn byte_len(&self) -> u64 {
        self.tensors.iter().map(|p| p.fate.byte_len(p.info)).sum()
    }

    /// Writes the file. `on` hears of progress; `cancel` stops it between rows.
    ///
    /// # Errors
    /// If a tensor's values are not there or not finite, do not fit the new type, or writing fails; what was written until then
    /// is worthless.
    pub fn write(&self, out: &mut dyn Write, on: &mut dyn FnMut(Written), cancel: &Cancel) -> Result<()> {
        let mut sink = Sink {
            out,
            on,
            cancel,
            written: Written {
                bytes: 0,
                of: self.byte_len(),
            },
        };
        match self.container {
            Container::Safetensors => safetensors::write(self, &mut sink),
            Container::Gguf => gguf::write(self, &mut sink),
        }
    }

    /// The configuration that belongs to the weights, as text.
    fn config(&self) -> Option<String> {
        self.checkpoint.config().map(ToString::to_string)
    }
}

/// Where the bytes go.
struct Sink<'a> {
    out: &'a mut dyn Write,
    on: &'a mut dyn FnMut(Written),
    cancel: &'a Cancel,
    written: Written,
}

impl Sink<'_> {
    /// Writes what is no tensor: headers and padding.
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|source| {
            Error::from(CheckpointError::Io {
                file: "output".into(),
                source,
            })
        })
    }

    /// Writes bytes of a tensor.
    fn tensor(&mut self, bytes: &[u8]) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.put(bytes)?;
        self.written.bytes += bytes.len() as u64;
        (self.on)(self.written);
        Ok(())
    }
}

//! Model files: names, shapes and bytes of tensors, whatever the layout on disk.

mod safetensors;

pub use crate::error::CheckpointError;

use crate::tensor::{DType, Shape, Tensor, TensorType};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Element type as a file names it: wider than what kernels can use.
pub type FileDType = ::safetensors::Dtype;

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Full name.
    pub name: String,
    /// Element type in the file.
    pub dtype: FileDType,
    /// Extents.
    pub shape: Shape,
    file: Arc<str>,
    storage: usize,
    start: usize,
    len: usize,
}

impl TensorInfo {
    /// Bytes in the file.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// The element type, where kernels can use it as a weight.
    ///
    /// # Errors
    /// If it is no F32, F16 or BF16.
    pub fn float(&self) -> Result<DType, CheckpointError> {
        match self.dtype {
            FileDType::F32 => Ok(DType::F32),
            FileDType::F16 => Ok(DType::F16),
            FileDType::BF16 => Ok(DType::BF16),
            other => Err(CheckpointError::DType {
                file: self.file.to_string(),
                name: self.name.clone(),
                found: format!("{other:?}"),
                wanted: "F32, F16 or BF16".into(),
            }),
        }
    }
}

/// Bytes of one file.
enum Storage {
    Static(&'static [u8]),
    Bytes(Arc<[u8]>),
    #[cfg(feature = "native")]
    Mapped(memmap2::Mmap),
    /// Only the header is there.
    Absent,
}

impl Storage {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Static(bytes) => Some(bytes),
            Self::Bytes(bytes) => Some(bytes),
            #[cfg(feature = "native")]
            Self::Mapped(map) => Some(map),
            Self::Absent => None,
        }
    }
}

/// An opened file, or several that belong together.
pub struct Checkpoint {
    name: String,
    storages: Vec<Storage>,
    tensors: BTreeMap<String, TensorInfo>,
}

impl Checkpoint {
    /// File name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// One tensor.
    ///
    /// # Errors
    /// If there is none of that name; the message names the nearest.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.tensors.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            file: self.name.clone(),
            name: name.to_owned(),
            nearest: None,
        })
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.name, self.tensors.len())
    }
}

/// A view of a checkpoint below a path: `w.at("decoder.1").info("weight")`.
#[derive(Clone, Debug)]
pub struct Weights {
    checkpoint: Arc<Checkpoint>,
    path: String,
}

impl Weights {
    /// The whole checkpoint.
    pub fn new(checkpoint: Arc<Checkpoint>) -> Self {
        Self {
            checkpoint,
            path: String::new(),
        }
    }

    /// The part below `name`.
    pub fn at(&self, name: impl fmt::Display) -> Self {
        Self {
            checkpoint: self.checkpoint.clone(),
            path: self.full(&name.to_string()),
        }
    }

    /// Where this view is: `layers.3.attention`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The checkpoint behind it.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// A tensor below this path.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.checkpoint.info(&self.full(name))
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors.contains_key(&self.full(name))
    }

    /// Values of the tensor with this *full* name, as `ty` stores them on the device: shapes equal, elements converted where
    /// the types differ.
    ///
    /// # Errors
    /// If the bytes are not there or hold a NaN or infinity.
    pub fn load(&self, full_name: &str, dtype: DType) -> Result<Tensor, CheckpointError> {
        self.checkpoint.load(full_name, dtype)
    }

    fn full(&self, name: &str) -> String {
        match (self.path.as_str(), name) {
            ("", name) => name.to_owned(),
            (path, "") => path.to_owned(),
            (path, name) => format!("{path}.{name}"),
        }
    }
}

impl Checkpoint {
    /// Values of a tensor, converted to `dtype`.
    ///
    /// # Errors
    /// If the tensor or its bytes are not there, its type is unusable, or it holds a NaN or infinity.
    pub fn load(&self, name: &str, dtype: DType) -> Result<Tensor, CheckpointError> {
        let info = self.info(name)?;
        let stored = info.float()?;
        let bytes = self.storages[info.storage]
            .bytes()
            .ok_or_else(|| CheckpointError::Header {
                file: self.name.clone(),
                reason: format!("`{name}` is only described: the file has no values"),
            })?;
        let tensor = Tensor::from_bytes(
            TensorType::new(stored, info.shape.clone()),
            &bytes[info.start..info.start + info.len],
        );
        if let Some(index) = tensor.first_non_finite() {
            return Err(CheckpointError::NonFinite {
                file: info.file.to_string(),
                name: name.to_owned(),
                index,
            });
        }
        Ok(if stored == dtype {
            tensor
        } else {
            tensor.to_dtype(dtype)
        })
    }
}

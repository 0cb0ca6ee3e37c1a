use super::{Checkpoint, CheckpointError, TensorInfo};
use crate::plan::ConvrotPath;
use crate::tensor::{DType, Tensor};
use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A view of a checkpoint below a path: `w.at("decoder.1").info("weight")`.
#[derive(Clone, Debug)]
pub struct Weights {
    checkpoint: Arc<Checkpoint>,
    path: String,
    convrot: ConvrotPath,
}

impl Weights {
    /// The whole checkpoint.
    pub fn new(checkpoint: Arc<Checkpoint>) -> Self {
        Self {
            checkpoint,
            path: String::new(),
            convrot: ConvrotPath::default(),
        }
    }

    /// The same weights, whose int8 layers run on `path`.
    #[must_use]
    pub fn with_convrot(self, path: ConvrotPath) -> Self {
        Self { convrot: path, ..self }
    }

    /// How int8 layers run.
    pub fn convrot(&self) -> ConvrotPath {
        self.convrot
    }

    /// The part below `name`.
    pub fn at(&self, name: impl fmt::Display) -> Self {
        Self {
            checkpoint: self.checkpoint.clone(),
            path: self.full(&name.to_string()),
            convrot: self.convrot,
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

    /// Extents of a tensor below this path, if it is there.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.checkpoint.shape(&self.full(name))
    }

    /// Bytes of the tensor with this *full* name as they are in the file, and their type.
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub fn raw(&self, full_name: &str) -> Result<(DType, Cow<'_, [u8]>), CheckpointError> {
        self.checkpoint.raw(full_name)
    }

    /// Rows of the tensor with this *full* name as the device stores them: see [`Checkpoint::rows`].
    ///
    /// # Errors
    /// As [`Weights::load`].
    pub fn rows(&self, full_name: &str, dtype: DType, rows: Range<usize>) -> Result<Cow<'_, [u8]>, CheckpointError> {
        self.checkpoint.rows(full_name, dtype, rows)
    }

    fn full(&self, name: &str) -> String {
        match (self.path.as_str(), name) {
            ("", name) => name.to_owned(),
            (path, "") => path.to_owned(),
            (path, name) => format!("{path}.{name}"),
        }
    }
}

//! Model files: names, shapes and bytes of tensors, whatever the layout on disk.

mod describe;
mod file_dtype;
pub mod gguf;
mod names;
#[cfg(feature = "native")]
mod open;
mod overlay;
mod part;
mod quantised;
mod safetensors;
mod source;
mod values;
mod weights;

pub use crate::error::CheckpointError;
pub use file_dtype::FileDType;
pub use names::Layout;
pub use part::Part;
pub use quantised::Int8Layer;
pub(crate) use source::Source as WeightSource;
pub(crate) use values::first_non_finite;
pub use weights::Weights;

use crate::adapter::Overlay;
use crate::convert::WeightType;
use crate::tensor::{DType, Shape};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Key of the metadata under which [`convert`](crate::convert) keeps the configuration of a model.
pub(crate) const CONFIG: &str = "rotile.config";

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// Full name, as diffusers has it.
    pub name: String,
    /// Name in the file.
    pub stored: String,
    /// Element type in the file.
    pub dtype: FileDType,
    /// Extents.
    pub shape: Shape,
    file: Arc<str>,
    storage: usize,
    start: usize,
    len: usize,
    retyped: Option<DType>,
    /// How often the bytes come in a row: more than once for the one scale of all rows.
    repeat: usize,
    int8: Option<Arc<Int8Layer>>,
}

impl TensorInfo {
    /// Name of the file that holds it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Bytes in the file.
    pub fn byte_len(&self) -> usize {
        self.len
    }

    /// The element type that it has on the device, if it is a matrix: that of the file, unless [`Checkpoint::retyped`] says
    /// otherwise.
    ///
    /// # Errors
    /// As [`TensorInfo::weight`].
    pub fn device(&self) -> Result<DType, CheckpointError> {
        match self.retyped {
            Some(dtype) => Ok(dtype),
            None => self.weight(),
        }
    }

    /// How the codes of an int8 layer are to be read; `None` for any other tensor.
    pub fn int8(&self) -> Option<&Int8Layer> {
        self.int8.as_deref()
    }

    /// Whether it is the weight of an int8 layer, rotated or not: codes that no other quantised type may replace.
    pub fn is_int8_tensorwise(&self) -> bool {
        self.int8.is_some()
    }

    /// The element type, where kernels can use it as a weight.
    ///
    /// # Errors
    /// If it is none of F32, F16, BF16, I8 and the types of blocks.
    pub fn weight(&self) -> Result<DType, CheckpointError> {
        self.dtype.weight().ok_or_else(|| CheckpointError::DType {
            file: self.file.to_string(),
            name: self.name.clone(),
            found: self.dtype.to_string(),
            wanted: "F32, F16, BF16, I8 or blocks from Q8_0 to Q6_K".into(),
        })
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

/// One file on its way into a checkpoint.
struct Source {
    file: String,
    storage: Storage,
    entries: Vec<safetensors::Entry>,
    metadata: Option<gguf::Metadata>,
    /// The configuration that [`convert`](crate::convert) has put into the file.
    config: Option<Value>,
}

impl Source {
    /// Reads the header of a safetensors or GGUF file.
    fn read(file: &str, storage: Storage) -> Result<Self, CheckpointError> {
        let bytes = storage.bytes().unwrap_or_default();
        let (entries, metadata, config) = if bytes.starts_with(gguf::MAGIC) {
            let (entries, metadata) = gguf::read(file, bytes)?;
            let config = metadata.text(CONFIG).map(ToOwned::to_owned);
            (entries, Some(metadata), config)
        } else {
            (safetensors::read(file, bytes)?, None, safetensors::note(bytes, CONFIG))
        };
        Ok(Self {
            file: file.to_owned(),
            storage,
            entries,
            metadata,
            config: config.and_then(|text| serde_json::from_str(&text).ok()),
        })
    }
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

/// An opened file, or several that belong together. Names are those of diffusers, whatever the layout of the file.
#[derive(Clone)]
pub struct Checkpoint {
    name: String,
    storages: Vec<Arc<Storage>>,
    tensors: BTreeMap<String, TensorInfo>,
    stored: Vec<TensorInfo>,
    layout: Layout,
    config: Option<Value>,
    /// Whether the configuration came in the file itself.
    own_config: bool,
    metadata: Option<gguf::Metadata>,
    overlay: Option<Arc<Overlay>>,
}

impl Checkpoint {
    /// A safetensors or GGUF file in memory.
    ///
    /// # Errors
    /// If it is cut or malformed.
    pub fn from_bytes(name: &str, bytes: Arc<[u8]>) -> Result<Self, CheckpointError> {
        Self::assemble(name, vec![Source::read(name, Storage::Bytes(bytes))?])
    }

    /// A safetensors or GGUF file that is part of the program.
    ///
    /// # Errors
    /// If it is cut or malformed.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Self, CheckpointError> {
        Self::assemble(name, vec![Source::read(name, Storage::Static(bytes))?])
    }

    /// Adds the contents of a `config.json`, for what shapes cannot tell. A file that [`convert`](crate::convert) made has its own,
    /// which stays; without one, so does what a GGUF file says of itself.
    #[must_use]
    pub fn with_config(self, config: Option<Value>) -> Self {
        let keeps = self.own_config || (config.is_none() && self.metadata.is_some());
        let config = if keeps { self.config } else { config };
        Self { config, ..self }
    }

    fn assemble(name: &str, sources: Vec<Source>) -> Result<Self, CheckpointError> {
        let mut storages = Vec::new();
        let (mut metadata, mut config) = (None, None);
        let mut tensors: BTreeMap<String, TensorInfo> = BTreeMap::new();
        for source in sources {
            let file: Arc<str> = source.file.into();
            for entry in source.entries {
                let info = TensorInfo {
                    name: entry.name.clone(),
                    stored: entry.name,
                    dtype: entry.dtype,
                    shape: entry.shape,
                    file: file.clone(),
                    storage: storages.len(),
                    start: entry.start,
                    len: entry.len,
                    retyped: None,
                    repeat: 1,
                    int8: None,
                };
                if let Some(other) = tensors.insert(info.name.clone(), info) {
                    return Err(CheckpointError::Header {
                        file: file.to_string(),
                        reason: format!("`{}` is in {} too", other.name, other.file),
                    });
                }
            }
            storages.push(Arc::new(source.storage));
            metadata = metadata.or(source.metadata);
            config = config.or(source.config);
        }
        let mut stored: Vec<_> = tensors.values().cloned().collect();
        let tensors = quantised::gather(name, tensors, &storages)?;
        for info in &mut stored {
            info.int8 = tensors.get(&info.name).and_then(|gathered| gathered.int8.clone());
        }
        let (tensors, layout) = names::to_diffusers(name, tensors)?;
        let tensors = quantised::add_scales(name, tensors)?;
        Ok(Self {
            name: name.to_owned(),
            storages,
            tensors,
            stored,
            layout,
            own_config: config.is_some(),
            config: config.or_else(|| metadata.as_ref().and_then(names::config)),
            metadata,
            overlay: None,
        })
    }

    /// The same files with weights brought to the device in another type: matrices, and with a plain type filters too. What has
    /// blocks or codes already keeps them where `target` is packed.
    pub fn retyped(&self, target: WeightType) -> Self {
        let mut new = self.clone();
        for info in new.tensors.values_mut() {
            info.retyped = target.on_load(info);
        }
        new
    }

    /// File name for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the file names its tensors.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The `config.json` beside the weights, or the same from the metadata of a GGUF file, if there is one.
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// What a GGUF file says of itself.
    pub fn metadata(&self) -> Option<&gguf::Metadata> {
        self.metadata.as_ref()
    }

    /// A text of the `__metadata__` of a safetensors file: of the first of several that has it.
    pub fn note(&self, key: &str) -> Option<String> {
        self.storages.iter().find_map(|s| safetensors::note(s.bytes()?, key))
    }

    /// Whether the values are there, not just a description of them.
    pub fn has_values(&self) -> bool {
        self.storages.iter().all(|s| s.bytes().is_some())
    }

    /// Every tensor, by name.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// Every tensor under the name and in the shape that it has in its file.
    pub fn stored(&self) -> &[TensorInfo] {
        &self.stored
    }

    /// A tensor, if it is there.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Extents of a tensor, if it is there: what detection looks at.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.get(name).map(|info| &*info.shape)
    }

    /// One tensor.
    ///
    /// # Errors
    /// If there is none of that name; the message names the nearest.
    pub fn info(&self, name: &str) -> Result<&TensorInfo, CheckpointError> {
        self.get(name).ok_or_else(|| CheckpointError::MissingTensor {
            file: self.name.clone(),
            name: name.to_owned(),
            nearest: names::nearest(name, self.tensors.keys()),
        })
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {} tensors)", self.name, self.tensors.len())
    }
}

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

pub use crate::error::CheckpointError;
pub use file_dtype::FileDType;
pub use names::Layout;
pub use part::Part;
pub use quantised::Int8Layer;

use crate::adapter::Overlay;
use crate::convert::WeightType;
use crate::plan::ConvrotPath;
use crate::quant;
use crate::tensor::{DType, Shape, Tensor, TensorType, decode};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
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

    /// Bytes of one of [`Checkpoint::stored`].
    ///
    /// # Errors
    /// If the file is only described.
    pub(crate) fn stored_bytes(&self, info: &TensorInfo) -> Result<&[u8], CheckpointError> {
        let bytes = self.storages[info.storage]
            .bytes()
            .ok_or_else(|| CheckpointError::Header {
                file: info.file.to_string(),
                reason: format!("`{}` is only described: the file has no values", info.stored),
            })?;
        Ok(&bytes[info.start..info.start + info.len])
    }

    /// Values of rows along the first axis of one of [`Checkpoint::stored`]; a tensor without axes is one row.
    ///
    /// # Errors
    /// If the file is only described, or the rows hold a NaN or infinity, or are no floats.
    pub(crate) fn stored_rows(&self, info: &TensorInfo, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        if let Some(int8) = info.int8() {
            return self.stored_int8_rows(info, int8, rows);
        }
        let dtype = info.weight()?;
        let bytes = self.stored_bytes(info)?;
        let (dtype, bytes) = match Shape::from(info.shape.get(1..).unwrap_or_default()).count() {
            row if row.is_multiple_of(dtype.block().0) => (dtype, Cow::Borrowed(bytes)),
            // Rows that are no whole blocks, as of vectors and small filters.
            _ => (DType::F32, Cow::Owned(as_f32(dtype, bytes))),
        };
        let row = bytes.len() / info.shape.first().copied().unwrap_or(1).max(1);
        let bytes = &bytes[rows.start * row..rows.end * row];
        match first_non_finite(dtype, bytes) {
            Some(index) => Err(CheckpointError::NonFinite {
                file: info.file.to_string(),
                name: info.stored.clone(),
                index: rows.start * Shape::from(info.shape.get(1..).unwrap_or_default()).count() + index,
            }),
            None => Ok(decode(dtype, bytes)),
        }
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

    /// The tensor that a graph means by `name`, and which [`Part`] of it, if not all.
    pub(super) fn find(&self, name: &str) -> Result<(&TensorInfo, Option<Part>), CheckpointError> {
        match Part::parse(name) {
            Some(part) if self.get(name).is_none() => Ok((self.info(&part.name)?, Some(part))),
            _ => Ok((self.info(name)?, None)),
        }
    }

    /// Bytes of a tensor or of a [`Part`] as they are in the file, little-endian, and their type. A part that begins or ends within
    /// blocks is decoded to F32.
    ///
    /// # Errors
    /// If the tensor or its bytes are not there, or its type is unusable.
    pub fn raw(&self, name: &str) -> Result<(DType, Cow<'_, [u8]>), CheckpointError> {
        let (info, part) = self.find(name)?;
        let dtype = info.weight()?;
        let bytes = self.stored_bytes(info)?;
        let bytes = match info.repeat {
            1 => Cow::Borrowed(bytes),
            n => Cow::Owned(bytes.repeat(n)),
        };
        let Some(part) = part else {
            return Ok((dtype, bytes));
        };
        self.part_shape(info, &part)?;
        // Blocks cannot be cut.
        let step: usize = info.shape[part.axis + 1..].iter().product();
        Ok(match step.is_multiple_of(dtype.block().0) {
            true => (dtype, Cow::Owned(part.cut(info, &bytes))),
            false => (DType::F32, Cow::Owned(part.cut(info, &as_f32(dtype, &bytes)))),
        })
    }

    /// As [`Checkpoint::raw`], of rows along the first axis only, that are to become `wanted`; a tensor without axes is one row.
    pub(super) fn raw_rows(
        &self,
        name: &str,
        rows: &Range<usize>,
        wanted: DType,
    ) -> Result<(TensorType, Cow<'_, [u8]>), CheckpointError> {
        let (dtype, bytes) = self.raw(name)?;
        if dtype == DType::I8 && wanted != DType::I8 {
            let (ty, values) = self.reconstruct(name, rows.clone())?;
            return Ok((ty, Cow::Owned(bytemuck::cast_slice(&values).to_vec())));
        }
        let mut shape = self.shape_of(name)?;
        let (dtype, bytes) = match Shape::from(shape.get(1..).unwrap_or_default()).count() {
            row if row.is_multiple_of(dtype.block().0) => (dtype, bytes),
            // Rows that are no whole blocks, as of vectors and small filters.
            _ => (DType::F32, Cow::Owned(as_f32(dtype, &bytes))),
        };
        let row = bytes.len() / shape.first().copied().unwrap_or(1).max(1);
        let range = rows.start * row..rows.end * row;
        let bytes = match bytes {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[range]),
            Cow::Owned(bytes) => Cow::Owned(bytes[range].to_vec()),
        };
        match first_non_finite(dtype, &bytes) {
            Some(index) => Err(CheckpointError::NonFinite {
                file: self.name.clone(),
                name: name.to_owned(),
                index: rows.start * Shape::from(shape.get(1..).unwrap_or_default()).count() + index,
            }),
            None => {
                if let Some(first) = shape.first_mut() {
                    *first = rows.len();
                }
                Ok((TensorType::new(dtype, shape), bytes))
            }
        }
    }

    /// Rows of a tensor or of a [`Part`] along its first axis, converted to `dtype` as the device stores it.
    ///
    /// # Errors
    /// As [`Checkpoint::load`].
    ///
    /// # Panics
    /// If the tensor has fewer rows.
    pub fn rows(&self, name: &str, dtype: DType, rows: Range<usize>) -> Result<Cow<'_, [u8]>, CheckpointError> {
        if let Some(patched) = self.patched(name, &rows, dtype)? {
            return Ok(Cow::Owned(patched.to_dtype(dtype).to_bytes()));
        }
        if self.reconstructs(name, dtype)? {
            return Ok(Cow::Owned(self.reconstructed_bytes(name, dtype, rows)?));
        }
        let (ty, bytes) = self.raw_rows(name, &rows, dtype)?;
        if ty.dtype != dtype {
            return Ok(Cow::Owned(Tensor::from_bytes(ty, &bytes).to_dtype(dtype).to_bytes()));
        }
        let whole = bytes.len().is_multiple_of(4);
        Ok(match (dtype.is_blocks(), whole) {
            (true, _) => Cow::Owned(quant::pack(dtype, &bytes)),
            (false, true) => bytes,
            (false, false) => {
                let mut bytes = bytes.into_owned();
                bytes.resize(bytes.len().next_multiple_of(4), 0);
                Cow::Owned(bytes)
            }
        })
    }

    pub(super) fn shape_of(&self, name: &str) -> Result<Vec<usize>, CheckpointError> {
        Ok(match self.find(name)? {
            (info, Some(part)) => self.part_shape(info, &part)?.to_vec(),
            (info, None) => info.shape.to_vec(),
        })
    }

    fn part_shape(&self, info: &TensorInfo, part: &Part) -> Result<Shape, CheckpointError> {
        part.shape(&info.shape).ok_or_else(|| CheckpointError::MissingTensor {
            file: self.name.clone(),
            name: part.to_string(),
            nearest: None,
        })
    }

    /// A tensor or a [`Part`] on the host, converted to `dtype`: values, or bytes where `dtype` is packed.
    ///
    /// # Errors
    /// If the tensor or its bytes are not there, its type is unusable, or it holds a NaN or infinity.
    pub fn load(&self, name: &str, dtype: DType) -> Result<Tensor, CheckpointError> {
        let rows = self.shape_of(name)?.first().copied().unwrap_or(1);
        if let Some(patched) = self.patched(name, &(0..rows), dtype)? {
            return Ok(patched.to_dtype(dtype));
        }
        let (ty, bytes) = self.raw_rows(name, &(0..rows), dtype)?;
        Ok(if ty.dtype == dtype && dtype.is_packed() {
            Tensor::packed(ty, bytes.into_owned())
        } else if ty.dtype == dtype {
            Tensor::from_bytes(ty, &bytes)
        } else {
            Tensor::from_bytes(ty, &bytes).to_dtype(dtype)
        })
    }
}

/// Blocks as little-endian `f32`.
fn as_f32(dtype: DType, blocks: &[u8]) -> Vec<u8> {
    let values = quant::decode(dtype, blocks);
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Index of the first element whose exponent is all ones.
pub(crate) fn first_non_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    let half = |mask: u16| {
        let bits = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        bytes.chunks_exact(2).position(|b| bits(b) & mask == mask)
    };
    match dtype {
        DType::F16 => half(0x7c00),
        DType::BF16 => half(0x7f80),
        DType::F32 => bytes
            .chunks_exact(4)
            .position(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 == 0x7f80_0000),
        DType::U32 | DType::I8 => None,
        blocks => quant::first_non_finite(blocks, bytes),
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

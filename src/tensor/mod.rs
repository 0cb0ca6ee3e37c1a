//! Host tensors and their types.

mod dtype;
mod parts;
mod shape;

pub use {dtype::DType, parts::Part, shape::Shape};

use crate::quant;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};
use std::borrow::Cow;
use std::fmt;

/// Element type and shape: all that planning needs to know about a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
}

impl TensorType {
    /// A type from its parts.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self {
            dtype,
            shape: shape.into(),
        }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.count()
    }

    /// Bytes on the device, rounded up to whole 32-bit words; at least one word, since empty buffers cannot be bound.
    pub fn byte_len(&self) -> usize {
        self.dtype.bytes(self.count()).max(1).div_ceil(4).saturating_mul(4)
    }

    /// The same shape in another element type.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self {
            dtype,
            shape: self.shape.clone(),
        }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.dtype, self.shape)
    }
}

/// A tensor in host memory. Values are `f32` whatever the element type is; ids are exact up to 2^24. Weights of a packed type
/// keep their bytes instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Type on the device.
    pub ty: TensorType,
    /// Row-major values; empty where `blocks` holds them.
    pub data: Vec<f32>,
    /// Bytes of a packed type, as files have them; else empty.
    pub blocks: Vec<u8>,
}

/// A tensor borrowed from a buffer: what the CPU side of an op reads.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type and shape.
    pub ty: &'a TensorType,
    /// Row-major values; empty where `blocks` holds them.
    pub data: &'a [f32],
    /// Bytes of a packed type, as files have them; else empty.
    pub blocks: &'a [u8],
}

impl<'a> View<'a> {
    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    /// The values, decoded where the tensor is packed.
    pub fn values(&self) -> Cow<'a, [f32]> {
        if self.blocks.is_empty() {
            Cow::Borrowed(self.data)
        } else {
            Cow::Owned(decode(self.ty.dtype, self.blocks))
        }
    }
}

impl Tensor {
    /// A tensor from values that are exact in its element type.
    pub(crate) fn of(ty: TensorType, data: Vec<f32>) -> Self {
        Self {
            ty,
            data,
            blocks: Vec::new(),
        }
    }

    /// A tensor of a packed type from its bytes, as files have them.
    ///
    /// # Panics
    /// If the number of bytes is not that of the type.
    pub fn packed(ty: TensorType, blocks: Vec<u8>) -> Self {
        assert!(ty.dtype.is_packed(), "{} is not packed", ty.dtype);
        assert_eq!(ty.dtype.bytes(ty.count()), blocks.len(), "bytes do not fill {ty}");
        Self {
            ty,
            data: Vec::new(),
            blocks,
        }
    }

    /// An `f32` tensor.
    ///
    /// # Panics
    /// If the number of values is not that of the shape.
    pub fn new(shape: impl Into<Shape>, data: Vec<f32>) -> Self {
        let ty = TensorType::new(DType::F32, shape);
        assert_eq!(ty.count(), data.len(), "values do not fill shape {}", ty.shape);
        Self::of(ty, data)
    }

    /// Token ids or other indices.
    ///
    /// # Panics
    /// If an id is 2^24 or more: it would not be exact.
    pub fn ids(shape: impl Into<Shape>, ids: &[u32]) -> Self {
        assert!(ids.iter().all(|&id| id < 1 << 24), "an id of 2^24 or more");
        let ty = TensorType::new(DType::U32, shape);
        assert_eq!(ty.count(), ids.len(), "ids do not fill shape {}", ty.shape);
        Self::of(ty, ids.iter().map(|&id| id as f32).collect())
    }

    /// Borrows it.
    pub fn view(&self) -> View<'_> {
        View {
            ty: &self.ty,
            data: &self.data,
            blocks: &self.blocks,
        }
    }

    /// Index of the first NaN or infinity, if any.
    pub fn first_non_finite(&self) -> Option<usize> {
        self.data.iter().position(|v| !v.is_finite())
    }

    /// The same values as another element type, rounded to what that can hold.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        Self::of(self.ty.with_dtype(dtype), self.view().values().into_owned()).rounded()
    }

    /// Values as the device stores them, padded to whole words.
    pub fn to_bytes(&self) -> Vec<u8> {
        let dtype = self.ty.dtype;
        if !self.blocks.is_empty() {
            return quant::pack(dtype, &self.blocks);
        }
        let mut bytes: Vec<u8> = match dtype {
            DType::F32 => bytemuck::cast_slice(&self.data).to_vec(),
            DType::F16 => self.data.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => self
                .data
                .iter()
                .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
                .collect(),
            DType::U32 => self.data.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect(),
            DType::I8 => self.data.iter().map(|&v| v as i8 as u8).collect(),
            _ => quant::pack(dtype, &quant::encode(dtype, &self.data)),
        };
        bytes.resize(self.ty.byte_len(), 0);
        bytes
    }

    /// The values after a round trip through the device's element type; those of a packed type become bytes.
    pub fn rounded(&self) -> Self {
        let dtype = self.ty.dtype;
        if dtype.is_packed() {
            let blocks = match (self.blocks.is_empty(), dtype) {
                (false, _) => self.blocks.clone(),
                (true, DType::I8) => self.data.iter().map(|&v| v as i8 as u8).collect(),
                (true, _) => quant::encode(dtype, &self.data),
            };
            return Self::packed(self.ty.clone(), blocks);
        }
        Self::from_bytes(self.ty.clone(), &self.to_bytes())
    }

    /// Values from bytes as files have them, which but for blocks is as [`Tensor::to_bytes`] gives them; bytes past the last
    /// element are ignored.
    ///
    /// # Panics
    /// If there are fewer bytes than elements.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Self {
        let bytes = &bytes[..ty.dtype.bytes(ty.count())];
        let data = decode(ty.dtype, bytes);
        Self::of(ty, data)
    }
}

/// Many at once: that is what processors have instructions for.
fn decode_f16(bytes: &[u8], values: &mut Vec<f32>) {
    let start = values.len();
    values.resize(start + bytes.len() / 2, 0.0);
    let values = &mut values[start..];
    let mut halves = [f16::ZERO; 1024];
    for (bytes, values) in bytes.chunks(2 * halves.len()).zip(values.chunks_mut(halves.len())) {
        let halves = &mut halves[..values.len()];
        for (half, b) in halves.iter_mut().zip(bytes.chunks_exact(2)) {
            *half = f16::from_bits(u16::from_le_bytes([b[0], b[1]]));
        }
        halves.convert_to_f32_slice(values);
    }
}

/// Appends little-endian floats as [`decode`] gives them. Whether they are floats: it does nothing with others.
pub(crate) fn append_floats(values: &mut Vec<f32>, dtype: DType, bytes: &[u8]) -> bool {
    let single = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let brain = |b: &[u8]| bf16::from_bits(u16::from_le_bytes([b[0], b[1]])).to_f32();
    match dtype {
        DType::F32 => values.extend(bytes.chunks_exact(4).map(single)),
        DType::F16 => decode_f16(bytes, values),
        DType::BF16 => values.extend(bytes.chunks_exact(2).map(brain)),
        _ => return false,
    }
    true
}

/// Little-endian elements or blocks, as files have them, as `f32`.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let four = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            let mut values = Vec::with_capacity(bytes.len() / dtype.bytes(1));
            append_floats(&mut values, dtype, bytes);
            values
        }
        DType::U32 => bytes.chunks_exact(4).map(|b| four(b) as f32).collect(),
        DType::I8 => bytes.iter().map(|&b| f32::from(b as i8)).collect(),
        blocks => quant::decode(blocks, bytes),
    }
}

//! Host tensors and their types.

mod dtype;
mod parts;
mod shape;

pub use {dtype::DType, parts::Part, shape::Shape};

use half::{bf16, f16};
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
        self.count()
            .saturating_mul(self.dtype.size())
            .max(1)
            .div_ceil(4)
            .saturating_mul(4)
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

/// A tensor in host memory. Values are `f32` whatever the element type is; ids are exact up to 2^24.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Type on the device.
    pub ty: TensorType,
    /// Row-major values.
    pub data: Vec<f32>,
}

/// A tensor borrowed from a buffer: what the CPU side of an op reads.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Element type and shape.
    pub ty: &'a TensorType,
    /// Row-major values.
    pub data: &'a [f32],
}

impl View<'_> {
    /// The extents.
    pub fn shape(&self) -> &[usize] {
        &self.ty.shape
    }
}

impl Tensor {
    /// An `f32` tensor.
    ///
    /// # Panics
    /// If the number of values is not that of the shape.
    pub fn new(shape: impl Into<Shape>, data: Vec<f32>) -> Self {
        let ty = TensorType::new(DType::F32, shape);
        assert_eq!(ty.count(), data.len(), "values do not fill shape {}", ty.shape);
        Self { ty, data }
    }

    /// Token ids or other indices.
    ///
    /// # Panics
    /// If an id is 2^24 or more: it would not be exact.
    pub fn ids(shape: impl Into<Shape>, ids: &[u32]) -> Self {
        assert!(ids.iter().all(|&id| id < 1 << 24), "an id of 2^24 or more");
        let ty = TensorType::new(DType::U32, shape);
        assert_eq!(ty.count(), ids.len(), "ids do not fill shape {}", ty.shape);
        Self {
            ty,
            data: ids.iter().map(|&id| id as f32).collect(),
        }
    }

    /// Borrows it.
    pub fn view(&self) -> View<'_> {
        View {
            ty: &self.ty,
            data: &self.data,
        }
    }

    /// Index of the first NaN or infinity, if any.
    pub fn first_non_finite(&self) -> Option<usize> {
        self.data.iter().position(|v| !v.is_finite())
    }

    /// The same values as another element type, rounded to what that can hold.
    pub fn to_dtype(&self, dtype: DType) -> Self {
        Self {
            ty: self.ty.with_dtype(dtype),
            data: self.data.clone(),
        }
        .rounded()
    }

    /// Values as the device stores them, padded to whole words.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = match self.ty.dtype {
            DType::F32 => bytemuck::cast_slice(&self.data).to_vec(),
            DType::F16 => self.data.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect(),
            DType::BF16 => self
                .data
                .iter()
                .flat_map(|&v| bf16::from_f32(v).to_le_bytes())
                .collect(),
            DType::U32 => self.data.iter().flat_map(|&v| (v as u32).to_le_bytes()).collect(),
        };
        bytes.resize(self.ty.byte_len(), 0);
        bytes
    }

    /// The values after a round trip through the device's element type.
    pub fn rounded(&self) -> Self {
        Self::from_bytes(self.ty.clone(), &self.to_bytes())
    }

    /// Inverse of [`Tensor::to_bytes`]; bytes past the last element are ignored.
    ///
    /// # Panics
    /// If there are fewer bytes than elements.
    pub fn from_bytes(ty: TensorType, bytes: &[u8]) -> Self {
        let bytes = &bytes[..ty.count() * ty.dtype.size()];
        let data = decode(ty.dtype, bytes);
        Self { ty, data }
    }
}

/// Little-endian elements as `f32`.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let two = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let four = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_bits(four(b))).collect(),
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_bits(two(b)).to_f32()).collect(),
        DType::BF16 => bytes
            .chunks_exact(2)
            .map(|b| bf16::from_bits(two(b)).to_f32())
            .collect(),
        DType::U32 => bytes.chunks_exact(4).map(|b| four(b) as f32).collect(),
    }
}

use super::gguf;
use crate::tensor::DType;
use std::fmt;

/// Element type as a file names it: wider than what kernels can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileDType {
    /// One that weights can have.
    Weight(DType),
    /// Another of safetensors.
    Other(::safetensors::Dtype),
    /// Another of GGUF, by ggml's number.
    Ggml(u32),
}

impl FileDType {
    pub(super) fn of(dtype: ::safetensors::Dtype) -> Self {
        use ::safetensors::Dtype;
        match dtype {
            Dtype::F32 => Self::Weight(DType::F32),
            Dtype::F16 => Self::Weight(DType::F16),
            Dtype::BF16 => Self::Weight(DType::BF16),
            Dtype::I8 => Self::Weight(DType::I8),
            other => Self::Other(other),
        }
    }

    /// The type of a weight, if it is one.
    pub fn weight(self) -> Option<DType> {
        match self {
            Self::Weight(dtype) => Some(dtype),
            _ => None,
        }
    }
}

impl fmt::Display for FileDType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weight(dtype) => f.write_str(&dtype.name().to_uppercase()),
            Self::Other(dtype) => write!(f, "{dtype:?}"),
            Self::Ggml(number) => match gguf::type_name(*number) {
                Some(name) => f.write_str(name),
                None => write!(f, "ggml type {number}"),
            },
        }
    }
}

//! The operators. To add one: a WGSL file, a Rust file, a `mod` line and a row here.

use crate::op::OpEntry;
use crate::tensor::{DType, TensorType};

mod act;
mod batched_matmul;
mod epilogue;
mod math;
mod matmul;
mod softmax;
mod tiles;

pub use act::Act;
pub use batched_matmul::BatchedMatmul;
pub use epilogue::{Epilogue, Fused};
pub use matmul::Matmul;
pub use softmax::Softmax;

/// Every operator, in the order of the documentation.
pub const OPS: &[OpEntry] = &[
    OpEntry::of::<BatchedMatmul>("batched_matmul"),
    OpEntry::of::<Matmul>("matmul"),
    OpEntry::of::<Softmax>("softmax"),
];

/// Activations are stored as `f32` or `f16`.
fn is_activation(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16)
}

/// Weights of matrices and filters keep the element type of their file.
fn is_weight(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A tensor as rows over its last axis: number of rows and their length.
fn rows(ty: &TensorType) -> (usize, usize) {
    let cols = ty.shape.last();
    (ty.count() / cols.max(1), cols)
}

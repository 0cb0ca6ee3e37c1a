//! The operators. To add one: a WGSL file, a Rust file, a `mod` line and a row here.

use crate::op::OpEntry;
use crate::tensor::{DType, TensorType};

mod act;
mod epilogue;
mod math;
mod softmax;

pub use act::Act;
pub use epilogue::{Epilogue, Fused};
pub use softmax::Softmax;

/// Every operator, in the order of the documentation.
pub const OPS: &[OpEntry] = &[OpEntry::of::<Softmax>("softmax")];

/// Activations are stored as `f32` or `f16`.
fn is_activation(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16)
}

/// A tensor as rows over its last axis: number of rows and their length.
fn rows(ty: &TensorType) -> (usize, usize) {
    let cols = ty.shape.last();
    (ty.count() / cols.max(1), cols)
}

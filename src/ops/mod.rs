//! The operators. To add one: a WGSL file, a Rust file, a `mod` line and a row here.

use crate::op::OpEntry;
use crate::tensor::{DType, TensorType};

mod act;
mod binary;
mod broadcast;
mod embedding;
mod epilogue;
mod gated_add;
mod group_norm;
mod layer_norm;
mod math;
mod matmul;
mod modulate;
mod parallel;
mod rms_norm;
mod rotary;
mod scale;
mod softmax;
mod swiglu;
mod timestep_embedding;
mod unary;

pub use act::Act;
pub use binary::Binary;
pub use embedding::Embedding;
pub use epilogue::{Epilogue, Fused};
pub use gated_add::GatedAdd;
pub use group_norm::GroupNorm;
pub use layer_norm::LayerNorm;
pub use matmul::Matmul;
pub use modulate::Modulate;
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use scale::Scale;
pub use softmax::Softmax;
pub use swiglu::Swiglu;
pub use timestep_embedding::{EmbedTimestep, TimestepEmbedding};
pub use unary::Unary;

/// Every operator, in the order of the documentation.
pub const OPS: &[OpEntry] = &[
    OpEntry::of::<Binary>("binary"),
    OpEntry::of::<Embedding>("embedding"),
    OpEntry::of::<GatedAdd>("gated_add"),
    OpEntry::of::<GroupNorm>("group_norm"),
    OpEntry::of::<LayerNorm>("layer_norm"),
    OpEntry::of::<Matmul>("matmul"),
    OpEntry::of::<Modulate>("modulate"),
    OpEntry::of::<RmsNorm>("rms_norm"),
    OpEntry::of::<Rotary>("rotary"),
    OpEntry::of::<Scale>("scale"),
    OpEntry::of::<Softmax>("softmax"),
    OpEntry::of::<Swiglu>("swiglu"),
    OpEntry::of::<EmbedTimestep>("timestep_embedding"),
    OpEntry::of::<Unary>("unary"),
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

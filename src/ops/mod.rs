//! The operators. To add one: a WGSL file, a Rust file, a `mod` line and a row here.

use crate::op::OpEntry;
use crate::tensor::{DType, TensorType};

mod act;
mod attention;
mod batched_matmul;
mod binary;
mod broadcast;
mod cast;
mod channel_rms_norm;
mod concat;
mod conv2d;
mod embedding;
mod epilogue;
mod flat;
mod gated_add;
mod group_norm;
mod group_norm_given;
mod group_stats;
mod layer_norm;
pub(crate) mod math;
mod matmul;
mod matmul_i8;
mod modulate;
mod norm;
mod parallel;
mod patchify;
mod permute;
mod quantize_rows;
mod rms_norm;
mod rotary;
mod rotate;
mod scale;
mod slice;
mod softmax;
mod strided;
mod swiglu;
mod tiles;
mod timestep_embedding;
mod unary;
mod upsample_nearest;

pub use act::Act;
pub(crate) use attention::MASKED;
pub use attention::{Attend, Attention};
pub use batched_matmul::BatchedMatmul;
pub use binary::Binary;
pub use cast::Cast;
pub use channel_rms_norm::ChannelRmsNorm;
pub use concat::Concat;
pub use conv2d::{Conv2d, Convolve};
pub use embedding::Embedding;
pub(crate) use epilogue::FusedValues;
pub use epilogue::{Epilogue, Fused};
pub use gated_add::GatedAdd;
pub use group_norm::GroupNorm;
pub use group_norm_given::GroupNormGiven;
pub use group_stats::GroupStats;
pub use layer_norm::LayerNorm;
pub use matmul::Matmul;
pub use matmul_i8::MatmulI8;
pub use modulate::Modulate;
pub use patchify::{PatchOrder, Patchify, Unpatchify};
pub use permute::Permute;
pub use quantize_rows::{QuantizeRows, RowScales};
pub use rms_norm::RmsNorm;
pub use rotary::Rotary;
pub use rotate::Rotate;
pub use scale::Scale;
pub use slice::Slice;
pub use softmax::Softmax;
pub use swiglu::Swiglu;
pub use timestep_embedding::{EmbedTimestep, TimestepEmbedding};
pub use unary::Unary;
pub use upsample_nearest::UpsampleNearest;

/// Every operator, in the order of the documentation.
pub const OPS: &[OpEntry] = &[
    OpEntry::of::<Attend>("attention"),
    OpEntry::of::<BatchedMatmul>("batched_matmul"),
    OpEntry::of::<Binary>("binary"),
    OpEntry::of::<Cast>("cast"),
    OpEntry::of::<ChannelRmsNorm>("channel_rms_norm"),
    OpEntry::of::<Concat>("concat"),
    OpEntry::of::<Convolve>("conv2d"),
    OpEntry::of::<Embedding>("embedding"),
    OpEntry::of::<GatedAdd>("gated_add"),
    OpEntry::of::<GroupNorm>("group_norm"),
    OpEntry::of::<GroupNormGiven>("group_norm_given"),
    OpEntry::of::<GroupStats>("group_stats"),
    OpEntry::of::<LayerNorm>("layer_norm"),
    OpEntry::of::<Matmul>("matmul"),
    OpEntry::of::<MatmulI8>("matmul_i8"),
    OpEntry::of::<Modulate>("modulate"),
    OpEntry::of::<Patchify>("patchify"),
    OpEntry::of::<Permute>("permute"),
    OpEntry::of::<QuantizeRows>("quantize_rows"),
    OpEntry::of::<RmsNorm>("rms_norm"),
    OpEntry::of::<Rotary>("rotary"),
    OpEntry::of::<Rotate>("rotate"),
    OpEntry::of::<RowScales>("row_scales"),
    OpEntry::of::<Scale>("scale"),
    OpEntry::of::<Slice>("slice"),
    OpEntry::of::<Softmax>("softmax"),
    OpEntry::of::<Swiglu>("swiglu"),
    OpEntry::of::<EmbedTimestep>("timestep_embedding"),
    OpEntry::of::<Unary>("unary"),
    OpEntry::of::<Unpatchify>("unpatchify"),
    OpEntry::of::<UpsampleNearest>("upsample_nearest"),
];

/// Activations are stored as `f32` or `f16`.
fn is_activation(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16)
}

/// Weights of matrices and filters keep the element type of their file.
fn is_weight(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// A matrix `[n, k]` that kernels decode as they read it.
fn is_packed_matrix(ty: &TensorType) -> bool {
    let (elements, _) = ty.dtype.block();
    ty.dtype.is_packed() && ty.shape.len() == 2 && ty.shape.last().is_multiple_of(elements)
}

/// A tensor as rows over its last axis: number of rows and their length.
fn rows(ty: &TensorType) -> (usize, usize) {
    let cols = ty.shape.last();
    (ty.count() / cols.max(1), cols)
}

//! Errors: one enum per layer, each message with the names, shapes and numbers that explain it.

use crate::tensor::{DType, Shape, Tensor, TensorType};
use std::fmt::Write as _;

/// Result of the crate's own calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Anything that can go wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model file cannot be read or does not hold what the model needs.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Tensors do not fit an operator.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A plan does not fit the device.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The GPU or its driver refused something.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A prompt cannot be tokenised.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A picture file cannot be read or written.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// An adapter does not fit the model.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A weight cannot be held, moved or changed as asked.
    #[error(transparent)]
    Residency(#[from] ResidencyError),
    /// A request that cannot be carried out as asked.
    #[error("{0}")]
    Request(String),
    /// The machine has no room for what the CPU would compute.
    #[error("out of memory: the plan wants {wanted} bytes{}. Use a smaller size or a smaller model", available_hint(.available))]
    OutOfMemory {
        /// Bytes of the plan.
        wanted: u64,
        /// Bytes that are free, where the system tells.
        available: Option<u64>,
    },
    /// A computation left the finite numbers, so its result is worthless.
    #[error(
        "{stage}: {count} of {total} values are NaN or infinite (first at index {index}); no picture is written. {remedy}"
    )]
    NonFinite {
        /// Stage and, in the denoising loop, the step.
        stage: String,
        /// How many values are not finite.
        count: usize,
        /// Number of values.
        total: usize,
        /// Index of the first.
        index: usize,
        /// What to try.
        remedy: String,
    },
    /// All steps are done, but a picture could not be decoded.
    #[error(
        "the steps are done, but the picture cannot be decoded: {source}. The latent is kept: decode it again, in tiles or on the CPU"
    )]
    Undecoded {
        /// Seed of each picture and its latent `[1, c, h, w]`: [`Engine::decode`](crate::engine::Engine::decode) takes it.
        latents: Vec<(u64, Tensor)>,
        /// Why not.
        source: Box<Error>,
    },
    /// After a part ran on the CPU in place of the device, the device could not be brought back to where it was.
    #[error(
        "the autoencoder ran on the CPU, but the GPU could not be brought back to where it was: {0}. The result is dropped and the fallback \
         has ended for this engine; make a new one, or use --no-vae-fallback"
    )]
    Unrestored(Box<Error>),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Inputs that do not fit an operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}{op}: {rule}, got {}", prefix(.node), list(.inputs))]
pub struct ShapeError {
    /// Operator that refused.
    pub op: &'static str,
    /// Path of the node, empty outside a graph.
    pub node: String,
    /// Types of the inputs.
    pub inputs: Vec<TensorType>,
    /// What it wants.
    pub rule: String,
}

impl ShapeError {
    /// Says which rule of `op` the `inputs` break.
    pub fn new(op: &'static str, inputs: &[TensorType], rule: impl Into<String>) -> Self {
        Self {
            op,
            node: String::new(),
            inputs: inputs.to_vec(),
            rule: rule.into(),
        }
    }
}

fn prefix(node: &str) -> String {
    if node.is_empty() {
        String::new()
    } else {
        format!("{node}: ")
    }
}

fn list(types: &[TensorType]) -> String {
    let mut text = String::new();
    for (i, ty) in types.iter().enumerate() {
        let _ = write!(text, "{}{ty}", if i > 0 { ", " } else { "" });
    }
    text
}

/// A model file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file cannot be opened or read.
    #[error("{file}: {source}")]
    Io {
        /// File name.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// What the file says of its tensors is not valid.
    #[error("{file}: not a valid safetensors or GGUF header: {reason}")]
    Header {
        /// File name.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The file ends before its tensors do.
    #[error("{file}: truncated: tensors need {wanted} bytes, the file has {found}; download it again")]
    Truncated {
        /// File name.
        file: String,
        /// Bytes that the header promises.
        wanted: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// A tensor is missing.
    #[error("{file}: no tensor `{name}`{}", nearest_hint(.nearest))]
    MissingTensor {
        /// File name.
        file: String,
        /// Tensor that the model needs.
        name: String,
        /// The most similar name in the file.
        nearest: Option<String>,
    },
    /// A tensor has the wrong shape.
    #[error("{file}: `{name}` has shape {found}, the model wants {wanted}")]
    Shape {
        /// File name.
        file: String,
        /// Tensor.
        name: String,
        /// Shape in the file.
        found: Shape,
        /// Shape that the model needs.
        wanted: Shape,
    },
    /// A tensor has an element type that cannot be used.
    #[error("{file}: `{name}` is {found}; wanted {wanted}")]
    DType {
        /// File name.
        file: String,
        /// Tensor.
        name: String,
        /// Element type in the file.
        found: String,
        /// Element types that would do.
        wanted: String,
    },
    /// A quantised layer whose parts or marker do not say how its codes are to be read.
    #[error("{file}: quantised layer `{name}`: {key} is {value}; wanted {accepted}")]
    Quantised {
        /// File name.
        file: String,
        /// Layer or tensor.
        name: String,
        /// Key of the marker, or part of the layer.
        key: String,
        /// What it is.
        value: String,
        /// What would be accepted.
        accepted: String,
    },
    /// A weight is NaN or infinite.
    #[error("{file}: `{name}` holds a NaN or infinity at element {index}; the file is damaged, download it again")]
    NonFinite {
        /// File name.
        file: String,
        /// Tensor.
        name: String,
        /// First bad element.
        index: usize,
    },
    /// A configuration file is missing or says something unknown.
    #[error("{file}: {reason}")]
    Config {
        /// File name.
        file: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// No known architecture has these tensors.
    #[error("{file}: unknown architecture: {reason}")]
    UnknownModel {
        /// File or folder name.
        file: String,
        /// What was looked for.
        reason: String,
    },
}

fn wanted_hint(wanted: u64) -> String {
    match wanted {
        0 => String::new(),
        bytes => format!(": the plan wants {bytes} bytes"),
    }
}

fn available_hint(available: &Option<u64>) -> String {
    available.map_or(String::new(), |bytes| format!(", the machine has {bytes} to give"))
}

fn nearest_hint(nearest: &Option<String>) -> String {
    nearest
        .as_ref()
        .map_or(String::new(), |n| format!("; the nearest is `{n}`"))
}

/// A graph that does not fit the device.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A tensor is larger than the device can bind.
    #[error(
        "{}{tensor} takes {bytes} bytes; the device binds at most {limit} (`{which}`). Use a smaller size or --device cpu", prefix(.node)
    )]
    ExceedsLimit {
        /// Path of the node.
        node: String,
        /// Its type.
        tensor: TensorType,
        /// Bytes of it.
        bytes: u64,
        /// Bytes the device allows.
        limit: u64,
        /// Name of the limit in WebGPU.
        which: &'static str,
    },
    /// A tensor has more elements than a 32-bit index reaches.
    #[error("{}{tensor} has {count} elements; kernels index with 32 bits. Use a smaller size", prefix(.node))]
    IndexOverflow {
        /// Path of the node.
        node: String,
        /// Its type.
        tensor: TensorType,
        /// Number of elements.
        count: u64,
    },
    /// The plan takes more than it may.
    #[error(
        "this takes at least {wanted} bytes, more than the {limit} that it may take. Use a smaller size, weights of a smaller type or more --max-memory"
    )]
    MaxMemory {
        /// Bytes of the plan.
        wanted: u64,
        /// Bytes that it may take.
        limit: u64,
    },
    /// Half-precision storage was asked for on an adapter without it.
    #[error("{0} storage needs the adapter feature `shader-f16`, which is missing; use f32")]
    NoF16(DType),
    /// The graph asks for a forced way that an operator does not have.
    #[error("--kernel {op}={way}: `{op}` has no such way; it has {known}")]
    UnknownWay {
        /// Operator.
        op: String,
        /// Way asked for.
        way: String,
        /// Ways it has.
        known: String,
    },
    /// Working memory cannot be told for a storage with which nothing was measured.
    #[error(
        "working memory was not measured with {dtype} storage, but with {known}: use one of those, or `rotile calibrate`"
    )]
    Unpriced {
        /// Storage asked for.
        dtype: String,
        /// Those that were measured.
        known: String,
    },
}

/// The GPU or its driver refused something.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// No adapter fits.
    #[error("no GPU adapter{wanted}; found: {found}. Use --device cpu, or install a Vulkan, Metal or DX12 driver")]
    NoAdapter {
        /// What was asked for, with a leading space.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// The adapter gave no device.
    #[error("{adapter}: cannot open the device: {reason}")]
    Open {
        /// Adapter.
        adapter: String,
        /// What the driver says.
        reason: String,
    },
    /// A kernel does not compile.
    #[error("kernel `{spec}` ({file}:{line}): {message}")]
    Kernel {
        /// The kernel.
        spec: String,
        /// WGSL file.
        file: String,
        /// Line in that file.
        line: u32,
        /// What the compiler says.
        message: String,
    },
    /// The device has no room.
    #[error("out of GPU memory{}. Use a smaller size or --device cpu", wanted_hint(*.wanted))]
    OutOfMemory {
        /// Bytes of the plan; 0 where it was no plan's.
        wanted: u64,
    },
    /// The API refused a call: a bug in rotile or the driver.
    #[error("GPU validation: {0}")]
    Validation(String),
    /// The device was lost, for example by a driver reset.
    #[error("the GPU device was lost: {0}; make a new engine")]
    DeviceLost(String),
}

/// A prompt that cannot be tokenised.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The tokenizer file is not valid.
    #[error("{file}: not a tokenizer: {reason}")]
    Tokenizer {
        /// File name.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// The tokenizer gives an id that the text encoder has no row for.
    #[error("token id {id} is outside the text encoder's {rows} rows: the tokenizer belongs to another model")]
    Vocabulary {
        /// Token id.
        id: u32,
        /// Rows of the embedding table.
        rows: usize,
    },
}

/// A picture file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The file cannot be read or written.
    #[error("{file}: {source}")]
    Io {
        /// File name.
        file: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no picture that can be read, or the picture cannot be encoded.
    #[error("{file}: {reason}")]
    Format {
        /// File name.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// Two pictures differ in size.
    #[error("cannot compare {0}x{1} with {2}x{3}")]
    Sizes(u32, u32, u32, u32),
}

/// An adapter, such as a LoRA, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The file cannot be read, or one of its tensors cannot.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// A tensor does not fit the weight that it names.
    #[error("{file}: `{name}` has shape {found}, wanted {wanted}. Is it for another model?")]
    Shape {
        /// Adapter file.
        file: String,
        /// Tensor in it.
        name: String,
        /// Its shape.
        found: Shape,
        /// What would fit, and the weight that says so.
        wanted: String,
    },
    /// A module of an adapter lacks a tensor that its kind needs.
    #[error("{file}: the adapter of `{module}` lacks its part {missing}; the file is incomplete, download it again")]
    Incomplete {
        /// Adapter file.
        file: String,
        /// Module of the model.
        module: String,
        /// What is not there.
        missing: String,
    },
    /// Nothing in the file has a place in the model.
    #[error(
        "{file}: none of its {count} modules (first: `{first}`) is one of this model's; it is no adapter, or one for another model"
    )]
    NothingMatched {
        /// Adapter file.
        file: String,
        /// Modules in it.
        count: usize,
        /// The first of them.
        first: String,
    },
    /// The weight in the mix is no number.
    #[error("{file}: the weight of an adapter must be finite, not {weight}")]
    Weight {
        /// Adapter file.
        file: String,
        /// Weight asked for.
        weight: f32,
    },
    /// Model code uses a layer in a way that its adapter cannot follow.
    #[error("{file}: the adapter of `{module}` cannot be added at run time; use --lora-apply immediately")]
    NotReached {
        /// Checkpoint.
        file: String,
        /// Module of the model.
        module: String,
    },
}

/// A weight that cannot be held, moved or changed as asked. Nothing has changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ResidencyError {
    /// A lock holds the weight.
    #[error("{file}: `{name}` is in use and cannot be moved; drop the session that holds it")]
    Held {
        /// Checkpoint.
        file: String,
        /// Tensor.
        name: String,
    },
    /// The weights are more than what is free.
    #[error("no room on {home}: the weights take {wanted} bytes, {free} are free. Use a smaller model or free memory")]
    NoRoom {
        /// Where.
        home: String,
        /// Bytes of the weights.
        wanted: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// Only floats are converted; a packed weight stays as it was loaded.
    #[error("{file}: `{name}` is {dtype} and cannot be cast to {wanted}: only f32, f16 and bf16 are cast")]
    Cast {
        /// Checkpoint.
        file: String,
        /// Tensor.
        name: String,
        /// The type that was loaded.
        dtype: DType,
        /// The type asked for.
        wanted: DType,
    },
    /// The lock holds fewer weights.
    #[error("there is no weight {index}: the lock holds {count}")]
    NoWeight {
        /// Index asked for.
        index: usize,
        /// Weights that it holds.
        count: usize,
    },
}

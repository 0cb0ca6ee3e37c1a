use crate::checkpoint::Weights;
use crate::diffusion::tiled::TileOptions;
use crate::error::Result;
use crate::gpu::Caps;
use crate::graph::Graph;
use crate::memory::budget::MaxMemory;
use crate::models::{Side, Vae};
use crate::tensor::{DType, TensorType};
use std::fmt;

/// How an autoencoder runs. The default decides everything by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct VaeOptions {
    /// Tiles, even where the whole picture would fit. Without it, tiles are taken where it would not: the largest that do.
    pub tile: Option<TileOptions>,
    /// Storage of activations.
    pub dtype: VaeDType,
    /// Most bytes that may be taken on the device, weights included.
    pub max_memory: Option<u64>,
    /// Whether the CPU runs what a GPU cannot: what does not fit in tiles either, and what the GPU fails at. Only the graphs in question
    /// move. A device that is the CPU has no other.
    pub fallback: bool,
    /// How much of the free memory may be filled before tiles get smaller and graphs move: above 0, at most 1; 0.9 without it. Most GPUs
    /// do not tell what is free. Without a ratio only their limits and `max_memory` count then; with one it is a ratio of the largest
    /// buffer that they bind, so that a small number moves every graph.
    pub fallback_ratio: Option<f64>,
}

impl Default for VaeOptions {
    fn default() -> Self {
        Self {
            tile: None,
            dtype: VaeDType::Auto,
            max_memory: None,
            fallback: true,
            fallback_ratio: None,
        }
    }
}

impl VaeOptions {
    /// The same with at most what `max` leaves on a GPU with `caps`, or on the CPU.
    ///
    /// # Errors
    /// As [`MaxMemory::bytes`].
    pub fn at_most(mut self, max: Option<MaxMemory>, caps: Option<&Caps>) -> Result<Self> {
        if let Some(max) = max {
            let bytes = max.bytes(caps)?;
            self.max_memory = Some(self.max_memory.map_or(bytes, |own| own.min(bytes)));
        }
        Ok(self)
    }
}

/// Storage of an autoencoder's activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VaeDType {
    /// As the rest of the pipeline.
    #[default]
    Auto,
    /// Single precision.
    F32,
    /// Half precision, where the device has it.
    F16,
}

impl VaeDType {
    /// The type that it means in a pipeline that stores `others`, on a GPU with `caps` or on the CPU.
    pub fn storage(self, others: DType, caps: Option<&Caps>) -> DType {
        match self {
            Self::Auto => others,
            Self::F16 if caps.is_some_and(|caps| caps.f16) => DType::F16,
            Self::F16 | Self::F32 => DType::F32,
        }
    }
}

/// A direction and a size, in pixels of the latent: what needs a session of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VaeTask {
    /// A latent to a picture.
    Decode {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// A picture to a latent.
    Encode {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
}

impl VaeTask {
    /// The half of the autoencoder that it runs.
    pub fn side(self) -> Side {
        match self {
            Self::Decode { .. } => Side::Decoder,
            Self::Encode { .. } => Side::Encoder,
        }
    }

    /// Rows and columns of the latent.
    pub fn size(self) -> [usize; 2] {
        match self {
            Self::Decode { height, width } | Self::Encode { height, width } => [height, width],
        }
    }

    /// The graph of the task, with activations stored as `dtype`.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the file lacks this half.
    pub fn graph(self, vae: &Vae, weights: &Weights, dtype: DType) -> Result<Graph> {
        let mut g = Graph::new(dtype);
        match self {
            Self::Decode { height, width } => {
                let ty = TensorType::new(DType::F32, [1, vae.latent_channels(), height, width]);
                let latent = g.input("latent", ty);
                let picture = vae.decoder(&mut g, weights, latent)?;
                g.output("picture", picture);
            }
            Self::Encode { height, width } => {
                let sides = [height, width].map(|n| n * vae.factor());
                let ty = TensorType::new(DType::F32, [1, vae.image_channels(), sides[0], sides[1]]);
                let picture = g.input("picture", ty);
                let latent = vae.encoder(&mut g, weights, picture)?;
                g.output("latent", latent);
            }
        }
        Ok(g)
    }
}

/// How the activations of a run were stored, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The type behind the result.
    pub dtype: DType,
    /// Whether half precision had overflowed before.
    pub repeated: bool,
    /// Graphs that ran.
    pub graphs: usize,
    /// Those of them that ran on the CPU, in single precision, in place of the device.
    pub on_cpu: usize,
}

impl Storage {
    /// Where it ran, if that is not the device alone.
    pub fn place(&self) -> Option<String> {
        match (self.on_cpu, self.graphs) {
            (0, _) => None,
            (cpu, all) if cpu >= all => Some("CPU".into()),
            (cpu, all) => Some(format!("{cpu} of {all} graphs on the CPU")),
        }
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.dtype.name())?;
        f.write_str(if self.repeated { ", since f16 overflowed" } else { "" })
    }
}

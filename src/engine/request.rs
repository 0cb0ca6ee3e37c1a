use crate::backend::Device;
use crate::convert::WeightType;
use crate::cpu::Cpu;
use crate::diffusion::MemoryOptions;
use crate::diffusion::noise::Rng;
use crate::diffusion::vae::VaeOptions;
use crate::error::{GpuError, Result};
use crate::gpu::{AdapterChoice, Gpu, Limits};
use crate::media::Image;
use crate::memory::estimate::Calibration;
use crate::plan::ConvrotMode;
use crate::tensor::{DType, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best GPU; the CPU where there is none at all.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU, or an error.
    Gpu(AdapterChoice),
}

impl DeviceChoice {
    /// Opens the device, a GPU within `limits`; says why it is this one.
    ///
    /// # Errors
    /// If a GPU is asked for that is not there, or its driver gives no device.
    pub async fn open(&self, limits: &Limits) -> Result<(Device, String)> {
        let cpu = |reason: &str| Ok((Device::Cpu(Cpu::default()), reason.to_owned()));
        let adapter = match self {
            Self::Cpu => return cpu("asked for"),
            Self::Auto => &AdapterChoice::Best,
            Self::Gpu(adapter) => adapter,
        };
        match Gpu::open_limited(adapter, limits).await {
            Ok(gpu) => {
                let reason = gpu.reason().to_owned();
                Ok((Device::Gpu(gpu), reason))
            }
            Err(GpuError::NoAdapter { .. }) if *self == Self::Auto => cpu("no GPU adapter was found"),
            Err(e) => Err(e.into()),
        }
    }
}

impl std::str::FromStr for DeviceChoice {
    type Err = std::convert::Infallible;

    /// `auto`, `cpu`, `gpu`, the index of an adapter, or a part of its name.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "cpu" => Self::Cpu,
            "gpu" => Self::Gpu(AdapterChoice::Best),
            _ => Self::Gpu(
                text.parse()
                    .map_or_else(|_| AdapterChoice::Name(text.into()), AdapterChoice::Index),
            ),
        })
    }
}

/// How an engine runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Where.
    pub device: DeviceChoice,
    /// Storage of activations: `f32` unless `f16` is asked for.
    pub dtype: Option<DType>,
    /// Ways of operators to force, as `(operator, way)`, for diagnosis.
    pub kernels: Vec<(String, String)>,
    /// How int8 layers run.
    pub convrot: ConvrotMode,
    /// Limits to open a GPU with, below its own, for diagnosis.
    pub limits: Limits,
    /// How the autoencoder runs.
    pub vae: VaeOptions,
    /// What may be taken of the device's memory.
    pub memory: MemoryOptions,
    /// What `rotile calibrate` has measured here.
    pub calibration: Option<Calibration>,
    /// What weights of the transformer and of the text encoder become on the device; as in their files without it.
    pub weight_type: Option<WeightType>,
}

/// A picture to make. What is `None` is the model's own default.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What to show.
    pub prompt: String,
    /// What to keep away from; used where guidance is on.
    pub negative_prompt: String,
    /// Pixels.
    pub width: Option<u32>,
    /// Pixels.
    pub height: Option<u32>,
    /// Denoising steps.
    pub steps: Option<u32>,
    /// Strength of guidance: `pos + g (pos - neg)`, off at 0.
    pub guidance: Option<f32>,
    /// Largest norm of a guided prediction, as a multiple of the norm of the positive one: `cfg_normalization` of diffusers, off
    /// at 0.
    pub cfg_normalization: f32,
    /// Model time, from 0 to 1, above which guidance is off: `cfg_truncation` of diffusers; 1 never cuts it off.
    pub cfg_truncation: f32,
    /// Seed of the first picture; each further one of a batch has the next seed.
    pub seed: u64,
    /// Number of pictures.
    pub batch: u32,
    /// Generator of the noise.
    pub rng: Rng,
    /// Picture to start from.
    pub init_image: Option<Image>,
    /// How much of `init_image` is made anew, from 0 to 1.
    pub strength: f32,
}

impl Request {
    /// One picture of `prompt` with the model's defaults and seed 0.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            negative_prompt: String::new(),
            width: None,
            height: None,
            steps: None,
            guidance: None,
            cfg_normalization: 0.0,
            cfg_truncation: 1.0,
            seed: 0,
            batch: 1,
            rng: Rng::default(),
            init_image: None,
            strength: 0.6,
        }
    }

    /// Sets the negative prompt.
    pub fn negative_prompt(mut self, text: impl Into<String>) -> Self {
        self.negative_prompt = text.into();
        self
    }

    /// Sets width and height in pixels.
    pub fn size(mut self, width: u32, height: u32) -> Self {
        (self.width, self.height) = (Some(width), Some(height));
        self
    }

    /// Sets the number of steps.
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = Some(steps);
        self
    }

    /// Sets the strength of guidance.
    pub fn guidance(mut self, scale: f32) -> Self {
        self.guidance = Some(scale);
        self
    }

    /// Sets the seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of pictures.
    pub fn batch(mut self, batch: u32) -> Self {
        self.batch = batch;
        self
    }

    /// Sets the generator of the noise.
    pub fn rng(mut self, rng: Rng) -> Self {
        self.rng = rng;
        self
    }

    /// Starts from a picture, of which `strength` (0 to 1) is made anew.
    pub fn init_image(mut self, image: Image, strength: f32) -> Self {
        (self.init_image, self.strength) = (Some(image), strength);
        self
    }
}

/// Part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Planning, compiling, allocating, uploading.
    Prepare,
    /// Prompt to embeddings.
    Text,
    /// Start picture to latent.
    Encode,
    /// The denoising loop.
    Denoise,
    /// Latent to picture.
    Decode,
}

impl Stage {
    /// Word for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Text => "text",
            Self::Encode => "encode",
            Self::Denoise => "denoise",
            Self::Decode => "decode",
        }
    }
}

/// News of a run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A stage begins.
    Stage(Stage),
    /// A denoising step is done.
    Step {
        /// Steps done, from 1.
        step: u32,
        /// Steps of a picture.
        of: u32,
        /// Picture, from 1.
        picture: u32,
        /// Pictures of the run.
        of_pictures: u32,
        /// The latent `[c, h, w]` after the step, for previews.
        latent: Tensor,
    },
    /// A tile of the picture has run through a part of the autoencoder.
    Tile {
        /// Runs done, from 1.
        done: u32,
        /// Runs in all; the last event has them all done.
        of: u32,
    },
    /// Something the user should know.
    Note(String),
}

/// Asks a run to stop; it does within one step. Clones are the same switch.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A switch that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets it.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A finished picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Pixels.
    pub image: Image,
    /// Seed of its noise.
    pub seed: u64,
    /// What made it, as names and values: for text chunks and logs.
    pub settings: Vec<(String, String)>,
    /// Its latent `[1, c, h, w]`, scaled as the transformer has it: [`Engine::decode`](super::Engine::decode) takes it.
    pub latent: Tensor,
}

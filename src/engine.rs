//! The face of the crate: a loaded model that makes pictures.

use crate::diffusion::Rng;
use crate::error::{Error, Result};
use crate::gpu::AdapterChoice;
use crate::media::Image;
use crate::tensor::{DType, Tensor};
use std::convert::Infallible;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where to compute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best GPU; the CPU where there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The best GPU.
    Gpu,
    /// The n-th adapter of `rotile devices`.
    Index(usize),
    /// The first adapter whose name contains this.
    Name(String),
}

impl DeviceChoice {
    /// The adapter to open; `None` for the CPU.
    pub fn adapter(&self) -> Option<AdapterChoice> {
        match self {
            Self::Cpu => None,
            Self::Auto | Self::Gpu => Some(AdapterChoice::Best),
            Self::Index(index) => Some(AdapterChoice::Index(*index)),
            Self::Name(name) => Some(AdapterChoice::Name(name.clone())),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Infallible;

    /// `auto`, `cpu`, `gpu`, an index, or part of an adapter's name.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "auto" | "" => Self::Auto,
            "cpu" => Self::Cpu,
            "gpu" => Self::Gpu,
            other => other.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index),
        })
    }
}

/// How an engine is opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Where to compute.
    pub device: DeviceChoice,
    /// How activations are stored; the device's best where `None`.
    pub dtype: Option<DType>,
    /// `(op, way)` pairs that are taken whatever is validated, for diagnosis.
    pub kernels: Vec<(String, String)>,
}

/// What to make. What is `None` is the model's own default.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// What the picture shows.
    pub prompt: String,
    /// What it does not show; counts with guidance only.
    pub negative_prompt: String,
    /// Pixels of a row.
    pub width: Option<u32>,
    /// Rows.
    pub height: Option<u32>,
    /// Denoising steps.
    pub steps: Option<u32>,
    /// Strength of classifier-free guidance; 0 is off.
    pub guidance: Option<f32>,
    /// Seed of the noise.
    pub seed: u64,
    /// Pictures; picture `i` has seed `seed + i`.
    pub batch: u32,
    /// Generator of the noise.
    pub rng: Rng,
    /// Picture to start from.
    pub init_image: Option<Image>,
    /// How much of it is made anew: 1 is all. Counts with an initial picture only.
    pub strength: f32,
}

impl Request {
    /// One picture of `prompt` with seed 0 and the model's own defaults.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            prompt: prompt.into(),
            negative_prompt: String::new(),
            width: None,
            height: None,
            steps: None,
            guidance: None,
            seed: 0,
            batch: 1,
            rng: Rng::Torch,
            init_image: None,
            strength: 0.6,
        }
    }

    /// Sets the seed.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the number of denoising steps.
    pub fn steps(mut self, steps: u32) -> Self {
        self.steps = Some(steps);
        self
    }

    /// Sets the strength of guidance.
    pub fn guidance(mut self, guidance: f32) -> Self {
        self.guidance = Some(guidance);
        self
    }

    /// Sets the size in pixels.
    pub fn size(mut self, width: u32, height: u32) -> Self {
        (self.width, self.height) = (Some(width), Some(height));
        self
    }

    /// Sets what the picture should not show.
    pub fn negative_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.negative_prompt = prompt.into();
        self
    }

    /// Starts from a picture.
    pub fn init_image(mut self, image: Image, strength: f32) -> Self {
        (self.init_image, self.strength) = (Some(image), strength);
        self
    }
}

/// What happens while an engine works.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A stage begins: `load`, `text`, `encode`, `denoise`, `decode`.
    Stage {
        /// Its name.
        name: &'static str,
    },
    /// A denoising step is done.
    Step {
        /// Which, from 1.
        step: u32,
        /// Of how many.
        of: u32,
        /// Of which picture, from 1.
        picture: u32,
        /// Of how many.
        of_pictures: u32,
    },
    /// Kernels are being compiled.
    Compiling {
        /// How many are ready.
        done: u32,
        /// Of how many.
        of: u32,
    },
    /// Something that the user should know.
    Note(String),
}

/// Stops a running call: clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Not cancelled yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks to stop. The call returns [`Error::Cancelled`] within one step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Stops here if it was asked.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::Cancelled)
        } else {
            Ok(())
        }
    }
}

/// A picture with what made it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// The pixels.
    pub image: Image,
    /// Seed of its noise.
    pub seed: u64,
    /// Prompt, seed and settings, for the text chunks of a PNG.
    pub settings: Vec<(String, String)>,
    /// What was decoded: `[1, c, h, w]` as the denoising model has it.
    pub latent: Tensor,
}

/// A loaded model on a device.
#[derive(Debug)]
pub struct Engine {
    never: Infallible,
}

impl Engine {
    /// The model that is compiled into the crate (feature `scenes-tiny`).
    ///
    /// # Errors
    /// If the device cannot be opened or the model does not fit it.
    pub async fn embedded(_options: &Options) -> Result<Self> {
        Err(Error::Request("this build has no engine".into()))
    }

    /// Loads a diffusers folder or a file.
    ///
    /// # Errors
    /// If it cannot be read, is of no known architecture, or does not fit the device.
    pub async fn load(path: &Path, _options: &Options) -> Result<Self> {
        Err(Error::Request(format!("{}: this build has no engine", path.display())))
    }

    /// Makes pictures.
    ///
    /// # Errors
    /// If the request does not fit the model, the device fails, values leave the finite numbers, or it was cancelled.
    pub async fn generate(
        &mut self,
        _request: &Request,
        _event: impl FnMut(Event),
        _cancel: &Cancel,
    ) -> Result<Vec<Picture>> {
        match self.never {}
    }

    /// A picture from a latent `[1, c, h, w]` as the denoising model has it.
    ///
    /// # Errors
    /// If the shape does not fit, or the device fails.
    pub async fn decode(&mut self, _latent: &Tensor) -> Result<Image> {
        match self.never {}
    }

    /// The latent of a picture, as the denoising model has it: the mean of the encoder's distribution.
    ///
    /// # Errors
    /// If the size does not fit, or the device fails.
    pub async fn encode(&mut self, _image: &Image) -> Result<Tensor> {
        match self.never {}
    }

    /// Model, parts, tensors and memory plan, for `rotile inspect`.
    pub fn describe(&self) -> serde_json::Value {
        match self.never {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_word() {
        let parse = |text: &str| text.parse::<DeviceChoice>().unwrap_or_else(|e| match e {});
        assert_eq!(parse("CPU"), DeviceChoice::Cpu);
        assert_eq!(parse("gpu"), DeviceChoice::Gpu);
        assert_eq!(parse("1"), DeviceChoice::Index(1));
        assert_eq!(parse("Radeon 7"), DeviceChoice::Name("Radeon 7".into()));
    }

    #[test]
    fn cancel_is_shared() {
        let cancel = Cancel::new();
        assert!(cancel.check().is_ok());
        cancel.clone().cancel();
        assert!(matches!(cancel.check(), Err(Error::Cancelled)));
    }
}

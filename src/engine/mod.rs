//! What an app holds: an [`Engine`] makes pictures from [`Request`]s.

mod autoencoder;
mod describe;
mod inspect;
mod int8;
mod load;
mod request;
mod run;

pub use autoencoder::Autoencoder;
pub use inspect::{Inspection, PlanLine, Status, Target, TensorLine, TilesLine};
pub use int8::Int8Line;
#[cfg(feature = "native")]
pub use load::Files;
pub use load::{Defaults, Memory, Source};
pub use request::{Cancel, DeviceChoice, Event, Options, Picture, Request, Stage};

use crate::adapter::Report;
use crate::backend::Device;
use crate::convert::WeightType;
use crate::diffusion::Engaged;
use crate::diffusion::pipeline::{Pipeline, Task};
use crate::error::{Error, Result};
use crate::media::Image;
use crate::models::linear::stays_packed;
use crate::plan::{Bytes, Choice, Policy};
use crate::tensor::{DType, Tensor};
use std::collections::BTreeSet;

/// A model on a device, ready to make pictures. Dropping it frees everything.
#[derive(Debug)]
pub struct Engine {
    pipeline: Pipeline,
    defaults: Defaults,
    name: String,
    device_note: String,
    adapters: Report,
    weight_type: Option<WeightType>,
    /// What it left alone.
    types: Option<String>,
}

impl Engine {
    /// Puts a model on a device.
    ///
    /// # Errors
    /// If the parts are not a pipeline, an adapter does not fit them, or the device cannot be opened.
    pub async fn new(mut source: Source, options: &Options) -> Result<Self> {
        let (device, device_note, dtype) = open_device(options).await?;
        let policy = Policy {
            forced: options.kernels.clone(),
            convrot: options.convrot,
        };
        let types = source.retype(options.weight_type);
        let (path, _) = policy.convrot.resolve(device.caps());
        let adapters = source.adapt(&|_, info| stays_packed(info, path))?;
        let vae = options.vae.clone().at_most(options.memory.max, device.caps())?;
        let pipeline = Pipeline::new(source.parts, device, dtype, policy)?
            .with_vae_options(vae)
            .with_memory(options.memory)
            .with_calibration(options.calibration.clone());
        Ok(Self {
            defaults: source.defaults.for_vae(&pipeline.models().vae),
            pipeline,
            name: source.name,
            device_note,
            adapters,
            weight_type: options.weight_type,
            types,
        })
    }

    /// The small model that is compiled into the crate.
    ///
    /// # Errors
    /// If the device cannot be opened.
    #[cfg(feature = "scenes-tiny")]
    pub async fn embedded(options: &Options) -> Result<Self> {
        Self::new(Source::embedded()?, options).await
    }

    /// A model from a diffusers folder.
    ///
    /// # Errors
    /// If a file is missing or unusable, or the device cannot be opened.
    #[cfg(feature = "native")]
    pub async fn load(path: impl AsRef<std::path::Path>, options: &Options) -> Result<Self> {
        Self::new(Source::open(&Files::folder(path))?, options).await
    }

    /// Makes the pictures of a request. `on` hears of progress; `cancel` stops it within one step.
    ///
    /// # Errors
    /// If the request does not fit the model or the device, a result is not finite, or it was cancelled. After the last step,
    /// [`Error::Undecoded`] with the latents.
    pub async fn generate(
        &mut self,
        request: &Request,
        mut on: impl FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Vec<Picture>> {
        let settings = self.settings(request)?;
        let (factor, _) = self.pipeline.factors();
        let (height, width) = (settings.height as usize / factor, settings.width as usize / factor);
        let channels = self.pipeline.models().transformer.0.channels;
        let schedule = self.schedule(request, &settings, height * width)?;
        for note in self.notes(&settings) {
            on(Event::Note(note));
        }

        // Everything is planned before the first step; in the quicker tiers it is compiled and allocated too, the decoder with it.
        on(Event::Stage(Stage::Prepare));
        let tasks = self.tasks(request, &settings)?;
        self.pipeline.engage(&tasks, &mut on)?;
        proceed(cancel)?;
        let positive = self.caption(&request.prompt, &mut on, cancel).await?;
        proceed(cancel)?;
        let negative = match settings.guidance.is_on() {
            true => Some(self.caption(&request.negative_prompt, &mut on, cancel).await?),
            false => None,
        };
        proceed(cancel)?;

        let start = match &request.init_image {
            Some(image) => {
                let encode = Task::Encode { height, width };
                self.pipeline.enter(&[encode], &mut on, cancel).await?;
                on(Event::Stage(Stage::Encode));
                let image = image.resize(settings.width, settings.height);
                Some(self.encode_with(&image, &mut on, cancel).await?)
            }
            None => None,
        };
        let steps = |task: &Task| matches!(task, Task::Denoise { .. });
        let steps: Vec<_> = tasks.iter().copied().filter(steps).collect();
        self.pipeline.enter(&steps, &mut on, cancel).await?;
        let mut latents = Vec::new();
        for index in 0..request.batch {
            let seed = request.seed.wrapping_add(u64::from(index));
            let mut noise = request.rng.start(seed).normal(channels * height * width);
            if let Some(start) = &start {
                schedule.noised(&mut noise, &start.data);
            }
            let mut latent = Tensor::new([channels, height, width], noise);
            on(Event::Stage(Stage::Denoise));
            for step in 0..schedule.steps() {
                proceed(cancel)?;
                let guidance = &settings.guidance;
                let timestep = schedule.timesteps[step];
                let output = self
                    .predict(&latent, timestep, &positive, negative.as_ref(), guidance)
                    .await?;
                schedule.step(step, &mut latent.data, &output);
                let of = schedule.steps() as u32;
                self.pipeline
                    .finite(&latent, || format!("latent after step {} of {of}", step + 1))?;
                on(Event::Step {
                    step: step as u32 + 1,
                    of,
                    picture: index + 1,
                    of_pictures: request.batch,
                    latent: latent.clone(),
                });
            }
            latents.push((seed, Tensor::new([1, channels, height, width], latent.data)));
        }
        proceed(cancel)?;
        // The steps are the long part: what they have made is not lost with a picture that cannot be decoded.
        let mut pictures = Vec::new();
        for (seed, latent) in &latents {
            let image = match self.picture(latent, &mut on, cancel).await {
                Ok(image) => image,
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(error) => {
                    let source = Box::new(error);
                    return Err(Error::Undecoded { latents, source });
                }
            };
            pictures.push(Picture {
                image,
                seed: *seed,
                settings: self.describe_run(request, &settings, *seed),
                latent: latent.clone(),
            });
        }
        Ok(pictures)
    }

    /// A latent of the run to its picture.
    async fn picture(&mut self, latent: &Tensor, on: &mut impl FnMut(Event), cancel: &Cancel) -> Result<Image> {
        if let [.., height, width] = latent.ty.shape[..] {
            let decode = Task::Decode { height, width };
            self.pipeline.enter(&[decode], on, cancel).await?;
        }
        on(Event::Stage(Stage::Decode));
        self.decode_with(latent, on, cancel).await
    }

    /// As [`Engine::generate`], for callers that are not async.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    #[cfg(feature = "native")]
    pub fn generate_blocking(
        &mut self,
        request: &Request,
        on: impl FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Vec<Picture>> {
        pollster::block_on(self.generate(request, on, cancel))
    }

    /// A latent `[1, c, h, w]` to a picture.
    ///
    /// # Errors
    /// If the latent is no such tensor, the device fails, or the picture is not finite.
    pub async fn decode(&mut self, latent: &Tensor) -> Result<Image> {
        self.decode_with(latent, |_| (), &Cancel::new()).await
    }

    /// As [`Engine::decode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`Engine::decode`], or if it was cancelled.
    pub async fn decode_with(&mut self, latent: &Tensor, mut on: impl FnMut(Event), cancel: &Cancel) -> Result<Image> {
        let channels = self.pipeline.models().vae.0.latent_channels();
        if latent.ty.shape.len() != 4 || latent.ty.shape[..2] != [1, channels] {
            return Err(Error::Request(format!(
                "a latent of this model has shape [1, {channels}, h, w], not {}",
                latent.ty.shape
            )));
        }
        let (factor, _) = self.pipeline.factors();
        let pixels = |extent: usize| u32::try_from(extent.saturating_mul(factor)).unwrap_or(u32::MAX);
        check_size(pixels(latent.ty.shape[3]), pixels(latent.ty.shape[2]), 1)?;
        let mut picture = self.pipeline.decode_with(latent, &mut on, cancel).await?;
        picture.data.iter_mut().for_each(|v| *v = v.clamp(0.0, 1.0));
        Image::from_tensor(&picture)
    }

    /// A picture to its latent `[1, c, h, w]`, scaled as [`Engine::decode`] takes it.
    ///
    /// # Errors
    /// If the size is no multiple of the VAE's factor, the device fails, or the latent is not finite.
    pub async fn encode(&mut self, image: &Image) -> Result<Tensor> {
        self.encode_with(image, |_| (), &Cancel::new()).await
    }

    /// As [`Engine::encode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`Engine::encode`], or if it was cancelled.
    pub async fn encode_with(&mut self, image: &Image, mut on: impl FnMut(Event), cancel: &Cancel) -> Result<Tensor> {
        let (factor, _) = self.pipeline.factors();
        check_size(image.width(), image.height(), factor)?;
        self.pipeline.encode_with(&image.to_tensor(), &mut on, cancel).await
    }

    /// Picture pixels per pixel of the latent, along each side.
    pub fn factor(&self) -> usize {
        self.pipeline.factors().0
    }

    /// Name of the model.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the device, and why it was taken.
    pub fn device(&self) -> (String, &str) {
        (self.pipeline.device().name(), &self.device_note)
    }

    /// How the last run was held on the device: the tier at work, and its bytes.
    pub fn engaged(&self) -> Option<&Engaged> {
        self.pipeline.engaged()
    }

    /// What a request leaves out is taken from here.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    /// What became of each module of the adapters.
    pub fn adapters(&self) -> &Report {
        &self.adapters
    }

    /// The pipeline below, for those who want single stages.
    pub fn pipeline(&mut self) -> &mut Pipeline {
        &mut self.pipeline
    }

    /// Which way each operator runs in the sessions that are ready, and why.
    pub fn choices(&self) -> BTreeSet<Choice> {
        self.pipeline
            .sessions()
            .flat_map(|(_, session)| session.plan().choices.clone())
            .chain(self.pipeline.vae().tiled().flat_map(|ran| ran.choices.clone()))
            .chain(self.pipeline.convrot())
            .collect()
    }

    /// Bytes of the sessions that are ready: as planned, and as allocated. Weights that sessions share count once. Of what ran
    /// in tiles the largest session counts.
    pub fn bytes(&self) -> (Bytes, Bytes) {
        let (mut planned, mut allocated) = (Bytes::default(), Bytes::default());
        let mut seen = BTreeSet::new();
        for (_, session) in self.pipeline.sessions() {
            let (mut plan, mut real) = (session.planned(), session.allocated());
            for (id, wanted, held) in session.weights() {
                if !seen.insert(id) {
                    plan.weights -= wanted;
                    real.weights -= held;
                }
            }
            planned = planned.plus(plan);
            allocated = allocated.plus(real);
        }
        for ran in self.pipeline.vae().tiled() {
            planned = planned.plus(ran.bytes.0);
            allocated = allocated.plus(ran.bytes.1);
        }
        (planned, allocated)
    }
}

/// The device, why it is this one, and how it stores activations.
async fn open_device(options: &Options) -> Result<(Device, String, DType)> {
    let (device, device_note) = options.device.open(&options.limits).await?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    if !device.dtypes().contains(&dtype) {
        let known: Vec<_> = device.dtypes().iter().map(|d| d.name()).collect();
        return Err(Error::Request(format!(
            "{} stores activations as {}, not {dtype}",
            device.name(),
            known.join(" or ")
        )));
    }
    Ok((device, device_note, dtype))
}

fn proceed(cancel: &Cancel) -> Result<()> {
    if cancel.is_cancelled() {
        Err(Error::Cancelled)
    } else {
        Ok(())
    }
}

/// Refuses a size whose sides are no multiples, or that has more values than 32 bits count.
fn check_size(width: u32, height: u32, multiple: usize) -> Result<()> {
    check_multiple("width", width, multiple)?;
    check_multiple("height", height, multiple)?;
    let most = u64::from(u32::MAX / 3);
    if u64::from(width) * u64::from(height) > most {
        return Err(Error::Request(format!(
            "{width}x{height} is more than {most} pixels; use a smaller size"
        )));
    }
    Ok(())
}

/// Refuses a size that is no multiple, naming the two nearest that are.
fn check_multiple(what: &str, size: u32, multiple: usize) -> Result<()> {
    let multiple = multiple as u32;
    if size > 0 && size.is_multiple_of(multiple) {
        return Ok(());
    }
    let below = size / multiple * multiple;
    let nearest = match (below, below.checked_add(multiple)) {
        (0, _) => format!("{multiple} and {}", 2 * multiple),
        (below, Some(above)) => format!("{below} and {above}"),
        (below, None) => format!("{below}"),
    };
    Err(Error::Request(format!(
        "{what} {size} is no multiple of {multiple}; the nearest that work are {nearest}"
    )))
}

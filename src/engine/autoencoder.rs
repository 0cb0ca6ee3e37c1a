use super::{Cancel, Event, Options, Stage, check_size, open_device};
use crate::checkpoint::{Checkpoint, Weights};
use crate::diffusion::vae::VaeRunner;
use crate::error::{Error, Result};
use crate::gpu::Caps;
use crate::media::Image;
use crate::models::Vae;
use crate::plan::Policy;
use crate::tensor::Tensor;
use std::sync::Arc;

/// An autoencoder alone on a device: pictures to latents and back, without the rest of a pipeline.
#[derive(Debug)]
pub struct Autoencoder {
    runner: VaeRunner,
    name: String,
    device_note: String,
    note: Option<String>,
}

impl Autoencoder {
    /// Puts an autoencoder on a device.
    ///
    /// # Errors
    /// If the checkpoint is no autoencoder of RGB pictures, or the device cannot be opened.
    pub async fn new(checkpoint: Arc<Checkpoint>, options: &Options) -> Result<Self> {
        let vae = Vae::read(&checkpoint)?;
        if vae.image_channels() != 3 {
            return Err(Error::Request(format!(
                "{}: its pictures have {} channels, not red, green and blue",
                checkpoint.name(),
                vae.image_channels()
            )));
        }
        let (device, device_note, dtype) = open_device(options).await?;
        let policy = Policy {
            forced: options.kernels.clone(),
            convrot: options.convrot,
        };
        let options = options.vae.clone().at_most(options.memory.max, device.caps())?;
        Ok(Self {
            note: scaling_note(&vae, &checkpoint),
            name: checkpoint.name().to_owned(),
            runner: VaeRunner::new((vae, Weights::new(checkpoint)), device, dtype, policy).with_options(options),
            device_note,
        })
    }

    /// An autoencoder from a safetensors file, or from a folder with one.
    ///
    /// # Errors
    /// If the file is missing or unusable, or as [`Autoencoder::new`].
    #[cfg(feature = "native")]
    pub async fn open(path: impl AsRef<std::path::Path>, options: &Options) -> Result<Self> {
        Self::new(Arc::new(Checkpoint::open(path)?), options).await
    }

    /// A latent `[1, c, h, w]`, as a transformer has it, to a picture. `on` hears of progress; `cancel` stops it within a tile.
    ///
    /// # Errors
    /// If the latent has another shape, it does not fit, the device fails, the picture is not finite, or it was cancelled.
    pub async fn decode(&mut self, latent: &Tensor, mut on: impl FnMut(Event), cancel: &Cancel) -> Result<Image> {
        self.notes(true, &mut on);
        on(Event::Stage(Stage::Decode));
        let [.., height, width] = latent.ty.shape[..] else {
            return Err(Error::Request(format!(
                "a latent is [1, c, h, w], not {}",
                latent.ty.shape
            )));
        };
        let factor = self.runner.vae().factor();
        let pixels = |extent: usize| u32::try_from(extent.saturating_mul(factor)).unwrap_or(u32::MAX);
        check_size(pixels(width), pixels(height), 1)?;
        self.picture(latent, &mut on, cancel).await
    }

    /// A picture to the mean of its latent `[1, c, h, w]`, as a transformer takes it. Where a side is no multiple of
    /// [`Autoencoder::factor`], the last row and column are repeated up to the next one, and `on` hears so.
    ///
    /// # Errors
    /// If it does not fit, the device fails, the latent is not finite, or it was cancelled.
    pub async fn encode(&mut self, image: &Image, mut on: impl FnMut(Event), cancel: &Cancel) -> Result<Tensor> {
        self.notes(true, &mut on);
        on(Event::Stage(Stage::Encode));
        self.encode_padded(image, &mut on, cancel).await
    }

    /// A picture to its latent and back, at its own size.
    ///
    /// # Errors
    /// As [`Autoencoder::encode`] and [`Autoencoder::decode`].
    pub async fn round_trip(&mut self, image: &Image, mut on: impl FnMut(Event), cancel: &Cancel) -> Result<Image> {
        // What is scaled is scaled back: whose scaling it is makes no difference.
        self.notes(false, &mut on);
        on(Event::Stage(Stage::Encode));
        let latent = self.encode_padded(image, &mut on, cancel).await?;
        on(Event::Stage(Stage::Decode));
        let picture = self.picture(&latent, &mut on, cancel).await?;
        Ok(picture.crop(image.width(), image.height()))
    }

    async fn picture(&mut self, latent: &Tensor, on: &mut impl FnMut(Event), cancel: &Cancel) -> Result<Image> {
        let mut picture = self.runner.decode_with(latent, on, cancel).await?;
        picture.data.iter_mut().for_each(|v| *v = v.clamp(0.0, 1.0));
        Image::from_tensor(&picture)
    }

    async fn encode_padded(&mut self, image: &Image, on: &mut impl FnMut(Event), cancel: &Cancel) -> Result<Tensor> {
        let (width, height) = (image.width(), image.height());
        let factor = u32::try_from(self.runner.vae().factor()).unwrap_or(u32::MAX);
        let up = |n: u32| n.checked_next_multiple_of(factor).unwrap_or(u32::MAX);
        let size = (up(width), up(height));
        check_size(size.0, size.1, 1)?;
        let picture = if size == (width, height) {
            image.to_tensor()
        } else {
            on(Event::Note(format!(
                "{width}x{height} is no multiple of {factor}: its edges are repeated up to {}x{}, and cropped again when decoded",
                size.0, size.1
            )));
            image.pad(size.0, size.1).to_tensor()
        };
        self.runner.encode_with(&picture, on, cancel).await
    }

    fn notes(&self, scaled: bool, on: &mut impl FnMut(Event)) {
        if let Some(Caps {
            adapter,
            software: true,
            ..
        }) = self.runner.device().caps()
        {
            on(Event::Note(format!("running on {adapter}: {}", self.device_note)));
        }
        if let Some(note) = self.note.as_ref().filter(|_| scaled) {
            on(Event::Note(note.clone()));
        }
    }

    /// File name of the autoencoder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the device, and why it was taken.
    pub fn device(&self) -> (String, &str) {
        (self.runner.device().name(), &self.device_note)
    }

    /// Picture pixels per pixel of the latent, along each side.
    pub fn factor(&self) -> usize {
        self.runner.vae().factor()
    }

    /// The model and its sizes.
    pub fn vae(&self) -> &Vae {
        self.runner.vae()
    }
}

/// What the user should know of a scaling that the file does not tell.
fn scaling_note(vae: &Vae, checkpoint: &Checkpoint) -> Option<String> {
    let Vae::Kl(config) = vae else { return None };
    let (own, other) = match config.latent_channels {
        16 => ("FLUX.1", "Stable Diffusion 3"),
        _ => ("Stable Diffusion 1", "SDXL"),
    };
    config.scaling_is_a_guess(checkpoint).then(|| {
        format!(
            "{} does not say how its latents are scaled: taken as that of {own}, scaling {} and shift {}. If it is that of \
             {other}, put its config.json beside it",
            checkpoint.name(),
            config.scaling,
            config.shift
        )
    })
}

//! The Z-Image pipeline: prompt to embeddings to latent to picture, as sessions on one device.

use super::placement::{Engaged, MemoryOptions};
use super::scheduler::Scheduler;
use super::task::rows;
pub use super::task::{Task, denoise_task};
use super::vae::{VaeOptions, VaeRunner, VaeTask, check_finite};
use crate::backend::{Device, Session};
use crate::checkpoint::{Checkpoint, Weights};
use crate::engine::{Cancel, Event};
use crate::error::{CheckpointError, Error, Result};
use crate::graph::Graph;
use crate::memory::estimate::Calibration;
use crate::memory::offload::Hold;
use crate::models::{Model, Vae, qwen3, z_image};
use crate::plan::{Choice, Plan, Policy};
use crate::tensor::{DType, Tensor, TensorType};
use crate::text::{Tokenizer, Tokens, prompt};
use std::sync::Arc;

/// What makes up a pipeline, opened but not on a device.
#[derive(Debug)]
pub struct Parts {
    /// Qwen3.
    pub text_encoder: Arc<Checkpoint>,
    /// The denoiser.
    pub transformer: Arc<Checkpoint>,
    /// The autoencoder.
    pub vae: Arc<Checkpoint>,
    /// `tokenizer.json`.
    pub tokenizer: Tokenizer,
    /// Scheduler with its settings.
    pub scheduler: Scheduler,
}

/// Sessions that are kept for the next picture.
const KEPT: usize = 8;

/// A pipeline on a device.
#[derive(Debug)]
pub struct Pipeline {
    device: Device,
    dtype: DType,
    policy: Policy,
    tokenizer: Tokenizer,
    scheduler: Scheduler,
    models: Models,
    pub(super) vae: VaeRunner,
    sessions: Vec<(Task, Hold, Session)>,
    pub(super) memory: MemoryOptions,
    // Measured here, in place of what comes with the crate.
    pub(super) calibration: Option<Calibration>,
    // What the autoencoder may take whatever the tier.
    pub(super) vae_cap: Option<u64>,
    pub(super) engaged: Option<Engaged>,
    // The last note on memory, which is not repeated.
    pub(super) said: Option<String>,
}

/// The three models with their sizes and weights.
#[derive(Debug)]
pub struct Models {
    /// Text encoder.
    pub text: (qwen3::Config, Weights),
    /// Denoiser.
    pub transformer: (z_image::Config, Weights),
    /// Autoencoder.
    pub vae: (Vae, Weights),
}

impl Models {
    /// Reads the sizes of each part and checks that the parts fit each other.
    ///
    /// # Errors
    /// If a part is another model than its place needs, or sizes do not fit.
    pub fn read(parts: &Parts) -> Result<Self> {
        let weights = |checkpoint: &Arc<Checkpoint>| Weights::new(checkpoint.clone());
        let models = Self {
            text: match Model::read(&parts.text_encoder)? {
                Model::Qwen3(config) => (config, weights(&parts.text_encoder)),
                other => return Err(misplaced(&parts.text_encoder, "text encoder", &other)),
            },
            transformer: match Model::read(&parts.transformer)? {
                Model::ZImage(config) => (config, weights(&parts.transformer)),
                other => return Err(misplaced(&parts.transformer, "transformer", &other)),
            },
            vae: (Vae::read(&parts.vae)?, weights(&parts.vae)),
        };
        let (text, dit, vae) = (&models.text.0, &models.transformer.0, &models.vae.0);
        if text.hidden != dit.caption_dim {
            return Err(Error::Request(format!(
                "the parts do not fit: the text encoder gives {} values a token, the transformer takes {}",
                text.hidden, dit.caption_dim
            )));
        }
        if vae.latent_channels() != dit.channels {
            return Err(Error::Request(format!(
                "the parts do not fit: the VAE has {} latent channels, the transformer {}",
                vae.latent_channels(),
                dit.channels
            )));
        }
        Ok(models)
    }

    /// The graph of a task, with activations stored as `dtype`, and the weights it names.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape, or the model has too few positions for the sizes.
    pub fn graph(&self, task: Task, dtype: DType) -> Result<(Graph, &Weights)> {
        let mut g = Graph::new(dtype);
        let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
        match task {
            Task::Text { tokens } => {
                let (config, weights) = &self.text;
                let ids = g.input("ids", TensorType::new(DType::U32, [tokens]));
                let embeddings = qwen3::encoder(&mut g, weights, config, ids)?;
                g.output("embeddings", embeddings);
                Ok((g, weights))
            }
            Task::Caption { tokens } => {
                let (config, weights) = &self.transformer;
                let embeddings = g.input("embeddings", f32(&[tokens, config.caption_dim]));
                let caption = z_image::refined_caption(&mut g, weights, config, embeddings)?;
                g.output("caption", caption);
                Ok((g, weights))
            }
            Task::Denoise { tokens, height, width } => {
                let (config, weights) = &self.transformer;
                let latent = g.input("latent", f32(&[config.channels, height, width]));
                let time = g.input("time", f32(&[1]));
                let caption = g.input("caption", TensorType::new(dtype, [tokens, config.dim]));
                let output = z_image::denoiser(&mut g, weights, config, latent, time, caption, tokens)?;
                g.output("output", output);
                Ok((g, weights))
            }
            Task::Decode { height, width } => {
                let (vae, weights) = &self.vae;
                let graph = VaeTask::Decode { height, width }.graph(vae, weights, dtype)?;
                Ok((graph, weights))
            }
            Task::Encode { height, width } => {
                let (vae, weights) = &self.vae;
                let graph = VaeTask::Encode { height, width }.graph(vae, weights, dtype)?;
                Ok((graph, weights))
            }
        }
    }
}

fn misplaced(checkpoint: &Checkpoint, place: &str, found: &Model) -> Error {
    CheckpointError::UnknownModel {
        file: checkpoint.name().to_owned(),
        reason: format!("it is given as the {place}, but it holds a {}", found.entry().name),
    }
    .into()
}

impl Pipeline {
    /// Puts the parts on a device. Weights follow when the first session needs them.
    ///
    /// # Errors
    /// As [`Models::read`].
    pub fn new(parts: Parts, device: Device, dtype: DType, policy: Policy) -> Result<Self> {
        let mut models = Models::read(&parts)?;
        let device = device.scoped();
        let (path, _) = policy.convrot.resolve(device.caps());
        for weights in [&mut models.text.1, &mut models.transformer.1] {
            *weights = weights.clone().with_convrot(path);
        }
        let vae = VaeRunner::new(models.vae.clone(), device.clone(), dtype, policy.clone());
        Ok(Self {
            models,
            vae,
            device,
            dtype,
            policy,
            tokenizer: parts.tokenizer,
            scheduler: parts.scheduler,
            sessions: Vec::new(),
            memory: MemoryOptions::default(),
            calibration: None,
            vae_cap: None,
            engaged: None,
            said: None,
        })
    }

    /// Sets what adapter and driver add to plans: what was measured here comes before what comes with the crate.
    pub fn with_calibration(mut self, measured: Option<Calibration>) -> Self {
        self.calibration = measured.map(|own| Calibration::shipped().clone().merge(own));
        self
    }

    /// Sets what it may take of the device.
    pub fn with_memory(mut self, memory: MemoryOptions) -> Self {
        self.memory = memory;
        self
    }

    /// Sets how the autoencoder runs.
    pub fn with_vae_options(mut self, options: VaeOptions) -> Self {
        self.vae_cap = options.max_memory;
        self.vae = self.vae.with_options(options);
        self
    }

    /// The autoencoder.
    pub fn vae(&self) -> &VaeRunner {
        &self.vae
    }

    /// The autoencoder, to run it alone.
    pub fn vae_mut(&mut self) -> &mut VaeRunner {
        &mut self.vae
    }

    /// The models and their sizes.
    pub fn models(&self) -> &Models {
        &self.models
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How ways of operators are chosen.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// How int8 layers run, and why, where a part has any.
    pub fn convrot(&self) -> Option<Choice> {
        let Models { text, transformer, vae } = &self.models;
        let mut parts = [&text.1, &transformer.1, &vae.1].into_iter();
        let any = parts.any(|weights| weights.checkpoint().has_int8());
        any.then(|| self.policy.convrot.resolve(self.device.caps()).1)
    }

    /// Storage of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Picture pixels per latent pixel, and the multiple that picture sizes must have.
    pub fn factors(&self) -> (usize, usize) {
        let factor = self.models.vae.0.factor();
        (factor, factor * z_image::PATCH)
    }

    /// Sessions that are ready, with their tasks.
    pub fn sessions(&self) -> impl Iterator<Item = (Task, &Session)> {
        let own = self.sessions.iter().map(|(task, _, session)| (*task, session));
        own.chain(self.vae.sessions().map(|(task, session)| (task.into(), session)))
    }

    /// The plan of a task: nothing is allocated.
    ///
    /// # Errors
    /// If the task does not fit the model or the device.
    pub fn plan(&self, task: Task) -> Result<Plan> {
        if let Some(task) = task.of_vae() {
            return self.vae.plan(task);
        }
        let (graph, _) = self.models.graph(task, self.dtype)?;
        self.device.plan(&graph, &self.policy)
    }

    /// Makes a task ready to run: compiles its kernels, allocates its buffers, uploads its weights.
    ///
    /// # Errors
    /// If the task does not fit the model or the device, or a weight cannot be loaded.
    pub async fn prepare(&mut self, task: Task) -> Result<&mut Session> {
        if let Some(task) = task.of_vae() {
            return self.vae.prepare(task).await;
        }
        let hold = self.hold(task);
        self.sessions.retain(|(t, h, _)| *t != task || *h == hold);
        let ready = self.sessions.iter().position(|(t, ..)| *t == task);
        let entry = match ready {
            Some(index) => self.sessions.remove(index),
            None => {
                if self.sessions.len() >= KEPT {
                    self.sessions.remove(0);
                }
                let (graph, weights) = self.models.graph(task, self.dtype)?;
                tracing::debug!(?task, nodes = graph.nodes().len(), "prepare");
                let session = self.device.prepare_held(&graph, weights, &self.policy, hold).await?;
                (task, hold, session)
            }
        };
        // The latest is last, so that the first is the one to go.
        self.sessions.push(entry);
        let last = self.sessions.len() - 1;
        Ok(&mut self.sessions[last].2)
    }

    /// Whether a task has a session.
    pub(super) fn is_ready(&self, task: Task) -> bool {
        match task.of_vae() {
            Some(task) => self.vae.is_ready(task),
            None => self.sessions.iter().any(|(t, ..)| *t == task),
        }
    }

    /// Frees the sessions of all other tasks.
    pub(super) fn keep_only(&mut self, tasks: &[Task]) {
        let mut sessions = std::mem::take(&mut self.sessions);
        sessions.retain(|(task, hold, _)| tasks.contains(task) && self.hold(*task) == *hold);
        self.sessions = sessions;
        self.vae.keep_only(|task| tasks.contains(&task.into()));
    }

    /// Frees every session and the weights that only they held.
    pub fn release(&mut self) {
        self.sessions.clear();
        self.vae.release();
    }

    /// Runs a task with one result.
    ///
    /// # Errors
    /// As [`Pipeline::prepare`], or if the device fails.
    pub async fn run(&mut self, task: Task, inputs: &[(&str, &Tensor)]) -> Result<Tensor> {
        let outputs = self.prepare(task).await?.run(inputs).await?;
        outputs
            .into_iter()
            .next()
            .ok_or_else(|| Error::Request(format!("{task:?} has no result")))
    }

    /// A prompt as token ids, in the chat template.
    ///
    /// # Errors
    /// If the tokenizer fails or gives ids that the text encoder does not have.
    pub fn tokens(&self, text: &str) -> Result<Tokens> {
        let tokens = prompt::z_image(&self.tokenizer, text)?;
        tokens.check(self.models.text.0.vocabulary)?;
        Ok(tokens)
    }

    /// Token ids to prompt embeddings `[tokens, dim]` in `f32`.
    ///
    /// # Errors
    /// If the device fails or the embeddings are not finite.
    pub async fn embed(&mut self, tokens: &Tokens) -> Result<Tensor> {
        let ids = Tensor::ids([tokens.ids.len()], &tokens.ids);
        let task = Task::Text {
            tokens: tokens.ids.len(),
        };
        let embeddings = self.run(task, &[("ids", &ids)]).await?;
        self.finite(&embeddings, || "text embedding".into())?;
        Ok(embeddings)
    }

    /// Prompt embeddings to what the denoiser sees in every step.
    ///
    /// # Errors
    /// If the device fails or the result is not finite.
    pub async fn caption(&mut self, embeddings: &Tensor) -> Result<Tensor> {
        let task = Task::Caption {
            tokens: rows(embeddings)?,
        };
        let caption = self.run(task, &[("embeddings", embeddings)]).await?;
        self.finite(&caption, || "text embedding, refined".into())?;
        Ok(caption)
    }

    /// The model's output for a latent `[c, h, w]`; the caller negates it.
    ///
    /// # Errors
    /// If the device fails, or latent or caption have another rank.
    pub async fn denoise(&mut self, latent: &Tensor, time: f32, caption: &Tensor) -> Result<Tensor> {
        let &[_, height, width] = &latent.ty.shape[..] else {
            return Err(Error::Request(format!(
                "a latent has shape [c, h, w], not {}",
                latent.ty.shape
            )));
        };
        let task = denoise_task(caption, height, width)?;
        let time = Tensor::new([1], vec![time]);
        self.run(task, &[("latent", latent), ("time", &time), ("caption", caption)])
            .await
    }

    /// A latent `[1, c, h, w]` to a picture `[1, 3, f h, f w]`, nominally in 0..=1 but not clamped.
    ///
    /// # Errors
    /// If the device fails or the picture is not finite.
    pub async fn decode(&mut self, latent: &Tensor) -> Result<Tensor> {
        self.decode_with(latent, &mut |_| (), &Cancel::new()).await
    }

    /// As [`Pipeline::decode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`Pipeline::decode`], or if it was cancelled.
    pub async fn decode_with(&mut self, latent: &Tensor, on: &mut dyn FnMut(Event), cancel: &Cancel) -> Result<Tensor> {
        self.vae.decode_with(latent, on, cancel).await
    }

    /// A picture `[1, 3, f h, f w]` in 0..=1 to the mean of its latent `[1, c, h, w]`, scaled as the transformer takes it.
    ///
    /// # Errors
    /// If the device fails or the latent is not finite.
    pub async fn encode(&mut self, picture: &Tensor) -> Result<Tensor> {
        self.encode_with(picture, &mut |_| (), &Cancel::new()).await
    }

    /// As [`Pipeline::encode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`Pipeline::encode`], or if it was cancelled.
    pub async fn encode_with(
        &mut self,
        picture: &Tensor,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        self.vae.encode_with(picture, on, cancel).await
    }

    /// Refuses a result with a NaN or infinity. `stage` names where it came from.
    ///
    /// # Errors
    /// If there is one.
    pub fn finite(&self, tensor: &Tensor, stage: impl Fn() -> String) -> Result<()> {
        check_finite(tensor, &self.device, self.dtype, stage)
    }
}

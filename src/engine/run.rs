//! What a run is made of: its sizes and steps, its tasks, and what happens in one step.

use super::{Cancel, Engine, Event, Request, Stage, check_size};
use crate::diffusion::Guidance;
use crate::diffusion::pipeline::Task;
use crate::diffusion::scheduler::{Schedule, Spacing, linear_sigmas};
use crate::error::{Error, Result};
use crate::models::z_image;
use crate::tensor::Tensor;

/// More steps than any scheduler tells apart.
const MAX_STEPS: u32 = 1_000_000;

/// Sizes and steps of a run, with the model's defaults filled in.
pub(super) struct Settings {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) steps: u32,
    pub(super) guidance: Guidance,
}

impl Engine {
    /// All that a request runs.
    pub(super) fn tasks(&self, request: &Request, settings: &Settings) -> Result<Vec<Task>> {
        let (factor, _) = self.pipeline.factors();
        let (height, width) = (settings.height as usize / factor, settings.width as usize / factor);
        let mut tasks = vec![Task::Decode { height, width }];
        if request.init_image.is_some() {
            tasks.push(Task::Encode { height, width });
        }
        let negative = settings.guidance.is_on().then_some(&request.negative_prompt);
        for prompt in [Some(&request.prompt), negative].into_iter().flatten() {
            let tokens = self.pipeline.tokens(prompt)?.ids.len();
            let denoise = Task::Denoise {
                tokens: tokens.next_multiple_of(z_image::TOKEN_MULTIPLE),
                height,
                width,
            };
            for task in [Task::Text { tokens }, Task::Caption { tokens }, denoise] {
                if !tasks.contains(&task) {
                    tasks.push(task);
                }
            }
        }
        Ok(tasks)
    }

    pub(super) async fn caption(
        &mut self,
        prompt: &str,
        on: &mut impl FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        let tokens = self.pipeline.tokens(prompt)?;
        if let Some(note) = tokens.note() {
            on(Event::Note(note));
        }
        let count = tokens.ids.len();
        self.pipeline.enter(&[Task::Text { tokens: count }], on, cancel).await?;
        on(Event::Stage(Stage::Text));
        let embeddings = self.pipeline.embed(&tokens).await?;
        self.pipeline
            .enter(&[Task::Caption { tokens: count }], on, cancel)
            .await?;
        self.pipeline.caption(&embeddings).await
    }

    /// What the scheduler is given: the negated and guided output of the model.
    pub(super) async fn predict(
        &mut self,
        latent: &Tensor,
        timestep: f32,
        positive: &Tensor,
        negative: Option<&Tensor>,
        guidance: &Guidance,
    ) -> Result<Vec<f32>> {
        let time = (1000.0 - timestep) / 1000.0;
        let mut output = self.pipeline.denoise(latent, time, positive).await?.data;
        let scale = guidance.scale_at(time);
        if let (Some(negative), true) = (negative, scale > 0.0) {
            let other = self.pipeline.denoise(latent, time, negative).await?.data;
            guidance.apply(scale, &mut output, &other);
        }
        output.iter_mut().for_each(|v| *v = -*v);
        Ok(output)
    }

    pub(super) fn settings(&self, request: &Request) -> Result<Settings> {
        let (factor, multiple) = self.pipeline.factors();
        let defaults = &self.defaults;
        let settings = Settings {
            width: request.width.unwrap_or(defaults.width),
            height: request.height.unwrap_or(defaults.height),
            steps: request.steps.unwrap_or(defaults.steps),
            guidance: Guidance {
                scale: request.guidance.unwrap_or(defaults.guidance),
                normalization: request.cfg_normalization,
                truncation: request.cfg_truncation,
            },
        };
        check_size(settings.width, settings.height, multiple)?;
        let models = self.pipeline.models();
        let [height, width] = [settings.height, settings.width].map(|n| n as usize / factor);
        // Said before anything is planned for a size that the model cannot take.
        models.transformer.0.check_positions(1, height, width)?;
        if settings.steps > MAX_STEPS {
            return Err(Error::Request(format!(
                "at most {MAX_STEPS} steps, got {}",
                settings.steps
            )));
        }
        if request.batch == 0 {
            return Err(Error::Request("a batch has at least 1 picture".into()));
        }
        if !settings.guidance.scale.is_finite() || settings.guidance.scale < 0.0 {
            return Err(Error::Request(format!(
                "guidance must be 0 or more, got {}",
                settings.guidance.scale
            )));
        }
        if !(request.cfg_normalization >= 0.0 && (0.0..=1.0).contains(&request.cfg_truncation)) {
            return Err(Error::Request(format!(
                "cfg_normalization must be 0 or more and cfg_truncation in 0..=1, got {} and {}",
                request.cfg_normalization, request.cfg_truncation
            )));
        }
        Ok(settings)
    }

    pub(super) fn schedule(&self, request: &Request, settings: &Settings, latent: usize) -> Result<Schedule> {
        let sigmas = linear_sigmas(settings.steps as usize);
        let spacing = Spacing {
            steps: settings.steps as usize,
            sigmas: Some(&sigmas),
            tokens: latent / (z_image::PATCH * z_image::PATCH),
            mu: None,
        };
        let schedule = self.pipeline.scheduler().schedule(&spacing).map_err(Error::Request)?;
        match request.init_image {
            Some(_) => schedule.from_strength(request.strength).map_err(Error::Request),
            None => Ok(schedule),
        }
    }
}

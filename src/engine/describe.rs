//! What a run says of itself: notes beforehand, and the settings that go into the picture's file.

use super::run::Settings;
use super::{Engine, Request};
use crate::backend::Device;
use crate::memory::tier::Tier;
use crate::plan::ConvrotMode;

impl Engine {
    pub(super) fn notes(&self, settings: &Settings) -> Vec<String> {
        let mut notes = Vec::new();
        if let Device::Gpu(gpu) = self.pipeline.device()
            && gpu.caps().software
        {
            notes.push(format!("running on {}: {}", gpu.caps().adapter, self.device_note));
        }
        if let Device::Cpu(_) = self.pipeline.device()
            && !self.pipeline.policy().forced.is_empty()
        {
            notes.push("--kernel is for GPUs: the CPU has one way of each operator".into());
        }
        if self.pipeline.policy().convrot != ConvrotMode::Auto && self.pipeline.convrot().is_none() {
            notes.push("--convrot-mode is for int8 layers: this model has none".into());
        }
        notes.extend(self.adapters.notes());
        notes.extend(self.types.clone());
        let trained = &self.defaults.only_size;
        if let Some((width, height)) = trained.filter(|size| *size != (settings.width, settings.height)) {
            notes.push(format!(
                "this model was trained at {width}x{height} only; other sizes come out worse"
            ));
        }
        notes
    }

    pub(super) fn describe_run(&self, request: &Request, settings: &Settings, seed: u64) -> Vec<(String, String)> {
        let mut list = vec![
            ("prompt", request.prompt.clone()),
            ("negative_prompt", request.negative_prompt.clone()),
            ("seed", seed.to_string()),
            ("steps", settings.steps.to_string()),
            ("guidance", settings.guidance.scale.to_string()),
            ("width", settings.width.to_string()),
            ("height", settings.height.to_string()),
            ("rng", request.rng.name().to_owned()),
            ("scheduler", self.pipeline.scheduler().name().to_owned()),
            ("model", self.name.clone()),
            ("device", self.pipeline.device().name()),
            ("dtype", self.pipeline.dtype().name().to_owned()),
        ];
        if let Some(storage) = self.pipeline.vae().last()
            && (storage.repeated || storage.dtype != self.pipeline.dtype())
        {
            list.push(("vae_dtype", storage.to_string()));
        }
        if let Some(place) = self.pipeline.vae().last().and_then(|storage| storage.place()) {
            list.push(("vae_device", place));
        }
        if let Some(engaged) = self.engaged().filter(|engaged| engaged.tier != Tier::Resident) {
            list.push(("memory", engaged.tier.name().to_owned()));
        }
        if let Some(target) = self.weight_type {
            list.push(("type", target.to_string()));
        }
        if !self.adapters.files.is_empty() {
            list.push(("lora", self.adapters.summary()));
            list.push(("lora_apply", self.adapters.how().to_owned()));
        }
        if request.init_image.is_some() {
            list.push(("strength", request.strength.to_string()));
        }
        let own = self.pipeline.convrot();
        if let Some(choice) = &own {
            list.push(("convrot", format!("{}: {}", choice.way, choice.reason)));
        }
        let choices = self.choices();
        let ways = choices.iter().filter(|c| own.as_ref() != Some(*c));
        let ways: Vec<_> = ways.map(|c| format!("{}={}", c.op, c.way)).collect();
        if !ways.is_empty() {
            list.push(("kernels", ways.join(" ")));
        }
        list.push(("software", concat!("rotile ", env!("CARGO_PKG_VERSION")).to_owned()));
        list.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

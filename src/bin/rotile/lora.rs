//! `--lora`: adapters on the model.

use anyhow::Result;
use clap::{Args, ValueEnum};
use rotile::adapter::{Adapter, Apply};
use rotile::engine::Source;
use std::path::PathBuf;

/// Adapters on the model.
#[derive(Debug, Args)]
pub(crate) struct LoraArgs {
    /// LoRA, LoKr, LoHa or DoRA file, and its weight in the mix [default: 1]; may be repeated
    #[arg(long, value_name = "PATH[:WEIGHT]", help_heading = LORA, value_parser = lora)]
    lora: Vec<(PathBuf, f32)>,
    /// When they are applied: auto is at run time where weights are quantised, else merged when loaded
    #[arg(long, value_name = "WHEN", help_heading = LORA, value_enum, requires = "lora", default_value_t = LoraApply::Auto)]
    lora_apply: LoraApply,
}

const LORA: &str = "Adapters";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoraApply {
    Auto,
    Immediately,
    Runtime,
}

impl LoraArgs {
    /// The model with these adapters.
    pub(crate) fn on(&self, source: Source) -> Result<Source> {
        let open = |(path, weight): &(PathBuf, f32)| Adapter::open(path, *weight).map_err(rotile::Error::from);
        let adapters = self.lora.iter().map(open).collect::<rotile::Result<Vec<_>>>()?;
        let apply = match self.lora_apply {
            LoraApply::Auto => Apply::Auto,
            LoraApply::Immediately => Apply::Immediately,
            LoraApply::Runtime => Apply::Runtime,
        };
        Ok(source.with_adapters(adapters, apply))
    }
}

/// `style.safetensors:0.8`; what follows the last colon counts where it is a number, so `C:\style` is a path.
fn lora(text: &str) -> Result<(PathBuf, f32), String> {
    let number = |tail: &str| tail.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let (path, weight) = match text.rsplit_once(':') {
        Some((path, tail)) if number(tail) => match tail.parse::<f32>() {
            Ok(weight) => (path, weight),
            Err(_) => (text, 1.0),
        },
        _ => (text, 1.0),
    };
    match path {
        "" => Err("wanted PATH or PATH:WEIGHT".into()),
        _ if !weight.is_finite() => Err("the weight must be finite".into()),
        path => Ok((path.into(), weight)),
    }
}

//! What may be taken of the device's memory.

use anyhow::{Context as _, Result};
use clap::Args;
use rotile::diffusion::MemoryOptions;
use rotile::memory::budget::MaxMemory;
use rotile::memory::estimate::Calibration;
use rotile::memory::tier::Mode;
use std::path::PathBuf;

const MEMORY: &str = "Memory";

/// For what runs a whole model.
#[derive(Clone, Debug, Args)]
pub(crate) struct MemoryArgs {
    /// How much of the model is on the device at once: auto, fast, balanced (the transformer's blocks take turns) or low-vram (so
    /// do the parts). The picture is the same
    #[arg(long, value_name = "TIER", help_heading = MEMORY, default_value = "auto", env = "ROTILE_MEMORY", hide_env_values = true)]
    memory: Mode,
    #[command(flatten)]
    max: MaxMemoryArgs,
    /// What `rotile calibrate --out FILE` has measured on this machine
    #[arg(long, value_name = "FILE", help_heading = MEMORY, env = "ROTILE_CALIBRATION", hide_env_values = true)]
    calibration: Option<PathBuf>,
}

/// For what runs one part.
#[derive(Clone, Debug, Args)]
pub(crate) struct MaxMemoryArgs {
    /// Most memory of the device that is taken: GiB, or 800MiB; a negative number leaves so much free
    #[arg(long, value_name = "GIB", help_heading = MEMORY, allow_hyphen_values = true, env = "ROTILE_MAX_MEMORY", hide_env_values = true)]
    pub(crate) max_memory: Option<MaxMemory>,
}

impl MemoryArgs {
    pub(crate) fn calibration(&self) -> Result<Option<Calibration>> {
        let Some(file) = &self.calibration else { return Ok(None) };
        let name = || file.display().to_string();
        let text = std::fs::read_to_string(file).with_context(name)?;
        Ok(Some(Calibration::parse(&text).with_context(name)?))
    }

    pub(crate) fn options(&self) -> MemoryOptions {
        MemoryOptions {
            mode: self.memory,
            ..self.max.options()
        }
    }
}

impl MaxMemoryArgs {
    pub(crate) fn options(&self) -> MemoryOptions {
        MemoryOptions {
            max: self.max_memory,
            ..MemoryOptions::default()
        }
    }
}

//! `--tile`, `--vae-dtype` and what the CPU does in place of a GPU.

use clap::{Args, ValueEnum};
use rotile::diffusion::tiled::TileOptions;
use rotile::diffusion::vae::{VaeDType, VaeOptions};
use rotile::memory::route::Ratio;

/// How the autoencoder runs.
#[derive(Debug, Args)]
pub(crate) struct VaeArgs {
    /// Decode and encode in tiles of this side [default: the largest that fit, where the whole does not]
    #[arg(long, value_name = "PIXELS", help_heading = AUTOENCODER, value_parser = clap::value_parser!(u32).range(1..))]
    tile: Option<u32>,
    /// What neighbouring tiles share at least; never less than the model needs for tiles that come out as the whole would
    #[arg(long, value_name = "PIXELS", help_heading = AUTOENCODER, requires = "tile", default_value_t = 0)]
    tile_overlap: u32,
    /// How its activations are stored: auto is as --dtype says; f16 is repeated in f32 where it overflows
    #[arg(long, value_name = "TYPE", help_heading = AUTOENCODER, value_enum, default_value_t = VaeStorage::Auto)]
    vae_dtype: VaeStorage,
    /// Part of the free memory that it may fill, above 0 to 1, before tiles get smaller and then the CPU takes over; of the largest buffer
    /// where the GPU does not tell what is free [default: 0.9 where it tells]
    #[arg(long, value_name = "R", help_heading = AUTOENCODER, value_parser = ratio, allow_negative_numbers = true)]
    vae_fallback_ratio: Option<f64>,
    /// Fail where the GPU cannot run it, not even in tiles, instead of moving to the CPU
    #[arg(long, help_heading = AUTOENCODER, conflicts_with = "vae_fallback_ratio")]
    no_vae_fallback: bool,
}

const AUTOENCODER: &str = "Autoencoder";

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VaeStorage {
    Auto,
    F32,
    F16,
}

impl VaeArgs {
    pub(crate) fn options(&self) -> VaeOptions {
        VaeOptions {
            tile: self.tile.map(|size| TileOptions {
                size,
                overlap: self.tile_overlap,
            }),
            max_memory: None,
            dtype: match self.vae_dtype {
                VaeStorage::Auto => VaeDType::Auto,
                VaeStorage::F32 => VaeDType::F32,
                VaeStorage::F16 => VaeDType::F16,
            },
            fallback: !self.no_vae_fallback,
            fallback_ratio: self.vae_fallback_ratio,
        }
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|ratio| Ratio::new(*ratio).is_some());
    number.ok_or_else(|| "wanted a number above 0, at most 1".into())
}

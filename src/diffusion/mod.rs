//! What surrounds a denoising model: initial noise, scheduler, guidance.

pub mod guidance;
pub mod noise;
pub mod pipeline;
pub mod placement;
mod reroute;
pub mod scheduler;
mod task;
pub mod tiled;
pub mod vae;

pub use guidance::Guidance;
pub use noise::{Noise, Rng};
pub use placement::{Engaged, MemoryOptions};
pub use scheduler::{Schedule, Scheduler};

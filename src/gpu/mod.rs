//! The GPU backend.

mod caps;
pub mod wgsl;

pub use caps::Caps;

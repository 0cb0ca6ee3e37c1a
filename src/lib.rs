//! rotile

pub mod checkpoint;
pub mod diffusion;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod media;
pub mod op;
pub mod ops;
pub mod tensor;

pub use error::{Error, Result};

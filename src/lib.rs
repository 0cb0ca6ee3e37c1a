//! rotile

pub mod backend;
pub mod checkpoint;
pub mod cpu;
pub mod diffusion;
pub mod engine;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod media;
pub mod memory;
pub mod op;
pub mod ops;
pub mod plan;
pub mod tensor;
pub mod text;

pub use error::{Error, Result};

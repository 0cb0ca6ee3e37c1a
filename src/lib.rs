//! rotile

pub mod checkpoint;
mod cpu;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod op;
pub mod ops;
pub mod tensor;

pub use error::{Error, Result};

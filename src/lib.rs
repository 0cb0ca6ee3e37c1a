//! rotile

pub mod backend;
pub mod checkpoint;
pub mod cpu;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod memory;
pub mod op;
pub mod ops;
pub mod plan;
pub mod tensor;

pub use error::{Error, Result};

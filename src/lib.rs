//! rotile

pub mod checkpoint;
pub mod error;
pub mod gpu;
pub mod graph;
pub mod op;
pub mod ops;
pub mod tensor;
pub mod text;

pub use error::{Error, Result};

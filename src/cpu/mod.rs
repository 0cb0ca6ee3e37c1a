//! The CPU backend: runs a graph node by node, by an op's fast path or its reference.

pub(crate) mod attention;
pub(crate) mod codes;
pub(crate) mod conv;
pub(crate) mod gemm;
pub(crate) mod packed;
mod session;

pub use session::{Cpu, CpuSession};

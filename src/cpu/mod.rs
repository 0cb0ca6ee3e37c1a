//! The CPU backend: runs a graph node by node, by an op's fast path or its reference.

mod session;

pub use session::{Cpu, CpuSession};

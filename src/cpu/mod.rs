//! Fast paths on the CPU for the operators that a model spends its time in.

pub(crate) mod gemm;

//! What the norms share: how rows are spread over invocations, and samples that show cancellation.

use crate::gpu::Caps;
use crate::gpu::wgsl::KernelSpec;
use crate::tensor::Tensor;
use bytemuck::{Pod, Zeroable};

/// Parameters of the norms over rows.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct RowParams {
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) eps: f32,
}

/// Sets how rows are spread over invocations. Short rows, such as attention heads, share a workgroup. Also the grid.
pub(super) fn spread(kernel: KernelSpec, rows: usize, cols: usize, caps: &Caps) -> (KernelSpec, [u32; 3]) {
    let (wg, lanes) = match cols {
        0..=256 => (64, 16),
        257..=1024 => (64, 64),
        _ => (256, 256),
    };
    let per = cols.div_ceil(lanes).max(1);
    let kernel = kernel
        .slot("row", if per <= HELD { "held" } else { "streamed" })
        .set("WG", wg)
        .set("LANES", lanes as u32)
        .set("RADIX", radix(lanes))
        .set("PER", per as u32);
    (kernel, caps.grid(rows.div_ceil(wg as usize / lanes)))
}

/// Sums of the first of two levels over `lanes` terms, a power of two.
pub(super) fn radix(lanes: usize) -> u32 {
    1 << (lanes.ilog2() / 2)
}

/// Most elements that an invocation keeps in registers.
const HELD: usize = 32;

/// The `gain` or `offset` slot choice for a vector that may be missing.
pub(super) fn choice(present: bool) -> &'static str {
    if present { "vector" } else { "none" }
}

/// The second half of the values moved to a mean of 100, where mean(x^2) - mean(x)^2 loses all digits of the variance.
pub(super) fn far_from_zero(x: &Tensor) -> Tensor {
    let mut x = x.clone();
    let half = x.data.len() / 2;
    x.data[half..].iter_mut().for_each(|v| *v += 100.0);
    x.rounded()
}

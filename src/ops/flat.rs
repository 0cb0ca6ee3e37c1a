//! Launches of the kernels that use `lib/flat`: element by element.

use crate::gpu::Caps;
use crate::gpu::wgsl::KernelSpec;
use crate::op::Launch;

const WG: usize = 64;
/// Elements of an invocation.
const PER: usize = 4;

/// A launch over `count` elements, which is the `count` of `params` too.
pub(super) fn flat(kernel: KernelSpec, params: &impl bytemuck::NoUninit, count: usize, caps: &Caps) -> Launch {
    let kernel = kernel.set("WG", WG as u32).set("PER", PER as u32);
    Launch::new(kernel, params, caps.grid(count.div_ceil(WG * PER)))
}

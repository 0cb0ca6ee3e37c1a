use crate::tensor::{Part, TensorType};
use std::fmt;

/// What an adapter can do: its features, its limits and who it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Caps {
    /// Name of the adapter.
    pub adapter: String,
    /// Driver, with its version where the API tells.
    pub driver: String,
    /// API: `vulkan`, `metal`, `dx12`, `webgpu`; `none` for [`Caps::baseline`].
    pub backend: &'static str,
    /// True for an adapter that computes on the CPU, such as llvmpipe.
    pub software: bool,
    /// `f16` storage and arithmetic in WGSL.
    pub f16: bool,
    /// Subgroup functions in WGSL.
    pub subgroups: bool,
    /// Products of four packed 8-bit integers in WGSL: `dot4I8Packed`.
    pub packed_dot: bool,
    /// Smallest and largest number of lanes in a subgroup.
    pub subgroup_size: (u32, u32),
    /// Workgroups per axis of a dispatch.
    pub max_workgroups: u32,
    /// Bytes of the largest buffer.
    pub max_buffer: u64,
    /// Bytes of the largest storage binding.
    pub max_binding: u64,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Invocations of a workgroup.
    pub workgroup_invocations: u32,
}

/// Limits to open a device with, where they are below those of the adapter: the API then refuses what it would refuse elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the largest buffer.
    pub max_buffer: Option<u64>,
    /// Bytes of the largest storage binding.
    pub max_binding: Option<u64>,
}

impl Caps {
    /// WebGPU's default limits and no features: what every adapter has.
    pub fn baseline() -> Self {
        Self {
            adapter: "WebGPU defaults".into(),
            driver: String::new(),
            backend: "none",
            software: false,
            f16: false,
            subgroups: false,
            packed_dot: false,
            subgroup_size: (4, 128),
            max_workgroups: 65_535,
            max_buffer: 256 << 20,
            max_binding: 128 << 20,
            workgroup_memory: 16_384,
            workgroup_invocations: 256,
        }
    }

    /// The same adapter within `limits`.
    pub fn limited(&self, limits: &Limits) -> Self {
        let max_buffer = self.max_buffer.min(limits.max_buffer.unwrap_or(u64::MAX));
        let max_binding = self.max_binding.min(limits.max_binding.unwrap_or(u64::MAX));
        Self {
            max_buffer,
            max_binding: max_binding.min(max_buffer),
            ..self.clone()
        }
    }

    /// Whether kernels on `lib/lanes` run: a software adapter with subgroups of eight, as llvmpipe has on 256-bit vectors.
    pub fn lanes(&self) -> bool {
        self.software && self.subgroups && self.subgroup_size == (8, 8)
    }

    /// Bytes of the largest tensor that a buffer holds and a kernel binds.
    pub fn max_tensor(&self) -> u64 {
        self.max_binding.min(self.max_buffer)
    }

    /// How a weight lies on the device: rows of its first axis, each part in a buffer of its own. The one rule that operators,
    /// plans and uploads go by.
    pub fn parts(&self, weight: &TensorType) -> Vec<Part> {
        weight.parts(self.max_tensor())
    }

    /// A grid of `count` workgroups that wraps from x into y above [`Caps::max_workgroups`]. The kernel undoes it with
    /// `flat_group` of `lib/index` and must leave groups from `count` on alone.
    pub fn grid(&self, count: usize) -> [u32; 3] {
        let limit = self.max_workgroups as usize;
        let x = count.clamp(1, limit);
        // The planner refuses tensors whose elements outnumber a u32, so y stays within the limit too.
        [x as u32, count.max(1).div_ceil(x) as u32, 1]
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.adapter, self.backend)?;
        if !self.driver.is_empty() {
            write!(f, ", {}", self.driver)?;
        }
        f.write_str(")")
    }
}

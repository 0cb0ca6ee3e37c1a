//! Tile sizes for kernels that use `lib/tiles`.

use crate::gpu::wgsl::KernelSpec;

/// How `batches` products of `m x n` outputs are cut into tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    ly: usize,
    large: bool,
    count: usize,
}

impl Tiles {
    pub(super) fn new(m: usize, n: usize, batches: usize) -> Self {
        // Large tiles save traffic, but only pay when there are enough of them to fill a GPU.
        let count = m.div_ceil(128) * n.div_ceil(128) * batches;
        if count >= 128 && m > 64 && n > 64 {
            return Self {
                ly: 16,
                large: true,
                count,
            };
        }
        let ly = match m {
            0..=16 => 4,
            17..=32 => 8,
            _ => 16,
        };
        Self {
            ly,
            large: false,
            count: m.div_ceil(4 * ly) * n.div_ceil(64) * batches,
        }
    }

    /// Number of workgroups.
    pub(super) fn count(self) -> usize {
        self.count
    }

    /// Sets the sizes.
    pub(super) fn fill(self, kernel: KernelSpec) -> KernelSpec {
        let kernel = kernel.set("LY", self.ly as u32);
        if self.large {
            // Slices of eight columns keep two tiles of 128 rows within 16 KiB.
            kernel.set("TM", 2).set("TN", 2).set("BK", 8)
        } else {
            kernel
        }
    }
}

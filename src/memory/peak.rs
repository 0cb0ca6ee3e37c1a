//! What a session takes at its peak, as far as it can be told before: on a GPU the buffers of its plan and staging memory, in the
//! blocks of the allocator; where the device is the machine, its buffers and the copies that lie beside them for a moment. What is left is the driver's, and is measured:
//! [`estimate`](super::estimate).

use super::offload;
use crate::gpu::Caps;
use crate::plan::{Named, Plan};
use crate::tensor::TensorType;

/// Bytes that wgpu's allocator asks the driver for at a time for small buffers; larger ones have memory of their own. Larger
/// blocks, which it has by default, hold little more than one weight each, and what is left of them is lost.
pub const BLOCK: u64 = 4 << 20;

/// Of the first block, what wgpu itself has taken when a device is open.
const OWN: u64 = 516 << 10;

/// Alignment of buffers in a block.
const ALIGN: u64 = 256;

/// Bytes that one session takes at most, beyond what an open device has taken; `caps` is none for the CPU.
pub fn whole(plan: &Plan, caps: Option<&Caps>) -> u64 {
    weights(plan, caps) + session(plan, caps)
}

/// Bytes that sessions take which run one after the other, with weights that stay: `weights` bytes of them all, and `host` bytes
/// in host memory between two sessions.
pub fn tiled(plans: &[Plan], weights: u64, host: u64, caps: Option<&Caps>) -> u64 {
    let own = |plan: &Plan| session(plan, caps);
    let host = if caps.is_none_or(|caps| caps.software) { host } else { 0 };
    weights + plans.iter().map(own).max().unwrap_or(0) + host
}

fn weights(plan: &Plan, caps: Option<&Caps>) -> u64 {
    match caps {
        Some(_) => plan.gpu_bytes().weights,
        None => plan.cpu_bytes().weights,
    }
}

/// What comes on top of the weights.
fn session(plan: &Plan, caps: Option<&Caps>) -> u64 {
    let values = |ty: &TensorType| ty.count() as u64 * 4;
    let given: u64 = plan.inputs.iter().map(|i| values(&i.ty)).sum();
    let results: u64 = plan.outputs.iter().map(|o| values(&o.ty)).sum();
    let Some(caps) = caps else {
        return plan.cpu_bytes().session() + given + results;
    };
    if !caps.software {
        return reserved(plan, caps).saturating_sub(plan.gpu_bytes().weights);
    }
    // The adapter's memory is the machine's, and only what is written to is taken. What is given and what comes back lies there
    // too, once more on its way.
    let staged: u64 = plan.inputs.iter().map(|i| i.ty.byte_len() as u64).sum();
    plan.gpu_bytes().session() + given + staged.max(results + plan.readback_bytes())
}

/// Most bytes that wgpu's allocator takes from the driver for a session, in the order in which buffers are made.
pub fn reserved(plan: &Plan, caps: &Caps) -> u64 {
    let bytes = |n: &Named| n.ty.byte_len() as u64;
    let mut memory = Memory::new(caps.software);
    let mut staging = Vec::new();
    plan.buffers.iter().for_each(|&size| memory.keep(size));
    plan.inputs.iter().for_each(|i| memory.keep(bytes(i)));
    let constants = plan.constants.iter().map(|c| c.ty.byte_len() as u64);
    let params = Some(plan.params.len() as u64).filter(|&size| size > 0);
    for size in constants.chain(params) {
        memory.keep(size);
        staging.push(memory.take(Kind::Upload, size));
    }
    if plan.readback_bytes() > 0 {
        memory.take(Kind::Readback, plan.readback_bytes());
    }
    memory.free(&mut staging);
    let (mut waiting, limit) = (0, offload::staging(plan.gpu_bytes().weights));
    for weight in &plan.weights {
        let parts: Vec<u64> = caps.parts(&weight.ty).iter().map(|p| p.ty.byte_len() as u64).collect();
        parts.iter().for_each(|&size| memory.keep(size));
        for mut size in parts {
            while size > 0 {
                let piece = size.min(limit);
                if waiting + piece > limit {
                    memory.free(&mut staging);
                    waiting = 0;
                }
                staging.push(memory.take(Kind::Upload, piece));
                waiting += piece;
                size -= piece;
            }
        }
    }
    memory.free(&mut staging);
    plan.inputs
        .iter()
        .for_each(|i| staging.push(memory.take(Kind::Upload, bytes(i))));
    memory.most
}

/// What a buffer is for: memory of different kinds, where the adapter has memory of its own.
#[derive(Clone, Copy)]
enum Kind {
    Device,
    Upload,
    Readback,
}

/// The allocator of wgpu: blocks of [`BLOCK`] bytes for what fits, filled best fit first, newest block first.
struct Memory {
    /// Whether all kinds are one.
    one: bool,
    pools: [Vec<Block>; 3],
    now: u64,
    most: u64,
}

/// The gaps of a block, as offsets and sizes.
struct Block {
    gaps: Vec<(u64, u64)>,
}

/// Where a buffer lies, for giving it back.
#[derive(Clone, Copy)]
struct Spot {
    pool: usize,
    /// None for memory of its own.
    block: Option<usize>,
    offset: u64,
    size: u64,
}

impl Memory {
    fn new(one: bool) -> Self {
        let first = Block {
            gaps: vec![(OWN, BLOCK - OWN)],
        };
        Self {
            one,
            pools: [vec![first], Vec::new(), Vec::new()],
            now: 0,
            most: 0,
        }
    }

    /// A buffer that stays.
    fn keep(&mut self, size: u64) {
        self.take(Kind::Device, size);
    }

    fn take(&mut self, kind: Kind, size: u64) -> Spot {
        let pool = if self.one { 0 } else { kind as usize };
        let size = size.max(4).next_multiple_of(4);
        if size > BLOCK {
            self.grow(size);
            return Spot {
                pool,
                block: None,
                offset: 0,
                size,
            };
        }
        let blocks = &mut self.pools[pool];
        let found = (0..blocks.len()).rev().find_map(|i| Some((i, blocks[i].take(size)?)));
        let (block, (offset, size)) = match found {
            Some(found) => found,
            None => {
                blocks.push(Block {
                    gaps: vec![(size, BLOCK - size)],
                });
                let last = blocks.len() - 1;
                self.grow(BLOCK);
                (last, (0, size))
            }
        };
        Spot {
            pool,
            block: Some(block),
            offset,
            size,
        }
    }

    fn grow(&mut self, bytes: u64) {
        self.now += bytes;
        self.most = self.most.max(self.now);
    }

    /// Gives buffers back. Blocks stay: the next buffers fill them.
    fn free(&mut self, spots: &mut Vec<Spot>) {
        for spot in spots.drain(..) {
            match spot.block {
                None => self.now -= spot.size,
                Some(block) => self.pools[spot.pool][block].give(spot.offset, spot.size),
            }
        }
    }
}

impl Block {
    /// Takes a buffer, with what alignment leaves before it, out of the smallest gap that is large enough: offset and size.
    fn take(&mut self, size: u64) -> Option<(u64, u64)> {
        let padded = |offset: u64| offset.next_multiple_of(ALIGN) - offset + size;
        let fits = self
            .gaps
            .iter_mut()
            .filter(|(offset, length)| padded(*offset) <= *length);
        let gap = fits.min_by_key(|(_, length)| *length)?;
        let (offset, taken) = (gap.0, padded(gap.0));
        *gap = (offset + taken, gap.1 - taken);
        Some((offset, taken))
    }

    fn give(&mut self, offset: u64, size: u64) {
        self.gaps.push((offset, size));
        self.gaps.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(self.gaps.len());
        for &(offset, size) in &self.gaps {
            match merged.last_mut() {
                Some((start, length)) if *start + *length == offset => *length += size,
                _ => merged.push((offset, size)),
            }
        }
        self.gaps = merged;
    }
}

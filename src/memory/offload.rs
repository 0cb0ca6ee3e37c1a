//! Weights that are not all on the device: which blocks of a model stay there, and what the others take turns in.

use crate::error::PlanError;
use crate::gpu::Caps;
use crate::plan::{Plan, cpu_weight_bytes};
use std::collections::BTreeSet;
use std::ops::Range;

/// Where weights begin in a buffer that several lie in: WebGPU's default `minStorageBufferOffsetAlignment`.
const ALIGNMENT: u64 = 256;

/// The most and the least staging memory where memory counts, and the part of the weights in between.
const STAGING: (u64, u64) = (16 << 20, 64 << 10);
const STAGING_PART: u64 = 32;

/// Bytes of weights that are on their way at most, while `weights` bytes of them are brought to a GPU.
pub fn staging(weights: u64) -> u64 {
    (weights / STAGING_PART).clamp(STAGING.1, STAGING.0)
}

/// How a session holds its weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// All on the device.
    #[default]
    Resident,
    /// Block by block. With a budget the first blocks stay, as many as fit; without one none do.
    Streamed {
        /// Bytes that weights, slots and staging memory may take.
        budget: Option<u64>,
    },
}

impl Hold {
    /// How the weights of a plan are streamed on a GPU with `caps`, or on the CPU; `None` where all of them stay.
    ///
    /// # Errors
    /// If not even the largest block fits the budget.
    pub fn stream(self, plan: &Plan, caps: Option<&Caps>) -> Result<Option<Stream>, PlanError> {
        let Self::Streamed { budget } = self else {
            return Ok(None);
        };
        let blocks = Blocks::of(plan, caps);
        let stream = blocks.within(budget).ok_or_else(|| PlanError::MaxMemory {
            wanted: blocks.least().total(),
            limit: budget.unwrap_or(u64::MAX),
        });
        stream.map(Some)
    }
}

/// Neighbouring nodes of a plan whose weights come and go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Positions in [`Plan::nodes`].
    pub nodes: Range<usize>,
    /// Weights that only this segment reads.
    pub weights: Vec<usize>,
    /// Bytes of them, as they lie in a slot.
    pub bytes: u64,
}

/// A part of a weight in a slot: which buffer of the slot, and where it begins.
pub type Spot = (usize, u64);

/// What streaming a plan would take: the blocks, before it is decided which of them stay.
#[derive(Clone, Debug)]
pub struct Blocks {
    /// In order.
    pub segments: Vec<Segment>,
    /// Weights that several segments read, which stay.
    pub shared: Vec<usize>,
    sizes: Vec<Vec<u64>>,
    /// Bytes of the largest buffer.
    largest_buffer: u64,
    // Bytes that are written at once; none where weights are read in place.
    staged: bool,
}

/// Which blocks stay and which take turns, to the byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// All segments, in order.
    pub segments: Vec<Segment>,
    /// Segments that are streamed: all from here on.
    pub first: usize,
    /// Slots that they take turns in: with two, one is filled while the other is in use.
    pub slots: usize,
    /// Bytes of the buffers of each slot.
    pub buffers: Vec<u64>,
    /// For each weight, where its parts lie in a slot; `None` if it stays.
    pub spots: Vec<Option<Vec<Spot>>>,
    /// Bytes of the weights that stay.
    pub resident: u64,
    /// Bytes of weights on their way, at most.
    pub staging: u64,
}

impl Stream {
    /// Bytes of the slots.
    pub fn slot_bytes(&self) -> u64 {
        self.slots as u64 * self.buffers.iter().sum::<u64>()
    }

    /// Bytes that it takes in all.
    pub fn total(&self) -> u64 {
        self.resident + self.slot_bytes() + self.staging
    }
}

impl Blocks {
    /// The blocks of a plan on a GPU with `caps`, or on the CPU.
    pub fn of(plan: &Plan, caps: Option<&Caps>) -> Self {
        let sizes = plan.weights.iter().map(|weight| match caps {
            Some(caps) => {
                let parts = caps.parts(&weight.ty).into_iter();
                parts.map(|part| part.ty.byte_len() as u64).collect()
            }
            None => vec![cpu_weight_bytes(&weight.ty)],
        });
        let largest_buffer = caps.map_or(u64::MAX, |caps| caps.max_buffer);
        let uses: Vec<_> = plan.blocks.iter().zip(&plan.node_weights).collect();
        Self::new(&uses, sizes.collect(), largest_buffer, caps.is_some())
    }

    fn new(uses: &[(&usize, &Vec<usize>)], sizes: Vec<Vec<u64>>, largest_buffer: u64, staged: bool) -> Self {
        let mut segments: Vec<Segment> = Vec::new();
        let mut readers = vec![BTreeSet::new(); sizes.len()];
        for (at, &(block, weights)) in uses.iter().enumerate() {
            if at == 0 || uses[at - 1].0 != block {
                segments.push(Segment {
                    nodes: at..at,
                    weights: Vec::new(),
                    bytes: 0,
                });
            }
            let index = segments.len() - 1;
            segments[index].nodes.end = at + 1;
            for &weight in weights {
                readers[weight].insert(index);
            }
        }
        let mut shared = Vec::new();
        for (weight, readers) in readers.iter().enumerate() {
            match readers.first() {
                Some(&only) if readers.len() == 1 => segments[only].weights.push(weight),
                _ => shared.push(weight),
            }
        }
        let mut blocks = Self {
            segments,
            shared,
            sizes,
            largest_buffer,
            staged,
        };
        for i in 0..blocks.segments.len() {
            blocks.segments[i].bytes = blocks.pack(&blocks.segments[i]).0.iter().sum();
        }
        blocks
    }

    /// Puts the weights of a segment into buffers, one after the other; the sizes of those, and where each part lies.
    fn pack(&self, segment: &Segment) -> (Vec<u64>, Vec<(usize, Vec<Spot>)>) {
        let mut buffers: Vec<u64> = Vec::new();
        let mut spots = Vec::new();
        for &weight in &segment.weights {
            let place = |&bytes: &u64| {
                let padded = if self.staged {
                    bytes.next_multiple_of(ALIGNMENT)
                } else {
                    bytes
                };
                let room = |used: &&mut u64| used.checked_add(padded).is_some_and(|end| end <= self.largest_buffer);
                match buffers.last_mut().filter(room) {
                    Some(used) => *used += padded,
                    // The padding of one that fills a buffer by itself is not needed.
                    None => buffers.push(padded.min(self.largest_buffer).max(bytes)),
                }
                let last = buffers.len() - 1;
                (last, buffers[last].saturating_sub(padded))
            };
            spots.push((weight, self.sizes[weight].iter().map(place).collect()));
        }
        (buffers, spots)
    }

    fn bytes(&self, weights: &[usize]) -> u64 {
        weights
            .iter()
            .map(|&weight| self.sizes[weight].iter().sum::<u64>())
            .sum()
    }

    /// Bytes of the largest segment.
    pub fn largest(&self) -> u64 {
        self.segments.iter().map(|s| s.bytes).max().unwrap_or(0)
    }

    /// Staging memory: as much as the largest streamed block, so that it is read while the one before it is computed, or the least.
    fn staging(&self, largest: u64, roomy: bool) -> u64 {
        match (self.staged, roomy) {
            (false, _) => 0,
            (true, true) => largest.max(STAGING.1),
            (true, false) => staging(largest),
        }
    }

    /// The stream whose first `first` segments stay.
    fn stream(&self, first: usize, slots: usize, roomy: bool) -> Stream {
        let mut spots = vec![None; self.sizes.len()];
        let mut buffers: Vec<u64> = Vec::new();
        for segment in &self.segments[first..] {
            let (sizes, placed) = self.pack(segment);
            for (i, bytes) in sizes.into_iter().enumerate() {
                match buffers.get_mut(i) {
                    Some(largest) => *largest = bytes.max(*largest),
                    None => buffers.push(bytes),
                }
            }
            for (weight, placed) in placed {
                spots[weight] = Some(placed);
            }
        }
        let kept: u64 = self.segments[..first].iter().map(|s| self.bytes(&s.weights)).sum();
        let largest = buffers.iter().sum();
        Stream {
            segments: self.segments.clone(),
            first,
            slots,
            buffers,
            spots,
            resident: kept + self.bytes(&self.shared),
            staging: self.staging(largest, roomy),
        }
    }

    /// The least that it can be done with: one slot, one block at a time.
    pub fn least(&self) -> Stream {
        self.stream(0, 1, false)
    }

    /// The best within `budget`; `None` where not even the least fits. Two slots come before blocks that stay, and staging memory for a whole
    /// block before two slots.
    pub fn within(&self, budget: Option<u64>) -> Option<Stream> {
        let ways = if self.staged {
            &[(2, true), (1, true), (1, false)][..]
        } else {
            &[(1, false)]
        };
        let Some(budget) = budget else {
            return Some(self.stream(0, ways[0].0, ways[0].1));
        };
        let (slots, roomy) = *ways
            .iter()
            .find(|(slots, roomy)| self.stream(0, *slots, *roomy).total() <= budget)?;
        let streams = (0..=self.segments.len()).rev();
        streams
            .map(|first| self.stream(first, slots, roomy))
            .find(|stream| stream.total() <= budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks that read weights of these sizes; the last is read by all.
    fn blocks(sizes: &[&[u64]], largest_buffer: u64, staged: bool) -> Blocks {
        let mut all: Vec<Vec<u64>> = Vec::new();
        let mut uses = Vec::new();
        let shared: usize = sizes.iter().map(|s| s.len()).sum();
        for (block, sizes) in sizes.iter().enumerate() {
            for &size in *sizes {
                uses.push((block, vec![all.len(), shared]));
                all.push(vec![size]);
            }
        }
        all.push(vec![4]);
        let uses: Vec<_> = uses.iter().map(|(block, weights)| (block, weights)).collect();
        Blocks::new(&uses, all, largest_buffer, staged)
    }

    #[test]
    fn what_several_blocks_read_stays() {
        let blocks = blocks(&[&[100], &[200, 300]], u64::MAX, false);
        assert_eq!(blocks.shared, [3]);
        assert_eq!(blocks.segments[1].weights, [1, 2]);
        assert_eq!(blocks.segments[1].nodes, 1..3);
        assert_eq!(blocks.largest(), 500);
        let least = blocks.least();
        assert_eq!((least.resident, least.slot_bytes(), least.staging), (4, 500, 0));
        assert_eq!(least.spots[2], Some(vec![(0, 200)]));
        assert_eq!(least.spots[3], None);
    }

    #[test]
    fn parts_begin_at_aligned_places_and_buffers_have_a_limit() {
        let blocks = blocks(&[&[300, 300, 1000], &[700]], 1024, true);
        let least = blocks.least();
        assert_eq!(least.buffers, [1024, 1024]);
        assert_eq!(least.spots[0], Some(vec![(0, 0)]));
        assert_eq!(least.spots[1], Some(vec![(0, 512)]));
        assert_eq!(least.spots[2], Some(vec![(1, 0)]));
        assert_eq!(least.spots[3], Some(vec![(0, 0)]));
        assert!(
            least
                .spots
                .iter()
                .flatten()
                .flatten()
                .all(|(_, at)| at % ALIGNMENT == 0)
        );
    }

    #[test]
    fn a_budget_is_used_and_never_exceeded() {
        let sizes: Vec<Vec<u64>> = (0..6).map(|i| vec![1 << 20, (i + 1) << 18]).collect();
        let sizes: Vec<&[u64]> = sizes.iter().map(Vec::as_slice).collect();
        for staged in [false, true] {
            let blocks = blocks(&sizes, u64::MAX, staged);
            let floor = blocks.least().total();
            assert!(blocks.within(Some(floor - 1)).is_none());
            let mut before = 0;
            for budget in (floor..16 << 20).step_by(100_000) {
                let stream = blocks.within(Some(budget)).expect("above the floor");
                assert!(stream.total() <= budget);
                let kept = stream.first as u64 + stream.resident;
                assert!(kept >= before || stream.slots == 2 || stream.staging > blocks.least().staging);
                before = kept;
            }
            let all = blocks.within(Some(1 << 30)).expect("fits");
            assert_eq!((all.first, all.slot_bytes()), (6, 0));
            assert_eq!(blocks.within(None).expect("no limit").first, 0);
        }
    }
}

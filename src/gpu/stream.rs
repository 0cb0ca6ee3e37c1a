//! Weights that take turns in the same buffers: block by block, in the order of the plan.

use super::Gpu;
use super::session::{GpuSession, STORAGE};
use super::upload::Upload;
use crate::checkpoint::Weights;
use crate::error::Result;
use crate::memory::offload::Stream;
use crate::plan::{Named, Plan};
use std::ops::Range;
use std::sync::{Arc, PoisonError, Weak};

/// Buffers that blocks take turns in. Sessions that run one after the other share them.
#[derive(Debug)]
pub(super) struct Slots {
    /// The buffers of each slot.
    buffers: Vec<Vec<wgpu::Buffer>>,
}

/// What a session needs to bring its weights itself.
#[derive(Debug)]
pub(super) struct Streaming {
    pub(super) stream: Stream,
    weights: Weights,
    pub(super) slots: Arc<Slots>,
    /// Steps of each segment.
    steps: Vec<Range<usize>>,
    /// Slot of each streamed weight.
    slot_of: Vec<usize>,
}

impl Slots {
    pub(super) fn bytes(&self) -> u64 {
        self.buffers.iter().flatten().map(wgpu::Buffer::size).sum()
    }

    fn fits(&self, stream: &Stream) -> bool {
        let sizes = |slot: &Vec<wgpu::Buffer>| slot.iter().map(wgpu::Buffer::size).eq(stream.buffers.iter().copied());
        self.buffers.len() == stream.slots && self.buffers.iter().all(sizes)
    }
}

impl Gpu {
    /// Buffers for a stream: those of another session where they are the same.
    fn slots(&self, stream: &Stream) -> Arc<Slots> {
        let mut known = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|slots| slots.strong_count() > 0);
        if let Some(slots) = known.iter().filter_map(Weak::upgrade).find(|slots| slots.fits(stream)) {
            return slots;
        }
        let slot = |i: usize| {
            let buffer = |(k, &size): (usize, &u64)| self.buffer(&format!("slot {i}.{k}"), size, STORAGE);
            stream.buffers.iter().enumerate().map(buffer).collect()
        };
        let slots = Arc::new(Slots {
            buffers: (0..stream.slots).map(slot).collect(),
        });
        known.push(Arc::downgrade(&slots));
        slots
    }

    pub(super) fn streaming(&self, plan: &Plan, stream: Stream, weights: &Weights) -> Streaming {
        let mut slot_of = vec![0; plan.weights.len()];
        let mut steps = Vec::with_capacity(stream.segments.len());
        let mut start = 0;
        for (i, segment) in stream.segments.iter().enumerate() {
            let end = match plan.nodes.get(segment.nodes.end) {
                Some(next) => plan.steps.partition_point(|step| step.node < *next),
                None => plan.steps.len(),
            };
            steps.push(start..end);
            start = end;
            if i >= stream.first {
                segment
                    .weights
                    .iter()
                    .for_each(|&w| slot_of[w] = (i - stream.first) % stream.slots);
            }
        }
        Streaming {
            slots: self.slots(&stream),
            stream,
            weights: weights.clone(),
            steps,
            slot_of,
        }
    }
}

impl Streaming {
    /// Where a part of a weight lies; `None` if the weight stays on the device.
    pub(super) fn spot(&self, weight: usize, part: usize) -> Option<(&wgpu::Buffer, u64)> {
        let (buffer, offset) = self.stream.spots[weight].as_ref()?[part];
        Some((&self.slots.buffers[self.slot_of[weight]][buffer], offset))
    }

    /// Fills the slot of a segment.
    fn send(&self, upload: &mut Upload<'_>, plan: &Plan, segment: usize) -> Result<()> {
        for &weight in &self.stream.segments[segment].weights {
            let parts = 0..self.stream.spots[weight].as_ref().map_or(0, Vec::len);
            let spots: Vec<_> = parts.filter_map(|part| self.spot(weight, part)).collect();
            let Named { name, ty } = &plan.weights[weight];
            upload.fill(self.weights.checkpoint(), name, ty, &spots)?;
        }
        Ok(())
    }

    /// Submits the work of a plan, each block once its weights are on their way. What is queued runs in order, so that a slot may be filled
    /// again as soon as the work that reads it has been submitted: the next block is read while this one computes.
    pub(super) fn submit(&self, session: &GpuSession) -> Result<()> {
        let Stream {
            first,
            slots,
            ref segments,
            staging,
            ..
        } = self.stream;
        let mut upload = Upload::new(&session.gpu, staging);
        let mut sent = first;
        for (i, steps) in self.steps.iter().enumerate() {
            if i == first && sent == first {
                self.send(&mut upload, &session.plan, sent)?;
                sent += 1;
            }
            session.submit(&session.dispatches[steps.clone()]);
            let free = (i + 1).max(first) + slots;
            while sent < segments.len().min(free) {
                self.send(&mut upload, &session.plan, sent)?;
                sent += 1;
            }
        }
        Ok(())
    }
}

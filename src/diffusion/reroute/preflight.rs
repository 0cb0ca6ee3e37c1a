//! What a graph needs, held against what its device has, before anything is allocated.

use super::{Fallback, Job, Refusal};
use crate::backend::{Device, Planner};
use crate::checkpoint::Weights;
use crate::error::{Error, PlanError, Result};
use crate::graph::Graph;
use crate::memory::residency::{Home, WeightRef};
use crate::memory::route::{Capacity, Need, Setting, Verdict, decide};
use crate::plan::{Plan, Policy};

/// What is known before anything is allocated.
pub(super) enum Preflight {
    /// The device may try.
    Run(Graph, Need, Capacity),
    Move(Refusal),
}

/// Holds what a graph needs against what the device has.
pub(super) fn preflight(fallback: &Fallback, device: &Device, policy: &Policy, job: &Job<'_>) -> Result<Preflight> {
    let Some(capacity) = fallback.capacity(device) else {
        return Err(Error::Request("the CPU has no fallback".into()));
    };
    if let Some(lost) = &fallback.lost {
        return Ok(Preflight::Move(Refusal::failed(lost.clone().into(), None)));
    }
    let graph = (job.build)(job.weights, job.dtype)?;
    let planned = Planner::of(device, policy).plan(&graph);
    let (need, refused) = match planned {
        Ok(plan) => (need(&plan, device, job.weights)?, None),
        Err(error) => match too_large(&error) {
            Some(need) => (need, Some(error)),
            None => return Err(error),
        },
    };
    let setting = Setting {
        enabled: true,
        on_cpu: false,
        cpu_available: true,
        // Every graph of a single picture starts from its inputs.
        stateful: false,
        can_cut: false,
    };
    Ok(match decide(need, capacity, setting) {
        (Verdict::Run, _) => Preflight::Run(graph, need, capacity),
        _ => Preflight::Move(Refusal::before(
            refused.unwrap_or_else(|| shortage(need, capacity)),
            need,
            capacity,
        )),
    })
}

/// What a plan needs, with the weights that the device does not have yet.
pub(in crate::diffusion) fn need(plan: &Plan, device: &Device, weights: &Weights) -> Result<Need> {
    let Some(caps) = device.caps() else {
        return Ok(Need::default());
    };
    let weights = WeightRef::of(weights, &plan.weights, |_| true)?;
    let away = |weight: &&WeightRef| device.residency().resident(weight, Home::Device).is_none();
    let pending = weights.iter().filter(away).map(|weight| weight.ty().byte_len() as u64);
    Ok(Need::of(plan, pending.sum(), caps))
}

/// What a graph needs at least that cannot be planned, for its size.
pub(in crate::diffusion) fn too_large(error: &Error) -> Option<Need> {
    let bytes = match error {
        Error::Plan(PlanError::ExceedsLimit { bytes, .. }) => *bytes,
        Error::Plan(PlanError::IndexOverflow { .. }) => u64::MAX,
        _ => return None,
    };
    Some(Need {
        required: bytes,
        pending: 0,
        largest: bytes,
    })
}

/// The error that a lack of room is.
pub(in crate::diffusion) fn shortage(need: Need, capacity: Capacity) -> Error {
    match capacity.cap.filter(|cap| need.total() > *cap) {
        Some(limit) => PlanError::MaxMemory {
            wanted: need.total(),
            limit,
        }
        .into(),
        None => Error::OutOfMemory {
            wanted: need.total(),
            available: capacity.free,
        },
    }
}

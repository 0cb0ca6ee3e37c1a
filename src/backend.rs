//! Devices and sessions: one face for the GPU and the CPU.

use crate::checkpoint::Weights;
use crate::cpu::{Cpu, CpuSession};
use crate::error::{Error, GpuError, Result};
use crate::gpu::{Caps, Gpu, GpuSession};
use crate::graph::Graph;
use crate::memory::budget;
use crate::memory::faults::Faults;
use crate::memory::offload::{Hold, Stream, staging};
use crate::memory::residency::{Guard, Home, Residency, Store};
use crate::plan::{Bytes, Plan, Policy};
use crate::tensor::{DType, Tensor};
use std::sync::Arc;

/// Where graphs run.
#[derive(Clone, Debug)]
pub enum Device {
    /// A GPU through wgpu.
    Gpu(Gpu),
    /// This machine's CPU.
    Cpu(Cpu),
}

/// A graph that is ready to run: compiled, allocated, weights in place.
#[derive(Debug)]
pub enum Session {
    /// On a GPU.
    Gpu(GpuSession),
    /// On the CPU.
    Cpu(CpuSession),
}

/// Weights that stay on their device for as long as this lives, so that the next session finds them there.
#[derive(Debug)]
pub struct Kept(#[expect(dead_code, reason = "held, not read")] Guard);

impl From<Guard> for Kept {
    fn from(guard: Guard) -> Self {
        Self(guard)
    }
}

/// What plans are made for: a device, or what is known of one.
#[derive(Clone, Copy, Debug)]
pub struct Planner<'a> {
    /// Limits and features of the GPU; `None` is the CPU.
    pub caps: Option<&'a Caps>,
    /// How ways of operators are chosen.
    pub policy: &'a Policy,
}

impl<'a> Planner<'a> {
    /// For a device that is open.
    pub fn of(device: &'a Device, policy: &'a Policy) -> Self {
        Self {
            caps: device.caps(),
            policy,
        }
    }

    /// The plan of a graph: nothing is allocated.
    ///
    /// # Errors
    /// If the plan does not fit the device.
    pub fn plan(self, graph: &Graph) -> Result<Plan> {
        Ok(match self.caps {
            Some(caps) => Plan::gpu(graph, caps, self.policy)?,
            None => Plan::cpu(graph),
        })
    }

    /// Bytes that a plan takes there with all its weights.
    pub fn bytes(self, plan: &Plan) -> Bytes {
        match self.caps {
            Some(_) => plan.gpu_bytes(),
            None => plan.cpu_bytes(),
        }
    }

    /// Bytes that are on their way at most, beside `bytes`, while weights and inputs are sent there.
    pub fn staging(self, bytes: Bytes) -> u64 {
        self.caps.map_or(0, |_| staging(bytes.weights).max(bytes.inputs))
    }

    /// How the weights of a plan are streamed there; `None` where all of them stay.
    ///
    /// # Errors
    /// If not even the largest block fits the budget.
    pub fn stream(self, plan: &Plan, hold: Hold) -> Result<Option<Stream>> {
        Ok(hold.stream(plan, self.caps)?)
    }
}

impl Device {
    /// Compiles, allocates and uploads all that `graph` needs. `weights` is the checkpoint whose names the graph uses.
    ///
    /// # Errors
    /// If the plan does not fit the device, a weight cannot be loaded, or the driver refuses something.
    pub async fn prepare(&self, graph: &Graph, weights: &Weights, policy: &Policy) -> Result<Session> {
        self.prepare_held(graph, weights, policy, Hold::Resident).await
    }

    /// As [`Device::prepare`], with weights held as `hold` says: a plan is the same however its weights are held, and so is its result.
    /// Where there is no room, weights that nobody holds go first.
    ///
    /// # Errors
    /// As [`Device::prepare`], or if the weights do not fit their budget.
    pub async fn prepare_held(&self, graph: &Graph, weights: &Weights, policy: &Policy, hold: Hold) -> Result<Session> {
        match self.try_prepare(graph, weights, policy, hold).await {
            Err(error) if self.make_room(&error) => self.try_prepare(graph, weights, policy, hold).await,
            result => result,
        }
    }

    async fn try_prepare(&self, graph: &Graph, weights: &Weights, policy: &Policy, hold: Hold) -> Result<Session> {
        Ok(match self {
            Self::Gpu(gpu) => Session::Gpu(gpu.prepare(graph, weights, policy, hold).await?),
            Self::Cpu(cpu) => Session::Cpu(cpu.prepare(graph, weights, hold)?),
        })
    }

    /// Drops weights that nobody holds, if they are what a session has had no room for.
    fn make_room(&self, error: &Error) -> bool {
        let evicted = match error {
            // A GPU that has just refused is not to be asked.
            Error::Gpu(GpuError::OutOfMemory { wanted }) => self.residency().evict(Home::Device, *wanted, || 0),
            Error::OutOfMemory { wanted, .. } => {
                let free = || budget::available().unwrap_or(0);
                self.residency().evict(Home::Host, *wanted, free)
            }
            _ => 0,
        };
        evicted > 0
    }

    /// The same device with weights of its own: what one engine holds is not another's, and goes with it.
    #[must_use]
    pub fn scoped(&self) -> Self {
        match self {
            Self::Gpu(gpu) => Self::Gpu(gpu.scoped()),
            Self::Cpu(cpu) => Self::Cpu(cpu.scoped()),
        }
    }

    /// As [`Device::scoped`], with weights that stay after their last session until there is no room for another.
    #[must_use]
    pub fn keeping(&self) -> Self {
        match self {
            Self::Gpu(gpu) => Self::Gpu(gpu.keeping()),
            Self::Cpu(cpu) => Self::Cpu(cpu.keeping()),
        }
    }

    /// Where its weights are.
    pub fn residency(&self) -> &Residency {
        match self {
            Self::Gpu(gpu) => gpu.residency(),
            Self::Cpu(cpu) => cpu.residency(),
        }
    }

    /// Faults on demand: for tests.
    #[doc(hidden)]
    pub fn faults(&self) -> &Faults {
        match self {
            Self::Gpu(gpu) => gpu.faults(),
            Self::Cpu(cpu) => cpu.faults(),
        }
    }

    /// Who brings weights here, to move them.
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Gpu(gpu) => gpu.store(),
            Self::Cpu(cpu) => cpu.store(),
        }
    }

    /// The plan alone: nothing is allocated.
    ///
    /// # Errors
    /// If the plan does not fit the device.
    pub fn plan(&self, graph: &Graph, policy: &Policy) -> Result<Plan> {
        Planner::of(self, policy).plan(graph)
    }

    /// Element types that activations can have here, best first. The CPU computes in `f32` only.
    pub fn dtypes(&self) -> &'static [DType] {
        match self {
            Self::Gpu(gpu) if gpu.caps().f16 => &[DType::F32, DType::F16],
            _ => &[DType::F32],
        }
    }

    /// Waits until what was dropped is freed.
    ///
    /// # Errors
    /// If the device is lost.
    pub async fn settle(&self) -> Result<()> {
        match self {
            Self::Gpu(gpu) => Ok(gpu.idle().await?),
            Self::Cpu(_) => Ok(()),
        }
    }

    /// What the adapter can do; `None` on the CPU.
    pub fn caps(&self) -> Option<&Caps> {
        match self {
            Self::Gpu(gpu) => Some(gpu.caps()),
            Self::Cpu(_) => None,
        }
    }

    /// Name for people.
    pub fn name(&self) -> String {
        match self {
            Self::Gpu(gpu) => gpu.caps().to_string(),
            Self::Cpu(_) => "CPU".into(),
        }
    }
}

impl Session {
    /// Runs the graph and reads the results back, in the order of [`Plan::outputs`]. Inputs that are not given keep the
    /// values of the run before.
    ///
    /// # Errors
    /// If an input is unknown or has another shape, or the device fails.
    pub async fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        match self {
            Self::Gpu(session) => session.run(inputs).await,
            Self::Cpu(session) => session.run(inputs),
        }
    }

    /// Runs the graph `times` over on the inputs it has and reads nothing back: for benches.
    ///
    /// # Errors
    /// If the device fails.
    pub fn repeat(&mut self, times: u32) -> Result<()> {
        match self {
            Self::Gpu(session) => session.repeat(times),
            Self::Cpu(session) => session.repeat(times),
        }
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        match self {
            Self::Gpu(session) => session.plan(),
            Self::Cpu(session) => session.plan(),
        }
    }

    /// Bytes that the plan promised.
    pub fn planned(&self) -> Bytes {
        match self {
            Self::Gpu(session) => session.planned(),
            Self::Cpu(session) => session.planned(),
        }
    }

    /// How its weights are streamed, if they are.
    pub fn stream(&self) -> Option<&Stream> {
        match self {
            Self::Gpu(session) => session.stream(),
            Self::Cpu(session) => session.stream(),
        }
    }

    /// Each weight: what tells it from others on the device, its bytes as planned, and as allocated.
    pub(crate) fn weights(&self) -> Vec<(usize, u64, u64)> {
        match self {
            Self::Gpu(session) => session.weights(),
            Self::Cpu(session) => session.weights(),
        }
    }

    /// Keeps the weights when the session goes.
    pub fn keep_weights(&self) -> Kept {
        Kept(match self {
            Self::Gpu(session) => session.keep_weights(),
            Self::Cpu(session) => session.keep_weights(),
        })
    }

    /// Bytes really allocated, as the allocations themselves say.
    pub fn allocated(&self) -> Bytes {
        match self {
            Self::Gpu(session) => session.allocated(),
            Self::Cpu(session) => session.allocated(),
        }
    }
}

/// Index of the input `name`, if `tensor` fits it.
pub(crate) fn find_input(plan: &Plan, name: &str, tensor: &Tensor) -> Result<usize> {
    let index = plan.inputs.iter().position(|i| i.name == name);
    let index = index.ok_or_else(|| Error::Request(format!("the graph has no input `{name}`")))?;
    let wanted = &plan.inputs[index].ty;
    if *wanted != tensor.ty {
        return Err(Error::Request(format!(
            "input `{name}` is {}, the graph wants {wanted}",
            tensor.ty
        )));
    }
    if tensor.blocks.is_empty() && tensor.data.len() != wanted.count() {
        let (values, wanted) = (tensor.data.len(), wanted.count());
        return Err(Error::Request(format!(
            "input `{name}` has {values} values for {wanted} elements"
        )));
    }
    Ok(index)
}

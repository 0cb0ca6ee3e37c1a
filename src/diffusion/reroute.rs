//! The CPU in place of a device that cannot run a graph of the autoencoder.
//!
//! Before a graph is prepared, what it needs is held against what the device has; and where the device fails nevertheless, the graph
//! moves too. Both ways lead through [`reroute`], which puts everything back whatever happens, and only that graph moves: the next one
//! is asked for again.

use crate::backend::{Device, Planner, Session};
use crate::checkpoint::Weights;
use crate::cpu::Cpu;
use crate::diffusion::vae::VaeOptions;
use crate::engine::Event;
use crate::error::{Error, GpuError, PlanError, Result};
use crate::graph::Graph;
use crate::memory::budget;
use crate::memory::route::{Capacity, Need, Ratio, Setting, Verdict, decide};
use crate::plan::{Plan, Policy};
use crate::tensor::DType;
use std::collections::BTreeSet;

/// Whether graphs move to the CPU, and what has become of those that did.
#[derive(Debug, Default)]
pub(super) struct Fallback {
    enabled: bool,
    ratio: Option<Ratio>,
    /// Bytes of the device that may be taken, as the user says.
    pub(super) cap: Option<u64>,
    /// Why it has ended.
    ended: Option<String>,
    lost: Option<GpuError>,
    /// Graphs that have moved.
    pub(super) moved: usize,
    said: BTreeSet<String>,
    faults: Vec<Fault>,
}

/// A fault that a test asks for.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The n-th run on the GPU from now on fails, counted from 0.
    Gpu(usize, GpuError),
    /// The next graph that moves finds no memory on the CPU.
    Cpu,
    /// The next graph that has moved cannot be put back.
    Restore,
}

/// Why a graph does not run on its device.
#[derive(Debug)]
pub(super) struct Refusal {
    /// What the caller hears if the CPU cannot run it either.
    pub(super) error: Error,
    /// Whether the device has failed; otherwise nobody has tried.
    failed: bool,
    numbers: Option<(Need, Capacity)>,
}

impl Refusal {
    pub(super) fn before(error: Error, need: Need, capacity: Capacity) -> Self {
        Self {
            error,
            failed: false,
            numbers: Some((need, capacity)),
        }
    }

    pub(super) fn failed(error: Error, numbers: Option<(Need, Capacity)>) -> Self {
        Self {
            error,
            failed: true,
            numbers,
        }
    }

    fn note(&self, task: &str, dtype: DType, device: &Device) -> String {
        let why = match self.failed {
            true => self.error.to_string(),
            false => "it has no room".into(),
        };
        let numbers = self.numbers.map_or(String::new(), |(need, capacity)| {
            let known = |bytes: u64| match bytes {
                u64::MAX => "unknown".to_owned(),
                bytes => bytes.to_string(),
            };
            format!(
                "; {} bytes required and {} of weights pending, budget {}, largest buffer {} of {}, free {}, ratio {}",
                need.required,
                need.pending,
                known(capacity.budget()),
                need.largest,
                capacity.max_buffer,
                known(capacity.free.unwrap_or(u64::MAX)),
                capacity.ratio.get()
            )
        });
        let single = match dtype {
            DType::F32 => "",
            _ => ", with activations in f32",
        };
        format!(
            "{task} on the CPU in place of {}{single}: {why}{numbers}",
            device.name()
        )
    }
}

impl Fallback {
    pub(super) fn new(options: &VaeOptions) -> Self {
        Self {
            enabled: options.fallback,
            ratio: options.fallback_ratio.and_then(Ratio::new),
            cap: options.max_memory,
            ..Self::default()
        }
    }

    /// Whether a graph could move from `device`.
    pub(super) fn can(&self, device: &Device) -> bool {
        self.enabled && self.ended.is_none() && device.caps().is_some()
    }

    /// Why it has ended, if it has.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    pub(super) fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// What a GPU has; `taken` bytes of it have been given to the autoencoder already.
    pub(super) fn capacity(&self, device: &Device, taken: u64) -> Option<Capacity> {
        let caps = device.caps()?;
        let free = budget::free(Some(caps));
        Some(Capacity::of(
            caps,
            free,
            self.ratio,
            self.cap.map(|cap| cap.saturating_sub(taken)),
        ))
    }

    /// Whether a failure of the device is one that the CPU may mend.
    pub(super) fn takes(&self, error: &Error, device: &Device) -> bool {
        let of_device = matches!(
            error,
            Error::Gpu(GpuError::OutOfMemory { .. } | GpuError::Validation(_) | GpuError::DeviceLost(_))
        );
        of_device && self.can(device)
    }

    /// To be called before each run on the device.
    ///
    /// # Errors
    /// If a test asks for one.
    pub(super) fn before_run(&mut self) -> Result<()> {
        let mut failure = None;
        self.faults.retain_mut(|fault| match fault {
            Fault::Gpu(0, error) => {
                failure = Some(error.clone());
                false
            }
            Fault::Gpu(count, _) => {
                *count -= 1;
                true
            }
            _ => true,
        });
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn strikes(&mut self, wanted: &Fault) -> bool {
        let found = self.faults.iter().position(|fault| fault == wanted);
        found.map(|index| self.faults.remove(index)).is_some()
    }

    /// Says that a task runs on the CPU, once.
    pub(super) fn say(
        &mut self,
        (task, dtype): (&str, DType),
        refusal: &Refusal,
        device: &Device,
        on: &mut dyn FnMut(Event),
    ) {
        if self.said.insert(task.to_owned()) {
            on(Event::Note(refusal.note(task, dtype, device)));
        }
    }
}

/// Weights of a graph that are on the CPU for a while.
#[derive(Debug)]
struct Away {
    cpu: Cpu,
}

impl Away {
    /// Brings the weights within reach of the CPU. Those that the device has stay there; a session of the CPU reads its own, which go
    /// with it.
    fn switch() -> Self {
        Self { cpu: Cpu::default() }
    }

    /// Puts everything back as it was.
    ///
    /// # Errors
    /// If the device does not work any more. A lost one is no failure: there is nothing to put back.
    async fn restore(self, fallback: &mut Fallback, device: &Device) -> Result<()> {
        drop(self.cpu);
        if fallback.strikes(&Fault::Restore) {
            return Err(GpuError::OutOfMemory { wanted: 0 }.into());
        }
        let Device::Gpu(gpu) = device else { return Ok(()) };
        match gpu.idle().await {
            Err(lost @ GpuError::DeviceLost(_)) => fallback.lost = Some(lost),
            other => other?,
        }
        Ok(())
    }
}

/// Runs a graph on the CPU in place of `device`: brings its weights there, runs it, and puts everything back on every way out. If that
/// cannot be done, the fallback has ended.
///
/// # Errors
/// The one of the `refusal` if the CPU cannot run it either; [`Error::Unrestored`] if something could not be put back; or if it was
/// cancelled.
pub(super) async fn reroute<T>(
    fallback: &mut Fallback,
    device: &Device,
    refusal: Refusal,
    on: &mut dyn FnMut(Event),
    run: impl AsyncFnOnce(&Device, &mut dyn FnMut(Event)) -> Result<T>,
) -> Result<T> {
    if let Error::Gpu(lost @ GpuError::DeviceLost(_)) = &refusal.error {
        fallback.lost = Some(lost.clone());
    }
    let known = fallback.lost.is_some();
    let away = Away::switch();
    let result = match fallback.strikes(&Fault::Cpu) {
        true => Err(Error::OutOfMemory {
            wanted: 0,
            available: None,
        }),
        false => run(&Device::Cpu(away.cpu.clone()), on).await,
    };
    if let Err(error) = away.restore(fallback, device).await {
        fallback.ended = Some(error.to_string());
        return Err(Error::Unrestored(Box::new(error)));
    }
    if let Some(lost) = fallback.lost.as_ref().filter(|_| !known) {
        on(Event::Note(format!("{lost}; what the CPU has computed is kept")));
    }
    match result {
        Ok(value) => {
            fallback.moved += 1;
            tracing::debug!(moved = fallback.moved, "put back after a run on the CPU");
            Ok(value)
        }
        Err(Error::Cancelled) => Err(Error::Cancelled),
        Err(error) => {
            tracing::warn!("the CPU cannot run it either: {error}");
            Err(refusal.error)
        }
    }
}

/// Where graphs run.
#[derive(Debug)]
pub(super) struct Site<'a> {
    pub(super) device: &'a Device,
    pub(super) policy: &'a Policy,
    /// None where graphs stay on the device whatever happens.
    pub(super) fallback: Option<&'a mut Fallback>,
    /// For notes.
    pub(super) task: &'a str,
}

/// A graph that is to be run.
pub(super) struct Job<'a> {
    /// Makes it, for weights and a storage of activations.
    pub(super) build: &'a dyn Fn(&Weights, DType) -> Result<Graph>,
    pub(super) weights: &'a Weights,
    pub(super) dtype: DType,
    /// Names of weights that the device has, and their bytes.
    pub(super) held: &'a [(String, u64)],
}

impl Site<'_> {
    /// Runs `work` on a session of a graph: on the device, or on the CPU in single precision. `work` may be called twice, and hears whether
    /// it is on the CPU in place of the device.
    ///
    /// # Errors
    /// As `work`, as [`Device::prepare`] and as [`reroute`].
    pub(super) async fn run<T>(
        &mut self,
        job: &Job<'_>,
        on: &mut dyn FnMut(Event),
        mut work: impl AsyncFnMut(&mut Session, Option<&mut Fallback>, &mut dyn FnMut(Event)) -> Result<T>,
    ) -> Result<T> {
        let device = self.device;
        let Some(fallback) = self.fallback.as_deref_mut().filter(|f| f.can(device)) else {
            let graph = (job.build)(job.weights, job.dtype)?;
            let mut session = device.prepare(&graph, job.weights, self.policy).await?;
            return work(&mut session, None, on).await;
        };
        let refusal = match preflight(fallback, device, self.policy, job)? {
            Preflight::Move(refusal) => refusal,
            Preflight::Run(graph, need, capacity) => {
                let result = match device.prepare(&graph, job.weights, self.policy).await {
                    Ok(mut session) => work(&mut session, Some(&mut *fallback), on).await,
                    Err(error) => Err(error),
                };
                match result {
                    Err(error) if fallback.takes(&error, device) => Refusal::failed(error, Some((need, capacity))),
                    result => return result,
                }
            }
        };
        fallback.say((self.task, job.dtype), &refusal, device, on);
        let policy = self.policy;
        let weights = for_cpu(job.weights, policy);
        reroute(fallback, device, refusal, on, async |cpu, on| {
            let graph = (job.build)(&weights, DType::F32)?;
            let mut session = cpu.prepare(&graph, &weights, policy).await?;
            work(&mut session, None, on).await
        })
        .await
    }
}

/// Weights as the CPU has them.
pub(super) fn for_cpu(weights: &Weights, policy: &Policy) -> Weights {
    let (path, _) = policy.convrot.resolve(None);
    weights.clone().with_convrot(path)
}

/// What is known before anything is allocated.
enum Preflight {
    /// The device may try.
    Run(Graph, Need, Capacity),
    Move(Refusal),
}

/// Holds what a graph needs against what the device has.
fn preflight(fallback: &Fallback, device: &Device, policy: &Policy, job: &Job<'_>) -> Result<Preflight> {
    let taken = job.held.iter().map(|(_, bytes)| bytes).sum();
    let Some(capacity) = fallback.capacity(device, taken) else {
        return Err(Error::Request("the CPU has no fallback".into()));
    };
    if let Some(lost) = &fallback.lost {
        return Ok(Preflight::Move(Refusal::failed(lost.clone().into(), None)));
    }
    let graph = (job.build)(job.weights, job.dtype)?;
    let planned = Planner::of(device, policy).plan(&graph);
    let (need, refused) = match planned {
        Ok(plan) => (pending(&plan, device, job.held), None),
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

fn pending(plan: &Plan, device: &Device, held: &[(String, u64)]) -> Need {
    let there = |name: &str| held.iter().any(|(known, _)| known == name);
    let pending = plan.weights.iter().filter(|weight| !there(&weight.name));
    let pending = pending.map(|weight| weight.ty.byte_len() as u64).sum();
    match device.caps() {
        Some(caps) => Need::of(plan, pending, caps),
        None => Need::default(),
    }
}

/// What a graph needs at least that cannot be planned, for its size.
pub(super) fn too_large(error: &Error) -> Option<Need> {
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
pub(super) fn shortage(need: Need, capacity: Capacity) -> Error {
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

//! The CPU in place of a device that cannot run a graph of the autoencoder.
//!
//! Before a graph is prepared, what it needs is held against what the device has; and where the device fails nevertheless, the graph
//! moves too. Both ways lead through [`reroute`], which puts everything back whatever happens, and only that graph moves: the next one
//! is asked for again.

mod preflight;

pub(super) use preflight::{need, shortage, too_large};

use crate::backend::{Device, Kept, Session};
use crate::checkpoint::Weights;
use crate::cpu::Cpu;
use crate::diffusion::vae::VaeOptions;
use crate::engine::Event;
use crate::error::{Error, GpuError, Result};
use crate::graph::Graph;
use crate::memory::budget;
use crate::memory::residency::{Guard, Home, WeightRef};
use crate::memory::route::{Capacity, Need, Ratio};
use crate::plan::{Plan, Policy};
use crate::tensor::DType;
use preflight::{Preflight, preflight};
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
    /// Kept where a test asks for it.
    pub(super) moves: Option<Vec<Moved>>,
}

/// Bytes of weights around a graph that has moved: before it, while the CPU has it, and after it; on the host and on the device each.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Before.
    pub before: [u64; 2],
    /// Meanwhile.
    pub away: [u64; 2],
    /// After.
    pub after: [u64; 2],
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

    /// What a GPU has; of a cap, what the weights there leave.
    pub(super) fn capacity(&self, device: &Device) -> Option<Capacity> {
        let caps = device.caps()?;
        let free = budget::free(Some(caps));
        let taken = device.residency().bytes(Home::Device);
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

/// Weights that stay on the device from graph to graph.
#[derive(Debug, Default)]
pub(super) struct Holding {
    weights: Vec<WeightRef>,
    kept: Vec<Kept>,
}

impl Holding {
    /// Holds the weights of a session, which are those of a checkpoint.
    ///
    /// # Errors
    /// If the checkpoint has no such weights.
    pub(super) fn of(session: &Session, weights: &Weights) -> Result<Self> {
        Ok(Self {
            weights: WeightRef::of(weights, &session.plan().weights, |_| true)?,
            kept: vec![session.keep_weights()],
        })
    }

    /// Holds what another holds too.
    pub(super) fn join(&mut self, other: Self) {
        let held = self.weights.len();
        let new = |weight: &WeightRef| !self.weights[..held].iter().any(|known| known.is_tied_to(weight));
        let new: Vec<_> = other.weights.into_iter().filter(new).collect();
        if !new.is_empty() {
            self.kept.extend(other.kept);
        }
        self.weights.extend(new);
    }

    /// What keeps them.
    pub(super) fn into_kept(self) -> Vec<Kept> {
        self.kept
    }
}

impl From<Vec<Kept>> for Holding {
    fn from(kept: Vec<Kept>) -> Self {
        Self {
            weights: Vec::new(),
            kept,
        }
    }
}

/// Weights that are away from the device for a while.
#[derive(Debug)]
struct Away {
    /// Those that were held there.
    weights: Vec<WeightRef>,
    /// Holds those of the graph on the host.
    host: Guard,
}

impl Away {
    /// Lets go of what is held on the device, and moves the weights of a graph to the host. What sessions hold on the device stays there,
    /// and the host has a copy of its own.
    ///
    /// # Errors
    /// If one cannot be brought, or there is no room: then nothing has moved.
    fn switch(device: &Device, graph: &[WeightRef], holding: &mut Holding, host: &Cpu) -> Result<Self> {
        let Holding { weights, kept } = std::mem::take(holding);
        drop(kept);
        let residency = device.residency();
        let free = |weight: &&WeightRef| Home::ALL.iter().all(|home| residency.holders(weight, *home) == 0);
        let free: Vec<_> = graph.iter().filter(free).cloned().collect();
        let moved = residency
            .reassign(&free, Home::Host, &host.store())
            .and_then(|()| residency.lock(graph, Home::Host, &host.store()));
        match moved {
            Ok(host) => Ok(Self { weights, host }),
            Err(error) => {
                bring(weights, device, holding)?;
                Err(error)
            }
        }
    }

    /// Puts everything back as it was.
    ///
    /// # Errors
    /// If the weights cannot be brought, or the device does not work any more. A lost one is no failure: there is nothing to bring back.
    async fn restore(self, fallback: &mut Fallback, device: &Device, holding: &mut Holding) -> Result<()> {
        drop(self.host);
        if fallback.strikes(&Fault::Restore) {
            return Err(GpuError::OutOfMemory { wanted: 0 }.into());
        }
        let mut result = device.settle().await;
        if result.is_ok() {
            result = bring(self.weights, device, holding);
        }
        if result.is_ok() {
            // Memory that is not there is an error of the queue.
            result = device.settle().await;
        }
        match result {
            Err(Error::Gpu(lost @ GpuError::DeviceLost(_))) => {
                fallback.lost = Some(lost);
                Ok(())
            }
            result => result,
        }
    }
}

/// Brings weights to the device and holds them there.
fn bring(weights: Vec<WeightRef>, device: &Device, holding: &mut Holding) -> Result<()> {
    if weights.is_empty() {
        return Ok(());
    }
    let guard = device.residency().lock(&weights, Home::Device, &device.store())?;
    *holding = Holding {
        weights,
        kept: vec![guard.into()],
    };
    Ok(())
}

/// Runs a graph on the CPU in place of `device`: brings its weights there, runs it, and puts everything back on every way out. If that
/// cannot be done, the fallback has ended. `graph` is what the CPU reads, `holding` what is held on the device meanwhile.
///
/// # Errors
/// The one of the `refusal` if the CPU cannot run it either; [`Error::Unrestored`] if something could not be put back; or if it was
/// cancelled.
pub(super) async fn reroute<T>(
    fallback: &mut Fallback,
    device: &Device,
    refusal: Refusal,
    (graph, holding): (&[WeightRef], &mut Holding),
    on: &mut dyn FnMut(Event),
    run: impl AsyncFnOnce(&Device, &mut dyn FnMut(Event)) -> Result<T>,
) -> Result<T> {
    let Device::Gpu(gpu) = device else {
        return Err(refusal.error);
    };
    if let Error::Gpu(lost @ GpuError::DeviceLost(_)) = &refusal.error {
        fallback.lost = Some(lost.clone());
    }
    let (known, host) = (fallback.lost.is_some(), gpu.host());
    let bytes = || Home::ALL.map(|home| device.residency().real_bytes(home));
    let mut moved = Moved {
        before: bytes(),
        ..Moved::default()
    };
    let away = match Away::switch(device, graph, holding, &host) {
        Ok(away) => away,
        Err(error) => {
            tracing::warn!("the weights cannot move to the CPU: {error}");
            return Err(refusal.error);
        }
    };
    moved.away = bytes();
    let result = match fallback.strikes(&Fault::Cpu) {
        true => Err(Error::OutOfMemory {
            wanted: 0,
            available: None,
        }),
        false => run(&Device::Cpu(host), on).await,
    };
    if let Err(error) = away.restore(fallback, device, holding).await {
        fallback.ended = Some(error.to_string());
        return Err(Error::Unrestored(Box::new(error)));
    }
    moved.after = bytes();
    if let Some(moves) = &mut fallback.moves {
        moves.push(moved);
    }
    if let Some(lost) = fallback.lost.as_ref().filter(|_| !known) {
        on(Event::Note(format!("{lost}; what the CPU has computed is kept")));
    }
    match result {
        Ok(value) => {
            fallback.moved += 1;
            tracing::debug!(count = fallback.moved, ?moved, "put back after a run on the CPU");
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
        holding: &mut Holding,
        on: &mut dyn FnMut(Event),
        mut work: impl AsyncFnMut(&mut Session, Option<&mut Fallback>, &mut dyn FnMut(Event)) -> Result<T>,
    ) -> Result<T> {
        let device = self.device;
        let Some(fallback) = self.fallback.as_deref_mut() else {
            let graph = (job.build)(job.weights, job.dtype)?;
            let mut session = device.prepare(&graph, job.weights, self.policy).await?;
            return work(&mut session, None, on).await;
        };
        if !fallback.can(device) {
            let graph = (job.build)(job.weights, job.dtype)?;
            let mut session = device.prepare(&graph, job.weights, self.policy).await?;
            return work(&mut session, Some(fallback), on).await;
        }
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
        let graph = (job.build)(&weights, DType::F32)?;
        let needed = cpu_weights(&graph, &weights)?;
        reroute(fallback, device, refusal, (&needed, holding), on, async |cpu, on| {
            let mut session = cpu.prepare(&graph, &weights, policy).await?;
            work(&mut session, None, on).await
        })
        .await
    }
}

/// What the CPU reads to run a graph.
pub(super) fn cpu_weights(graph: &Graph, weights: &Weights) -> Result<Vec<WeightRef>> {
    Ok(WeightRef::of(weights, &Plan::cpu(graph).weights, |_| true)?)
}

/// Weights as the CPU has them.
pub(super) fn for_cpu(weights: &Weights, policy: &Policy) -> Weights {
    let (path, _) = policy.convrot.resolve(None);
    weights.clone().with_convrot(path)
}

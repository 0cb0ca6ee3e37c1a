//! An autoencoder on a device: the one place where latents become pictures and pictures latents.
//!
//! # Memory
#![doc = include_str!("memory.md")]

mod ready;
mod run;
mod task;

pub use task::{Storage, VaeDType, VaeOptions, VaeTask};

use super::reroute::{Fallback, Holding, Refusal};
pub use super::reroute::{Fault, Moved};
use super::tiled::{Ran, Schedule};
use crate::backend::{Device, Kept, Session};
use crate::checkpoint::Weights;
use crate::engine::{Cancel, Event};
use crate::error::{Error, Result};
use crate::models::Vae;
use crate::plan::{Plan, Policy};
use crate::tensor::{DType, Tensor};
use std::collections::BTreeSet;

/// Sessions that are kept for the next picture.
const KEPT: usize = 4;

/// An autoencoder on a device.
#[derive(Debug)]
pub struct VaeRunner {
    vae: Vae,
    weights: Weights,
    device: Device,
    dtype: DType,
    policy: Policy,
    options: VaeOptions,
    sessions: Vec<(VaeTask, DType, Session)>,
    tiled: Vec<Tiled>,
    // Tasks that the CPU runs the next time, and why.
    away: Vec<(VaeTask, DType, Refusal)>,
    fallback: Fallback,
    noted: BTreeSet<&'static str>,
    // The last note on tiles, which is not repeated for the same tiles.
    said: Option<(VaeTask, String)>,
    last: Option<Storage>,
}

/// A task that runs in tiles.
#[derive(Debug)]
struct Tiled {
    task: VaeTask,
    dtype: DType,
    schedule: Schedule,
    // Its largest session takes the room that all of them need, one after the other.
    reserved: Option<Session>,
    held: Holding,
    ran: Option<Ran>,
}

impl VaeRunner {
    /// Weights follow when the first session needs them.
    pub fn new((vae, weights): (Vae, Weights), device: Device, dtype: DType, policy: Policy) -> Self {
        let (path, _) = policy.convrot.resolve(device.caps());
        Self {
            vae,
            weights: weights.with_convrot(path),
            device: device.scoped(),
            dtype,
            policy,
            options: VaeOptions::default(),
            sessions: Vec::new(),
            tiled: Vec::new(),
            away: Vec::new(),
            fallback: Fallback::new(&VaeOptions::default()),
            noted: BTreeSet::new(),
            said: None,
            last: None,
        }
    }

    /// Sets how it runs.
    pub fn with_options(mut self, options: VaeOptions) -> Self {
        self.fallback = Fallback::new(&options);
        self.options = options;
        self
    }

    /// Graphs that have run on the CPU in place of the device.
    pub fn reroutes(&self) -> usize {
        self.fallback.moved
    }

    /// Why no more graphs move to the CPU, if something could not be put back after one.
    pub fn fallback_ended(&self) -> Option<&str> {
        self.fallback.ended()
    }

    /// Makes something fail: for tests.
    #[doc(hidden)]
    pub fn inject(&mut self, fault: Fault) {
        self.fallback.inject(fault);
    }

    /// What has moved since this was first asked: for tests.
    #[doc(hidden)]
    pub fn moves(&mut self) -> &[Moved] {
        self.fallback.moves.get_or_insert_default()
    }

    /// The model and its sizes.
    pub fn vae(&self) -> &Vae {
        &self.vae
    }

    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Storage of activations that the options ask for, where the device has it.
    pub fn dtype(&self) -> DType {
        self.options.dtype.storage(self.dtype, self.device.caps())
    }

    /// How the activations of the last result were stored.
    pub fn last(&self) -> Option<Storage> {
        self.last
    }

    /// Sessions that are ready, with their tasks.
    pub fn sessions(&self) -> impl Iterator<Item = (VaeTask, &Session)> {
        self.sessions.iter().map(|(task, _, session)| (*task, session))
    }

    /// The plan of a task as a whole: nothing is allocated.
    ///
    /// # Errors
    /// If the task does not fit the model or the device.
    pub fn plan(&self, task: VaeTask) -> Result<Plan> {
        let graph = task.graph(&self.vae, &self.weights, self.dtype())?;
        self.device.plan(&graph, &self.policy)
    }

    /// Makes a task ready to run as a whole: compiles its kernels, allocates its buffers, uploads its weights.
    ///
    /// # Errors
    /// If the task does not fit the model or the device, or a weight cannot be loaded.
    pub async fn prepare(&mut self, task: VaeTask) -> Result<&mut Session> {
        self.prepare_as(task, self.dtype()).await
    }

    async fn prepare_as(&mut self, task: VaeTask, dtype: DType) -> Result<&mut Session> {
        let ready = self.sessions.iter().position(|(t, d, _)| (*t, *d) == (task, dtype));
        let entry = match ready {
            Some(index) => self.sessions.remove(index),
            None => {
                let _kept = self.make_way(task);
                if self.sessions.len() >= KEPT {
                    self.sessions.remove(0);
                }
                let graph = task.graph(&self.vae, &self.weights, dtype)?;
                tracing::debug!(?task, nodes = graph.nodes().len(), "prepare");
                let session = self.device.prepare(&graph, &self.weights, &self.policy).await?;
                (task, dtype, session)
            }
        };
        // The latest is last, so that the first is the one to go.
        self.sessions.push(entry);
        let last = self.sessions.len() - 1;
        Ok(&mut self.sessions[last].2)
    }

    /// Frees what a task has in other storage or tiles: there may be no room for both. The weights stay for as long as the
    /// result lives.
    fn make_way(&mut self, task: VaeTask) -> Vec<Kept> {
        let mut kept = Vec::new();
        self.sessions.retain(|(t, _, session)| {
            if *t == task {
                kept.push(session.keep_weights());
            }
            *t != task
        });
        for tiled in self.tiled.extract_if(.., |tiled| tiled.task == task) {
            kept.extend(tiled.held.into_kept());
        }
        kept
    }

    /// Frees every session and the weights that only they held.
    pub fn release(&mut self) {
        self.keep_only(|_| false);
    }

    /// Frees what belongs to other tasks.
    pub(super) fn keep_only(&mut self, keep: impl Fn(VaeTask) -> bool) {
        self.sessions.retain(|(task, ..)| keep(*task));
        self.tiled.retain(|tiled| keep(tiled.task));
        self.away.retain(|(task, ..)| keep(*task));
    }

    /// Sets the most bytes that may be taken on the device, weights included.
    pub(super) fn set_max_memory(&mut self, bytes: Option<u64>) {
        self.options.max_memory = bytes;
        self.fallback.cap = bytes;
    }

    /// Whether a task has its session, or its tiles.
    pub(super) fn is_ready(&self, task: VaeTask) -> bool {
        let whole = self
            .sessions
            .iter()
            .any(|(t, dtype, _)| (*t, *dtype) == (task, self.dtype()));
        let away = self
            .away
            .iter()
            .any(|(t, dtype, _)| (*t, *dtype) == (task, self.dtype()));
        whole || away || self.find(task, self.dtype()).is_some()
    }

    /// What ran in tiles: bytes and ways.
    pub fn tiled(&self) -> impl Iterator<Item = &Ran> {
        self.tiled.iter().filter_map(|tiled| tiled.ran.as_ref())
    }

    /// A latent `[1, c, h, w]` as the transformer has it to a picture `[1, 3, f h, f w]`, nominally in 0..=1 but not clamped.
    ///
    /// # Errors
    /// If the latent has another shape, it does not fit, the device fails, or the picture is not finite.
    pub async fn decode(&mut self, latent: &Tensor) -> Result<Tensor> {
        self.decode_with(latent, &mut |_| (), &Cancel::new()).await
    }

    /// As [`VaeRunner::decode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`VaeRunner::decode`], or if it was cancelled.
    pub async fn decode_with(&mut self, latent: &Tensor, on: &mut dyn FnMut(Event), cancel: &Cancel) -> Result<Tensor> {
        let channels = self.vae.latent_channels();
        let &[1, c, height, width] = &latent.ty.shape[..] else {
            return Err(misshapen("latent", channels, latent));
        };
        if c != channels {
            return Err(misshapen("latent", channels, latent));
        }
        let task = VaeTask::Decode { height, width };
        self.run_finite(task, latent, on, cancel).await
    }

    /// A picture `[1, 3, f h, f w]` in 0..=1 to the mean of its latent `[1, c, h, w]`, as the transformer takes it.
    ///
    /// # Errors
    /// If the picture has another shape, it does not fit, the device fails, or the latent is not finite.
    pub async fn encode(&mut self, picture: &Tensor) -> Result<Tensor> {
        self.encode_with(picture, &mut |_| (), &Cancel::new()).await
    }

    /// As [`VaeRunner::encode`]. `on` hears of tiles; `cancel` stops it within one of them.
    ///
    /// # Errors
    /// As [`VaeRunner::encode`], or if it was cancelled.
    pub async fn encode_with(
        &mut self,
        picture: &Tensor,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        let (channels, factor) = (self.vae.image_channels(), self.vae.factor());
        let &[1, c, height, width] = &picture.ty.shape[..] else {
            return Err(misshapen("picture", channels, picture));
        };
        if c != channels || height % factor != 0 || width % factor != 0 {
            return Err(misshapen("picture", channels, picture));
        }
        let task = VaeTask::Encode {
            height: height / factor,
            width: width / factor,
        };
        self.run_finite(task, picture, on, cancel).await
    }

    fn note_once(&mut self, what: &'static str, note: String, on: &mut dyn FnMut(Event)) {
        if self.noted.insert(what) {
            on(Event::Note(note));
        }
    }
}

fn misshapen(what: &str, channels: usize, tensor: &Tensor) -> Error {
    Error::Request(format!(
        "a {what} of this model has shape [1, {channels}, h, w]{}, not {}",
        if what == "picture" {
            " with sides that are multiples of its factor"
        } else {
            ""
        },
        tensor.ty.shape
    ))
}

/// Refuses a result with a NaN or infinity. `stage` names where it came from.
///
/// # Errors
/// If there is one.
pub fn check_finite(tensor: &Tensor, device: &Device, dtype: DType, stage: impl Fn() -> String) -> Result<()> {
    let Some(index) = tensor.first_non_finite() else {
        return Ok(());
    };
    let remedy = match (device, dtype) {
        (_, DType::F16) => "Half precision may have overflowed: use --dtype f32",
        (Device::Gpu(_), _) => "The weights or the driver are at fault: try --device cpu",
        (Device::Cpu(_), _) => "The weights are damaged, or guidance is far too strong",
    };
    Err(Error::NonFinite {
        stage: stage(),
        count: tensor.data.iter().filter(|v| !v.is_finite()).count(),
        total: tensor.data.len(),
        index,
        remedy: remedy.into(),
    })
}

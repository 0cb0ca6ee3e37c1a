//! An autoencoder on a device: the one place where latents become pictures and pictures latents.
//!
//! # Memory
#![doc = include_str!("memory.md")]

mod task;

pub use task::{Storage, VaeDType, VaeOptions, VaeTask};

use super::tiled::{Half, Ran, Room, Route, Schedule, route};
use crate::backend::{Device, Kept, Planner, Session};
use crate::checkpoint::Weights;
use crate::engine::{Cancel, Event};
use crate::error::{Error, GpuError, PlanError, Result};
use crate::models::{Side, Vae};
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
    kept: Vec<Kept>,
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
            noted: BTreeSet::new(),
            said: None,
            last: None,
        }
    }

    /// Sets how it runs.
    pub fn with_options(mut self, options: VaeOptions) -> Self {
        self.options = options;
        self
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
            kept.extend(tiled.kept);
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
    }

    /// Sets the most bytes that may be taken on the device, weights included.
    pub(super) fn set_max_memory(&mut self, bytes: Option<u64>) {
        self.options.max_memory = bytes;
    }

    /// Whether a task has its session, or its tiles.
    pub(super) fn is_ready(&self, task: VaeTask) -> bool {
        let whole = self
            .sessions
            .iter()
            .any(|(t, dtype, _)| (*t, *dtype) == (task, self.dtype()));
        whole || self.find(task, self.dtype()).is_some()
    }

    /// Bytes that a task takes on the device, weights included, where it may take `cap`; more than that if not even the smallest tiles fit.
    ///
    /// # Errors
    /// If the task does not fit the model or the device.
    pub(super) fn need(&self, task: VaeTask, cap: Option<u64>) -> Result<u64> {
        let planner = Planner::of(&self.device, &self.policy);
        let room = Room {
            device: cap,
            host: None,
        };
        match self.route_as(task, self.dtype(), room) {
            Ok(Route::Whole) => {
                let bytes = planner.bytes(&self.plan(task)?);
                Ok(bytes.total() + planner.staging(bytes))
            }
            Ok(Route::Tiled(schedule, _)) => {
                let half = self.half(task.side());
                let plans = schedule.plans(half, planner)?;
                let footprint = schedule.footprint(&plans, planner);
                let host = if planner.caps.is_none() { footprint.host } else { 0 };
                Ok(footprint.device + footprint.staging + host)
            }
            Err(Error::Plan(PlanError::MaxMemory { wanted, .. })) => Ok(wanted),
            Err(error) => Err(error),
        }
    }

    /// What ran in tiles: bytes and ways.
    pub fn tiled(&self) -> impl Iterator<Item = &Ran> {
        self.tiled.iter().filter_map(|tiled| tiled.ran.as_ref())
    }

    /// Decides whether a task runs as a whole or in tiles, and takes the room that it needs. `on` hears why it runs in tiles, the
    /// first time.
    ///
    /// # Errors
    /// If not even tiles fit, or what was asked for makes no sense.
    pub async fn ready(&mut self, task: VaeTask, on: &mut dyn FnMut(Event)) -> Result<()> {
        if self.options.dtype == VaeDType::F16 && self.dtype() != DType::F16 {
            let name = self.device.name();
            self.note_once("f16", format!("{name} has no f16 storage: the autoencoder has f32"), on);
        }
        self.ready_as(task, self.dtype(), on).await
    }

    async fn ready_as(&mut self, task: VaeTask, dtype: DType, on: &mut dyn FnMut(Event)) -> Result<()> {
        let whole = |(t, d, _): &(VaeTask, DType, Session)| (*t, *d) == (task, dtype);
        if self.find(task, dtype).is_some() || self.sessions.iter().any(whole) {
            return Ok(());
        }
        let mut room = Room::here(self.options.max_memory);
        let mut route = self.route_as(task, dtype, room)?;
        let mut shortage: Option<(u64, Error)> = None;
        loop {
            let error = match self.take(task, dtype, route).await {
                Ok(note) => {
                    if let Some(note) = note {
                        self.say(task, shortage.map(|(wanted, _)| wanted), note, on);
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            let wanted = match &error {
                Error::Gpu(GpuError::OutOfMemory { wanted }) | Error::OutOfMemory { wanted, .. } => *wanted,
                _ => return Err(error),
            };
            // The driver has less than its limits say: somewhat less may be there. What was refused first is the error in the end.
            room.device = Some(room.device.unwrap_or(wanted) / 8 * 7);
            let (wanted, first) = shortage.unwrap_or((wanted, error));
            route = match self.route_as(task, dtype, room) {
                Ok(smaller) => smaller,
                Err(_) => return Err(first),
            };
            shortage = Some((wanted, first));
        }
    }

    /// Takes the room that a route needs. What the user should know of it.
    async fn take(&mut self, task: VaeTask, dtype: DType, route: Route) -> Result<Option<String>> {
        let (schedule, note) = match route {
            Route::Whole => {
                self.prepare_as(task, dtype).await?;
                return Ok(None);
            }
            Route::Tiled(schedule, note) => (schedule, note),
        };
        let _kept = self.make_way(task);
        let place = (&self.device, &self.policy);
        let reserved = schedule.reserve(self.half(task.side()), place).await?;
        if self.tiled.len() >= KEPT {
            self.tiled.remove(0);
        }
        self.tiled.push(Tiled {
            task,
            dtype,
            schedule,
            kept: vec![reserved.keep_weights()],
            reserved: Some(reserved),
            ran: None,
        });
        Ok(Some(note))
    }

    /// Says that a task runs in tiles, and that it must since the device had no room for `shortage` bytes.
    fn say(&mut self, task: VaeTask, shortage: Option<u64>, note: String, on: &mut dyn FnMut(Event)) {
        let note = match shortage {
            Some(wanted) => format!("out of memory on the device with {wanted} bytes: {note}"),
            None => note,
        };
        let said = Some((task, note));
        if self.said != said {
            on(Event::Note(said.iter().map(|(_, note)| note.as_str()).collect()));
            self.said = said;
        }
    }

    /// How a task would run: nothing is allocated.
    ///
    /// # Errors
    /// As [`VaeRunner::ready`].
    pub fn route(&self, task: VaeTask) -> Result<Route> {
        self.route_as(task, self.dtype(), Room::here(self.options.max_memory))
    }

    fn route_as(&self, task: VaeTask, dtype: DType, room: Room) -> Result<Route> {
        route(
            self.half(task.side()),
            task.size(),
            dtype,
            Planner::of(&self.device, &self.policy),
            self.options.tile,
            room,
        )
    }

    fn half(&self, side: Side) -> Half<'_> {
        Half {
            vae: &self.vae,
            weights: &self.weights,
            side,
        }
    }

    fn find(&self, task: VaeTask, dtype: DType) -> Option<usize> {
        self.tiled.iter().position(|t| (t.task, t.dtype) == (task, dtype))
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

    /// Runs a task; where half precision has overflowed, again in single precision.
    async fn run_finite(
        &mut self,
        task: VaeTask,
        input: &Tensor,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        let mut storage = Storage {
            dtype: self.dtype(),
            repeated: false,
        };
        self.ready(task, on).await?;
        let mut result = self.run(task, input, storage.dtype, on, cancel).await?;
        let overflowed = |t: &Tensor| t.first_non_finite().is_some();
        if storage.dtype == DType::F16 && overflowed(&result) && !overflowed(input) {
            let note = "the autoencoder overflowed in f16 and was run again in f32; --vae-dtype f32 does so at once";
            self.note_once("overflow", note.into(), on);
            storage = Storage {
                dtype: DType::F32,
                repeated: true,
            };
            result = self.run(task, input, DType::F32, on, cancel).await?;
        }
        check_finite(&result, &self.device, storage.dtype, || match task {
            VaeTask::Decode { .. } => "picture".into(),
            VaeTask::Encode { .. } => "latent of the picture".into(),
        })?;
        self.last = Some(storage);
        Ok(result)
    }

    fn note_once(&mut self, what: &'static str, note: String, on: &mut dyn FnMut(Event)) {
        if self.noted.insert(what) {
            on(Event::Note(note));
        }
    }

    async fn run(
        &mut self,
        task: VaeTask,
        input: &Tensor,
        dtype: DType,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        self.ready_as(task, dtype, on).await?;
        let Some(index) = self.find(task, dtype) else {
            let name = match task {
                VaeTask::Decode { .. } => "latent",
                VaeTask::Encode { .. } => "picture",
            };
            let outputs = self.prepare_as(task, dtype).await?.run(&[(name, input)]).await?;
            let first = outputs.into_iter().next();
            return first.ok_or_else(|| Error::Request(format!("{task:?} has no result")));
        };
        let mut tiled = self.tiled.remove(index);
        // The room that it has kept is for the sessions that follow.
        tiled.reserved = None;
        let of = tiled.schedule.runs() as u32;
        let (result, ran) = tiled
            .schedule
            .run(
                self.half(task.side()),
                (&self.device, &self.policy),
                &mut tiled.kept,
                input,
                |done| on(Event::Tile { done: done as u32, of }),
                || match cancel.is_cancelled() {
                    true => Err(Error::Cancelled),
                    false => Ok(()),
                },
            )
            .await?;
        tiled.ran = Some(ran);
        self.tiled.push(tiled);
        Ok(result)
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

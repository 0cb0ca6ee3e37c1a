use super::{KEPT, Tiled, VaeDType, VaeRunner, VaeTask};
use crate::backend::{Planner, Session};
use crate::diffusion::reroute::{Holding, Refusal, need, shortage, too_large};
use crate::diffusion::tiled::{Half, Room, Route, route};
use crate::engine::Event;
use crate::error::{Error, GpuError, PlanError, Result};
use crate::memory::budget;
use crate::memory::residency::Home;
use crate::memory::route::{Capacity, Need, Ratio};
use crate::models::Side;
use crate::tensor::DType;

impl VaeRunner {
    /// Bytes that a task takes on the device, weights included, where it may take `cap`: none where the CPU runs all of it; more than the
    /// cap if not even the smallest tiles fit and there is no CPU to fall back to.
    ///
    /// # Errors
    /// If the task does not fit the model or the device.
    pub(in crate::diffusion) fn need(&self, task: VaeTask, cap: Option<u64>) -> Result<u64> {
        let planner = Planner::of(&self.device, &self.policy);
        let room = Room {
            device: cap,
            host: None,
            cpu: self.fallback.can(&self.device),
        };
        match self.route_as(task, self.dtype(), room) {
            Ok(Route::Whole) => {
                let bytes = planner.bytes(&self.plan(task)?);
                Ok(bytes.total() + planner.staging(bytes))
            }
            Ok(Route::Tiled(schedule, _)) => {
                let half = self.half(task.side());
                // Passes that are beyond the device take nothing of it.
                if schedule.is_partly() {
                    return Ok(schedule.within(half, planner, cap));
                }
                let footprint = schedule.footprint(&schedule.plans(half, planner)?, planner);
                let host = if planner.caps.is_none() { footprint.host } else { 0 };
                Ok(footprint.device + footprint.staging + host)
            }
            Err(error) if room.cpu && is_too_much(&error) => Ok(0),
            Err(Error::Plan(PlanError::MaxMemory { wanted, .. })) => Ok(wanted),
            Err(error) => Err(error),
        }
    }

    /// Decides whether a task runs as a whole, in tiles or on the CPU, and takes the room that it needs. `on` hears why it does not run as a
    /// whole, the first time.
    ///
    /// # Errors
    /// If it cannot run at all, or what was asked for makes no sense.
    pub async fn ready(&mut self, task: VaeTask, on: &mut dyn FnMut(Event)) -> Result<()> {
        self.ready_beside(task, false, on).await
    }

    /// As [`VaeRunner::ready`]. Where `others` could leave the device, running out of memory there is an error, so that they do.
    pub(in crate::diffusion) async fn ready_beside(
        &mut self,
        task: VaeTask,
        others: bool,
        on: &mut dyn FnMut(Event),
    ) -> Result<()> {
        if self.options.dtype == VaeDType::F16 && self.dtype() != DType::F16 {
            let name = self.device.name();
            self.note_once("f16", format!("{name} has no f16 storage: the autoencoder has f32"), on);
        }
        if let Some(ratio) = self.options.fallback_ratio.filter(|ratio| Ratio::new(*ratio).is_none()) {
            let note = format!(
                "the autoencoder may not fill {ratio} of the free memory, but above 0 to 1 of it: {} is taken",
                Ratio::DEFAULT.get()
            );
            self.note_once("ratio", note, on);
        }
        self.ready_as(task, self.dtype(), others, on).await
    }

    pub(super) async fn ready_as(
        &mut self,
        task: VaeTask,
        dtype: DType,
        others: bool,
        on: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let whole = |(t, d, _): &(VaeTask, DType, Session)| (*t, *d) == (task, dtype);
        let away = self.away.iter().any(|(t, d, _)| (*t, *d) == (task, dtype));
        if away || self.find(task, dtype).is_some() || self.sessions.iter().any(whole) {
            return Ok(());
        }
        let mut room = self.room();
        let mut route = match self.route_as(task, dtype, room) {
            Err(error) if room.cpu && is_too_much(&error) => return self.send_away(task, dtype, error, false),
            route => route?,
        };
        let mut first: Option<(u64, Error)> = None;
        loop {
            let error = match self.take(task, dtype, route).await {
                Ok(note) => {
                    if let Some(note) = note {
                        self.say(task, first.map(|(wanted, _)| wanted), note, on);
                    }
                    return Ok(());
                }
                Err(error) => error,
            };
            let wanted = match &error {
                Error::Gpu(GpuError::OutOfMemory { wanted }) | Error::OutOfMemory { wanted, .. } => *wanted,
                _ if self.fallback.takes(&error, &self.device) => return self.send_away(task, dtype, error, true),
                _ => return Err(error),
            };
            // The driver has less than its limits say: somewhat less may be there. What was refused first is the error in the end.
            // It starts from what was refused, which may be far less than what is said to be free.
            let start = room.device.unwrap_or(wanted);
            let start = if first.is_none() { start.min(wanted) } else { start };
            room.device = Some(start / 8 * 7);
            let (wanted, earlier) = first.unwrap_or((wanted, error));
            route = match self.route_as(task, dtype, room) {
                Ok(smaller) => smaller,
                Err(_) if !others && self.fallback.takes(&earlier, &self.device) => {
                    return self.send_away(task, dtype, earlier, true);
                }
                Err(_) => return Err(earlier),
            };
            first = Some((wanted, earlier));
        }
    }

    /// Leaves a task to the CPU the next time it runs.
    fn send_away(&mut self, task: VaeTask, dtype: DType, error: Error, failed: bool) -> Result<()> {
        let numbers = self.numbers(task, dtype)?;
        let refusal = match (failed, numbers) {
            (false, Some((need, capacity))) => {
                // A message that names the least of all tiles would do, unless a limit is in the way.
                let error = match error {
                    Error::Request(_) => shortage(need, capacity),
                    error => error,
                };
                Refusal::before(error, need, capacity)
            }
            (_, numbers) => Refusal::failed(error, numbers),
        };
        self.away.push((task, dtype, refusal));
        Ok(())
    }

    /// What a task as a whole needs, and what the device has.
    pub(super) fn numbers(&self, task: VaeTask, dtype: DType) -> Result<Option<(Need, Capacity)>> {
        let Some(capacity) = self.fallback.capacity(&self.device) else {
            return Ok(None);
        };
        let graph = task.graph(&self.vae, &self.weights, dtype)?;
        let need = match Planner::of(&self.device, &self.policy).plan(&graph) {
            Ok(plan) => need(&plan, &self.device, &self.weights)?,
            Err(error) => match too_large(&error) {
                Some(need) => need,
                None => return Err(error),
            },
        };
        Ok(Some((need, capacity)))
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
        // What is decided pass by pass takes its room then.
        let reserved = match schedule.is_partly() {
            true => None,
            false => Some(schedule.reserve(self.half(task.side()), place).await?),
        };
        if self.tiled.len() >= KEPT {
            self.tiled.remove(0);
        }
        self.tiled.push(Tiled {
            task,
            dtype,
            schedule,
            held: match &reserved {
                Some(session) => Holding::of(session, &self.weights)?,
                None => Holding::default(),
            },
            reserved,
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

    /// What this machine has, and what may be taken of it.
    fn room(&self) -> Room {
        let cpu = self.fallback.can(&self.device);
        // What the autoencoder has there already is part of what its plans count.
        let taken = self.device.residency().bytes(Home::Device);
        let capacity = self.fallback.capacity(&self.device).filter(|_| cpu);
        let known = capacity.map(|capacity| capacity.budget());
        let known = known.filter(|bytes| *bytes < u64::MAX);
        let known = known.map(|bytes| bytes.saturating_add(taken));
        Room {
            device: known.or(self.options.max_memory),
            host: budget::available(),
            cpu,
        }
    }

    /// How a task would run on its device: nothing is allocated.
    ///
    /// # Errors
    /// If it fits neither as a whole nor in tiles, or what was asked for makes no sense.
    pub fn route(&self, task: VaeTask) -> Result<Route> {
        self.route_as(task, self.dtype(), self.room())
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

    pub(super) fn half(&self, side: Side) -> Half<'_> {
        Half {
            vae: &self.vae,
            weights: &self.weights,
            side,
        }
    }

    pub(super) fn find(&self, task: VaeTask, dtype: DType) -> Option<usize> {
        self.tiled.iter().position(|t| (t.task, t.dtype) == (task, dtype))
    }
}

/// Whether the device has no room, or not for a single tensor.
fn is_too_much(error: &Error) -> bool {
    matches!(
        error,
        Error::Plan(PlanError::MaxMemory { .. } | PlanError::ExceedsLimit { .. } | PlanError::IndexOverflow { .. })
    )
}

//! Which tasks of a pipeline are on the device together, and how their weights are held.

use super::pipeline::{Pipeline, Task};
use crate::backend::Planner;
use crate::engine::{Cancel, Event};
use crate::error::{Error, GpuError, PlanError, Result};
use crate::memory::budget::{self, MaxMemory};
use crate::memory::estimate::{Calibration, Key, Work};
use crate::memory::offload::{Blocks, Hold, staging};
use crate::memory::tier::{Budget, Mode, Tier, decide};
use crate::plan::cpu_weight_bytes;
use crate::tensor::DType;
use std::collections::BTreeSet;

/// What a pipeline may take of the device, and how it is to use it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryOptions {
    /// Which tier.
    pub mode: Mode,
    /// How much may be taken; what is free, where that is known, without it.
    pub max: Option<MaxMemory>,
}

/// What a run has been given.
#[derive(Clone, Debug)]
pub struct Engaged {
    /// The tier that is at work, whatever was asked for.
    pub tier: Tier,
    /// The most bytes that the device holds at any moment of the run, staging memory included.
    pub peak: u64,
    /// Bytes that adapter and driver add, as `rotile calibrate` has measured; 0 where nothing is held against it.
    pub added: u64,
    /// Bytes that may be taken, where that is known.
    pub budget: Option<Budget>,
    tasks: Vec<Task>,
    holds: Vec<(Task, Hold)>,
    // What the autoencoder may take.
    vae: Option<u64>,
}

/// A task with what it takes.
struct Item {
    task: Task,
    session: u64,
    // What is sent in each run waits in staging memory too.
    inputs: u64,
    weights: Vec<(Weight, u64)>,
    blocks: Blocks,
}

/// Whether it is the text encoder's, name and type.
type Weight = (bool, String, DType);

impl Engaged {
    /// Tasks that are on the device while `now` run.
    fn alive(&self, now: &[Task]) -> Vec<Task> {
        let text = |task: &Task| matches!(task, Task::Text { .. });
        match self.tier {
            Tier::Resident | Tier::Streamed => self.tasks.clone(),
            Tier::StreamedText => {
                let texts = now.iter().any(text);
                let tasks = self.tasks.iter().copied();
                tasks.filter(|task| text(task) == texts).collect()
            }
            Tier::Parts | Tier::PartsStreamed => now.to_vec(),
        }
    }
}

/// Tasks that a tier has on the device together.
fn groups(tier: Tier, tasks: &[Task]) -> Vec<Vec<Task>> {
    let (texts, rest): (Vec<Task>, Vec<Task>) = tasks.iter().partition(|task| matches!(task, Task::Text { .. }));
    match tier {
        Tier::Resident | Tier::Streamed => vec![tasks.to_vec()],
        Tier::StreamedText => vec![texts, rest],
        Tier::Parts | Tier::PartsStreamed => {
            let (steps, others): (Vec<Task>, Vec<Task>) =
                tasks.iter().partition(|task| matches!(task, Task::Denoise { .. }));
            others.into_iter().map(|task| vec![task]).chain([steps]).collect()
        }
    }
}

fn is_streamed(tier: Tier, task: Task) -> bool {
    match task {
        Task::Text { .. } => tier == Tier::PartsStreamed,
        Task::Caption { .. } | Task::Denoise { .. } => !matches!(tier, Tier::Resident | Tier::Parts),
        Task::Decode { .. } | Task::Encode { .. } => false,
    }
}

impl Task {
    /// The kind of work that was measured.
    fn work(self) -> Option<Work> {
        match self {
            Self::Text { .. } => Some(Work::Text),
            Self::Caption { .. } => None,
            Self::Denoise { .. } => Some(Work::Denoise),
            Self::Decode { .. } => Some(Work::Decode),
            Self::Encode { .. } => Some(Work::Encode),
        }
    }
}

/// Whether the device had no memory.
pub(crate) fn is_shortage(error: &Error) -> bool {
    matches!(
        error,
        Error::Gpu(GpuError::OutOfMemory { .. }) | Error::OutOfMemory { .. }
    )
}

impl Pipeline {
    /// What the last run was given.
    pub fn engaged(&self) -> Option<&Engaged> {
        self.engaged.as_ref()
    }

    /// Decides how the tasks of a run are held: before anything is allocated for them. `on` hears of it where not all of it can stay.
    ///
    /// # Errors
    /// If no tier fits what may be taken, or a task does not fit the model or the device.
    pub fn engage(&mut self, tasks: &[Task], on: &mut dyn FnMut(Event)) -> Result<()> {
        let same = |engaged: &Engaged| engaged.tasks == tasks && engaged.tier == Tier::Resident;
        let ready = |pipeline: &Self| tasks.iter().all(|task| pipeline.is_ready(*task));
        if self.engaged.as_ref().is_some_and(same) && ready(self) {
            return Ok(());
        }
        self.engage_from(tasks, Tier::Resident, None, on)
    }

    fn engage_from(
        &mut self,
        tasks: &[Task],
        from: Tier,
        why: Option<String>,
        on: &mut dyn FnMut(Event),
    ) -> Result<()> {
        let engaged = self.place(tasks, from)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        tracing::debug!(tier = engaged.tier.name(), peak = engaged.peak, "engaged");
        if engaged.tier != Tier::Resident {
            let of = engaged
                .budget
                .map_or(String::new(), |budget| format!(" of {:.1}", mib(budget.bytes)));
            let why = why.map_or(String::new(), |why| format!("{why}: "));
            let text = format!(
                "{why}memory: {}, {:.1} MiB at most{of}",
                engaged.tier.name(),
                mib(engaged.peak)
            );
            if self.said.as_ref() != Some(&text) {
                on(Event::Note(text.clone()));
                self.said = Some(text);
            }
        }
        self.vae
            .set_max_memory([engaged.vae, self.vae_cap].into_iter().flatten().min());
        self.engaged = Some(engaged);
        Ok(())
    }

    /// How tasks would be held, in a tier from `from` on: nothing is allocated.
    ///
    /// # Errors
    /// As [`Pipeline::engage`].
    pub fn place(&self, tasks: &[Task], from: Tier) -> Result<Engaged> {
        let budget = self.budget()?;
        let items = self.items(tasks)?;
        let vae_needs = self.vae_needs(tasks, budget)?;
        let vae_need = |tier: Tier, group: &[Task]| -> u64 {
            let own = vae_needs.iter().filter(|(task, _)| group.contains(task));
            own.map(|(_, needs)| needs[usize::from(tier.takes_turns())]).sum()
        };
        let mut needs = [0; 5];
        for (need, tier) in needs.iter_mut().zip(Tier::ALL) {
            for group in groups(tier, tasks) {
                let least: Vec<_> = self.least(tier, &items, &group);
                let bytes = self.peak(&items, &least) + vae_need(tier, &group);
                *need = bytes.max(*need);
            }
        }
        // A cap is on what rotile takes; what is free is taken by the driver too.
        let mut beside_plans = 0;
        if budget.is_some_and(|budget| !budget.cap) {
            beside_plans = self.added(tasks, needs[0])?;
            needs
                .iter_mut()
                .for_each(|need| *need = need.saturating_add(beside_plans));
        }
        let tier = decide(self.memory.mode, budget, needs, from).map_err(|least| self.too_little(least, budget))?;
        let (mut holds, mut peak, mut beside) = (Vec::new(), 0, 0);
        for group in groups(tier, tasks) {
            let vae = vae_need(tier, &group);
            let held = self.spread(tier, &items, &group, budget.map(|b| b.bytes.saturating_sub(vae)));
            let others = self.peak(&items, &held);
            peak = peak.max(others + vae);
            if vae > 0 {
                beside = others;
            }
            holds.extend(held);
        }
        // What is free may change, and the autoencoder looks for itself; of a cap it has what the others leave.
        let cap = budget.filter(|budget| budget.cap).map(|budget| budget.bytes);
        let vae = cap.map(|bytes| bytes.saturating_sub(beside));
        Ok(Engaged {
            tier,
            peak,
            added: beside_plans,
            budget,
            tasks: tasks.to_vec(),
            holds,
            vae,
        })
    }

    /// Bytes that adapter and driver add to plans of `known` bytes, as measured, or by the rule for what was not.
    fn added(&self, tasks: &[Task], known: u64) -> Result<u64> {
        let key = Key::of(self.device().caps(), self.policy(), self.dtype())?;
        let calibration = self.calibration.as_ref().unwrap_or(Calibration::shipped());
        let (mut most, mut kernels) = (0, 0);
        let works: BTreeSet<_> = tasks.iter().filter_map(|task| task.work()).collect();
        for work in works {
            let price = calibration.price(known, &key, work)?;
            most = most.max(price.bytes.saturating_sub(known));
            kernels += price.kernels;
        }
        Ok(most + kernels)
    }

    /// Bytes that may be taken: what the user says, else what is free where that is known, and what the pipeline has taken already.
    fn budget(&self) -> Result<Option<Budget>> {
        let caps = self.device().caps();
        let held: u64 = self.sessions().map(|(_, session)| session.allocated().total()).sum();
        let (bytes, cap) = match self.memory.max {
            Some(MaxMemory::Most(bytes)) => (Some(bytes), true),
            Some(leave) => (Some(leave.bytes(caps)?.saturating_add(held)), true),
            None => (budget::free(caps).map(|free| free.saturating_add(held)), false),
        };
        Ok(bytes.map(|bytes| Budget { bytes, cap }))
    }

    fn too_little(&self, wanted: u64, budget: Option<Budget>) -> Error {
        match budget {
            Some(Budget { bytes, cap: true }) => PlanError::MaxMemory { wanted, limit: bytes }.into(),
            _ => Error::OutOfMemory {
                wanted,
                available: budget.map(|budget| budget.bytes),
            },
        }
    }

    fn items(&self, tasks: &[Task]) -> Result<Vec<Item>> {
        let caps = self.device().caps();
        let planner = Planner::of(self.device(), self.policy());
        let own = tasks.iter().filter(|task| task.of_vae().is_none());
        let item = |&task: &Task| {
            let plan = self.plan(task)?;
            let bytes = planner.bytes(&plan);
            let text = matches!(task, Task::Text { .. });
            let weights = plan.weights.iter().map(|weight| {
                let bytes = match caps {
                    Some(_) => weight.ty.byte_len() as u64,
                    None => cpu_weight_bytes(&weight.ty),
                };
                ((text, weight.name.clone(), weight.ty.dtype), bytes)
            });
            Ok(Item {
                task,
                session: bytes.session(),
                inputs: bytes.inputs,
                weights: weights.collect(),
                blocks: Blocks::of(&plan, caps),
            })
        };
        own.map(item).collect()
    }

    /// Bytes that each task of the autoencoder takes beside others, and where parts take turns: then it has all that may be taken for itself. Found
    /// once, since it may mean a search for tiles.
    fn vae_needs(&self, tasks: &[Task], budget: Option<Budget>) -> Result<Vec<(Task, [u64; 2])>> {
        let alone = [budget.map(|budget| budget.bytes), self.vae_cap];
        let alone = alone.into_iter().flatten().min();
        let mut needs = Vec::new();
        for (task, own) in tasks.iter().filter_map(|task| Some((*task, task.of_vae()?))) {
            let beside = self.vae().need(own, self.vae_cap)?;
            let alone = match alone == self.vae_cap {
                true => beside,
                false => self.vae().need(own, alone)?,
            };
            needs.push((task, [beside, alone]));
        }
        Ok(needs)
    }

    /// How a group is held in the least that its tier can do with.
    fn least(&self, tier: Tier, items: &[Item], group: &[Task]) -> Vec<(Task, Hold)> {
        let items = items.iter().filter(|item| group.contains(&item.task));
        let hold = |item: &Item| match is_streamed(tier, item.task) {
            true => Hold::Streamed {
                budget: Some(item.blocks.least().total()),
            },
            false => Hold::Resident,
        };
        items.map(|item| (item.task, hold(item))).collect()
    }

    /// As [`Pipeline::least`], with what is left of the budget given to what is streamed most often.
    fn spread(&self, tier: Tier, items: &[Item], group: &[Task], budget: Option<u64>) -> Vec<(Task, Hold)> {
        let least = self.least(tier, items, group);
        let steps = group.iter().any(|task| matches!(task, Task::Denoise { .. }));
        let often = |task: Task| is_streamed(tier, task) && (!steps || matches!(task, Task::Denoise { .. }));
        let count = group.iter().filter(|task| often(**task)).count().max(1) as u64;
        let spare = budget.map(|budget| budget.saturating_sub(self.peak(items, &least)));
        // Sessions of the same blocks share what they have: each may get all of it, or its share. What else takes turns with them may then be the
        // larger, and comes off.
        for part in [1, count] {
            let mut over = 0;
            for _ in 0..4 {
                let holds: Vec<_> = least
                    .iter()
                    .map(|hold| self.widen(items, *hold, often, spare, part, over))
                    .collect();
                let peak = self.peak(items, &holds);
                match budget {
                    Some(budget) if peak > budget => over += peak - budget,
                    _ => return holds,
                }
            }
        }
        least
    }

    /// Gives a stream its part of what is spare, less `over`.
    fn widen(
        &self,
        items: &[Item],
        (task, hold): (Task, Hold),
        often: impl Fn(Task) -> bool,
        spare: Option<u64>,
        part: u64,
        over: u64,
    ) -> (Task, Hold) {
        let Some(item) = items.iter().find(|item| item.task == task).filter(|_| often(task)) else {
            return (task, hold);
        };
        let roomy = item.blocks.within(None).map_or(0, |stream| stream.total());
        let own = spare.map(|spare| item.blocks.least().total() + (spare / part).saturating_sub(over));
        let budget = match (own, self.memory.mode) {
            (Some(own), Mode::Balanced) => Some(own.min(roomy)),
            (own, _) => own,
        };
        (task, Hold::Streamed { budget })
    }

    /// The most bytes that these sessions take together, without the autoencoder.
    fn peak(&self, items: &[Item], holds: &[(Task, Hold)]) -> u64 {
        let mut seen: BTreeSet<&Weight> = BTreeSet::new();
        let mut slots: Vec<(usize, Vec<u64>)> = Vec::new();
        let (mut sessions, mut weights, mut on_the_way) = (0, 0, 0);
        for (task, hold) in holds {
            let Some(item) = items.iter().find(|item| item.task == *task) else {
                continue;
            };
            let stream = match hold {
                Hold::Resident => None,
                Hold::Streamed { budget } => item.blocks.within(*budget),
            };
            sessions += item.session;
            let stays = |i: usize| stream.as_ref().is_none_or(|stream| stream.spots[i].is_none());
            for (_, (weight, bytes)) in item.weights.iter().enumerate().filter(|(i, _)| stays(*i)) {
                weights += if seen.insert(weight) { *bytes } else { 0 };
            }
            let all: u64 = item.weights.iter().map(|(_, bytes)| bytes).sum();
            // Weights are sent in each run where they are streamed, beside the inputs; else before it.
            let staged = match &stream {
                Some(stream) => item.inputs + stream.staging,
                None => item.inputs.max(staging(all)),
            };
            on_the_way = staged.max(on_the_way);
            slots.extend(stream.map(|stream| (stream.slots, stream.buffers)));
        }
        let bytes = |(slots, buffers): &(usize, Vec<u64>)| *slots as u64 * buffers.iter().sum::<u64>();
        let slots = if self.device().caps().is_some() {
            slots.sort();
            slots.dedup();
            slots.iter().map(bytes).sum::<u64>()
        } else {
            // Blocks are there only while they compute.
            on_the_way = 0;
            slots.iter().map(bytes).max().unwrap_or(0)
        };
        sessions + weights + slots + on_the_way
    }

    /// Brings tasks of the run to the device, and what stays beside them; lets go of what does not. Where the device has less memory than its tier
    /// needs, the next tier is taken, and `on` hears so.
    ///
    /// # Errors
    /// If not even the last tier fits, the device fails, or it was cancelled.
    pub async fn enter(&mut self, now: &[Task], on: &mut dyn FnMut(Event), cancel: &Cancel) -> Result<()> {
        loop {
            let Some(engaged) = &self.engaged else { return Ok(()) };
            let (tier, tasks) = (engaged.tier, engaged.tasks.clone());
            let alive = engaged.alive(now);
            if engaged.budget.is_some() || tier != Tier::Resident {
                self.keep_only(&alive);
                self.device().settle().await?;
            }
            let error = match self.prepare_all(&alive, on, cancel).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let next = Tier::ALL.into_iter().find(|next| *next > tier);
            let Some(next) = next.filter(|_| is_shortage(&error)) else {
                return Err(error);
            };
            self.release();
            let why = format!("out of memory on the device ({})", tier.name());
            if self.engage_from(&tasks, next, Some(why), on).is_err() {
                return Err(error);
            }
        }
    }

    async fn prepare_all(&mut self, tasks: &[Task], on: &mut dyn FnMut(Event), cancel: &Cancel) -> Result<()> {
        let others = self.engaged.as_ref().is_some_and(|engaged| !engaged.tier.takes_turns());
        for task in tasks {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            match task.of_vae() {
                Some(task) => self.vae.ready_beside(task, others, on).await?,
                None => drop(self.prepare(*task).await?),
            }
        }
        Ok(())
    }

    /// How the weights of a task are held.
    pub(super) fn hold(&self, task: Task) -> Hold {
        let holds = self.engaged.iter().flat_map(|engaged| &engaged.holds);
        let mut own = holds.filter(|(t, _)| *t == task);
        own.next().map_or(Hold::Resident, |(_, hold)| *hold)
    }
}

use super::{Storage, VaeRunner, VaeTask, check_finite};
use crate::backend::{Device, Planner, Session};
use crate::diffusion::reroute::{Holding, Refusal, Site, cpu_weights, for_cpu, reroute};
use crate::diffusion::tiled::{Half, Room, Route, route};
use crate::engine::{Cancel, Event};
use crate::error::{Error, Result};
use crate::plan::Policy;
use crate::tensor::{DType, Tensor};

/// A result, and where it comes from: graphs that ran, and those of them that ran on the CPU in place of the device.
struct Outcome {
    result: Tensor,
    graphs: usize,
    on_cpu: usize,
}

impl VaeRunner {
    /// Runs a task; where half precision has overflowed, again in single precision.
    pub(super) async fn run_finite(
        &mut self,
        task: VaeTask,
        input: &Tensor,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Tensor> {
        let mut dtype = self.dtype();
        let mut repeated = false;
        self.ready(task, on).await?;
        let mut outcome = self.run(task, input, dtype, on, cancel).await?;
        let overflowed = |t: &Tensor| t.first_non_finite().is_some();
        if dtype == DType::F16 && overflowed(&outcome.result) && !overflowed(input) {
            let note = "the autoencoder overflowed in f16 and was run again in f32; --vae-dtype f32 does so at once";
            self.note_once("overflow", note.into(), on);
            (dtype, repeated) = (DType::F32, true);
            outcome = self.run(task, input, DType::F32, on, cancel).await?;
        }
        // The CPU has single precision only.
        if outcome.on_cpu == outcome.graphs {
            dtype = DType::F32;
        }
        check_finite(&outcome.result, &self.device, dtype, || match task {
            VaeTask::Decode { .. } => "picture".into(),
            VaeTask::Encode { .. } => "latent of the picture".into(),
        })?;
        self.last = Some(Storage {
            dtype,
            repeated,
            graphs: outcome.graphs,
            on_cpu: outcome.on_cpu,
        });
        Ok(outcome.result)
    }

    async fn run(
        &mut self,
        task: VaeTask,
        input: &Tensor,
        dtype: DType,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Outcome> {
        self.ready_as(task, dtype, false, on).await?;
        let away = self.away.iter().position(|(t, d, _)| (*t, *d) == (task, dtype));
        if let Some(index) = away {
            // The next run asks again.
            let (.., refusal) = self.away.remove(index);
            return self.run_away(task, (input, dtype), refusal, on, cancel).await;
        }
        if let Some(index) = self.find(task, dtype) {
            return self.run_tiled(index, input, on, cancel).await;
        }
        match self.run_whole(task, input, dtype).await {
            Ok(result) => Ok(Outcome {
                result,
                graphs: 1,
                on_cpu: 0,
            }),
            Err(error) if self.fallback.takes(&error, &self.device) => {
                self.sessions.retain(|(t, ..)| *t != task);
                let refusal = Refusal::failed(error, self.numbers(task, dtype)?);
                self.run_away(task, (input, dtype), refusal, on, cancel).await
            }
            Err(error) => Err(error),
        }
    }

    async fn run_whole(&mut self, task: VaeTask, input: &Tensor, dtype: DType) -> Result<Tensor> {
        self.prepare_as(task, dtype).await?;
        self.fallback.before_run()?;
        let session = self.prepare_as(task, dtype).await?;
        only(session, task, input).await
    }

    async fn run_tiled(
        &mut self,
        index: usize,
        input: &Tensor,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let mut tiled = self.tiled.remove(index);
        // The room that it has kept is for the sessions that follow.
        tiled.reserved = None;
        let half = Half {
            vae: &self.vae,
            weights: &self.weights,
            side: tiled.task.side(),
        };
        let name = name(tiled.task, self.vae.factor());
        let mut site = Site {
            device: &self.device,
            policy: &self.policy,
            fallback: Some(&mut self.fallback),
            task: &name,
        };
        let (result, ran) = tiled
            .schedule
            .run_at(half, &mut site, &mut tiled.held, input, on, &|| proceed(cancel))
            .await?;
        let (graphs, on_cpu) = (ran.graphs, ran.on_cpu);
        tiled.ran = Some(ran);
        self.tiled.push(tiled);
        Ok(Outcome { result, graphs, on_cpu })
    }

    /// Runs a task on the CPU in place of its device.
    async fn run_away(
        &mut self,
        task: VaeTask,
        (input, dtype): (&Tensor, DType),
        refusal: Refusal,
        on: &mut dyn FnMut(Event),
        cancel: &Cancel,
    ) -> Result<Outcome> {
        let name = name(task, self.vae.factor());
        self.fallback.say((&name, dtype), &refusal, &self.device, on);
        let weights = for_cpu(&self.weights, &self.policy);
        let half = Half {
            vae: &self.vae,
            weights: &weights,
            side: task.side(),
        };
        let policy = &self.policy;
        let needed = cpu_weights(&task.graph(&self.vae, &weights, DType::F32)?, &weights)?;
        let mut held = Holding::default();
        let run =
            async |cpu: &Device, on: &mut dyn FnMut(Event)| on_cpu(cpu, policy, task, half, input, on, cancel).await;
        let result = reroute(&mut self.fallback, &self.device, refusal, (&needed, &mut held), on, run).await?;
        Ok(Outcome {
            result,
            graphs: 1,
            on_cpu: 1,
        })
    }
}

/// Runs a task on the CPU: in tiles where it has no room for the whole.
async fn on_cpu(
    cpu: &Device,
    policy: &Policy,
    task: VaeTask,
    half: Half<'_>,
    input: &Tensor,
    on: &mut dyn FnMut(Event),
    cancel: &Cancel,
) -> Result<Tensor> {
    proceed(cancel)?;
    let planner = Planner::of(cpu, policy);
    match route(half, task.size(), DType::F32, planner, None, Room::here(None))? {
        Route::Whole => {
            let graph = task.graph(half.vae, half.weights, DType::F32)?;
            let mut session = cpu.prepare(&graph, half.weights, policy).await?;
            only(&mut session, task, input).await
        }
        Route::Tiled(schedule, note) => {
            on(Event::Note(format!("on the CPU: {note}")));
            let mut site = Site {
                device: cpu,
                policy,
                fallback: None,
                task: "",
            };
            let mut held = Holding::default();
            let result = schedule
                .run_at(half, &mut site, &mut held, input, on, &|| proceed(cancel))
                .await?;
            Ok(result.0)
        }
    }
}

/// The result of a session that has one.
async fn only(session: &mut Session, task: VaeTask, input: &Tensor) -> Result<Tensor> {
    let name = match task {
        VaeTask::Decode { .. } => "latent",
        VaeTask::Encode { .. } => "picture",
    };
    let outputs = session.run(&[(name, input)]).await?;
    let first = outputs.into_iter().next();
    first.ok_or_else(|| Error::Request(format!("{task:?} has no result")))
}

fn proceed(cancel: &Cancel) -> Result<()> {
    match cancel.is_cancelled() {
        true => Err(Error::Cancelled),
        false => Ok(()),
    }
}

/// Words for people.
fn name(task: VaeTask, factor: usize) -> String {
    let [height, width] = task.size().map(|n| n * factor);
    match task {
        VaeTask::Decode { .. } => format!("decoding {width}x{height}"),
        VaeTask::Encode { .. } => format!("encoding {width}x{height}"),
    }
}

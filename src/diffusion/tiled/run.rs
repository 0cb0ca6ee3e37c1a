use super::moments::Moments;
use super::stage::{Pass, PassRun, Stage};
use super::{Half, Ran, Schedule};
use crate::backend::{Device, Kept, Session};
use crate::diffusion::reroute::{Fallback, Holding, Job, Site};
use crate::engine::Event;
use crate::error::{Error, Result};
use crate::memory::budget;
use crate::plan::Policy;
use crate::tensor::{DType, Tensor, TensorType};
use crate::tiling::crop;
use std::borrow::Cow;

/// What goes through the stages.
struct State<'a> {
    /// The activation of the whole picture.
    x: Cow<'a, [f32]>,
    statistics: Vec<Vec<Moments>>,
    ran: Ran,
    done: usize,
    /// Runs that have been reported.
    said: usize,
}

/// What one pass has brought.
struct Passed {
    result: Vec<f32>,
    found: Vec<Moments>,
    /// None where it ran on the CPU in place of the device.
    here: Option<(Holding, Ran)>,
}

impl Schedule {
    /// Runs it: `[1, c, h, w]` in and out. `on` hears how many of [`Schedule::runs`] are done, `proceed` may stop it between
    /// two of them. `kept` keeps weights on the device for the next time.
    ///
    /// # Errors
    /// If the input has another size, the device fails, or `proceed` says so.
    pub async fn run(
        &self,
        half: Half<'_>,
        (device, policy): (&Device, &Policy),
        kept: &mut Vec<Kept>,
        input: &Tensor,
        mut on: impl FnMut(usize),
        proceed: impl Fn() -> Result<()>,
    ) -> Result<(Tensor, Ran)> {
        let mut site = Site {
            device,
            policy,
            fallback: None,
            task: "",
        };
        let mut held = Holding::from(std::mem::take(kept));
        let on = &mut |event| {
            if let Event::Tile { done, .. } = event {
                on(done as usize);
            }
        };
        let result = self.run_at(half, &mut site, &mut held, input, on, &proceed).await?;
        *kept = held.into_kept();
        Ok(result)
    }

    /// As [`Schedule::run`], with passes that move to the CPU where the device cannot run them.
    pub(in crate::diffusion) async fn run_at(
        &self,
        half: Half<'_>,
        site: &mut Site<'_>,
        held: &mut Holding,
        input: &Tensor,
        on: &mut dyn FnMut(Event),
        proceed: &dyn Fn() -> Result<()>,
    ) -> Result<(Tensor, Ran)> {
        let [channels, scale] = [half.vae.channels(half.side), self.stages[0].scale[0]];
        let wanted = TensorType::new(DType::F32, [1, channels, self.size[0] * scale, self.size[1] * scale]);
        if input.ty != wanted {
            return Err(Error::Request(format!("the input is {}, not {wanted}", input.ty)));
        }
        if self.turns {
            *held = Holding::default();
        }
        let mut state = State {
            x: Cow::Borrowed(&input.data),
            statistics: Vec::new(),
            ran: Ran::default(),
            done: 0,
            said: 0,
        };
        for stage in &self.stages {
            let mut result = Vec::new();
            for pass in &stage.passes {
                proceed()?;
                if self.turns {
                    // What was dropped is freed before more is taken. A device that fails says so again.
                    site.device.settle().await.ok();
                }
                let passed = self
                    .pass((stage, pass), half, site, (&mut state, held), on, proceed)
                    .await?;
                state.done += stage.grid.count();
                if pass.result {
                    state.statistics.clear();
                    result = passed.result;
                }
                if pass.collected.is_some() {
                    state.statistics.push(passed.found);
                }
                state.ran.graphs += 1;
                match passed.here {
                    None => state.ran.on_cpu += 1,
                    Some((holding, ran)) => {
                        state.ran.join(ran);
                        if !self.turns {
                            held.join(holding);
                        }
                    }
                }
            }
            state.x = Cow::Owned(result);
        }
        let last = self.stages.last().expect("an autoencoder has parts");
        let [_, [h, w]] = last.sizes(self.size, 1);
        let result = Tensor::new([1, last.output.shape[1], h, w], state.x.into_owned());
        Ok((result, state.ran))
    }

    async fn pass(
        &self,
        (stage, pass): (&Stage, &Pass),
        half: Half<'_>,
        site: &mut Site<'_>,
        (state, held): (&mut State<'_>, &mut Holding),
        on: &mut dyn FnMut(Event),
        proceed: &dyn Fn() -> Result<()>,
    ) -> Result<Passed> {
        let build = |weights: &crate::checkpoint::Weights, dtype| {
            let half = Half { weights, ..half };
            Ok(stage.graph(half, dtype, pass)?.0)
        };
        let State {
            x,
            statistics,
            done,
            said,
            ..
        } = state;
        let job = Job {
            build: &build,
            weights: half.weights,
            dtype: self.dtype,
        };
        let on_cpu = site.device.caps().is_none();
        let faults = site.device.faults();
        let of = self.runs() as u32;
        site.run(&job, held, on, async |session, mut fallback, on| {
            let here = on_cpu || matches!(session, Session::Gpu(_));
            let mut run = PassRun::new(stage, pass, statistics, self.size, faults)?;
            let [tile, whole] = stage.sizes(self.size, 0);
            let dtype = if here { self.dtype } else { DType::F32 };
            let ty = stage.input_as(dtype);
            let mut x_tile = Tensor::of(ty.clone(), budget::vec(ty.count(), faults)?);
            let mut count = *done;
            for at in stage.grid.tiles() {
                proceed()?;
                crop(x, whole, stage.corner(at, 0), tile, &mut x_tile.data);
                let core = Tensor::ids([4], &stage.grid.core(at).map(|n| n as u32));
                let mut inputs = vec![("x", &x_tile)];
                inputs.extend(pass.collected.map(|_| ("core", &core)));
                // Inputs that are not given again keep their values.
                if at == [0, 0] {
                    inputs.extend(run.given.iter().map(|(name, tensor)| (name.as_str(), tensor)));
                }
                if let Some(fallback) = fallback.as_deref_mut() {
                    Fallback::before_run(fallback)?;
                }
                let outputs = session.run(&inputs).await?;
                run.take(at, &session.plan().outputs, outputs);
                count += 1;
                // A pass that starts again on the CPU has been heard of.
                if count > *said {
                    *said = count;
                    on(Event::Tile { done: count as u32, of });
                }
            }
            let mut ran = Ran::default();
            ran.add(session);
            Ok(Passed {
                result: run.result,
                found: run.found,
                here: if here {
                    Some((Holding::of(session, half.weights)?, ran))
                } else {
                    None
                },
            })
        })
        .await
    }
}

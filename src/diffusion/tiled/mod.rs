//! An autoencoder in tiles: which parts run in tiles of which size, what group norms are told of the rest of the picture, and
//! the loop over the tiles.
//!
//! What runs at the size of the latent, attention above all, runs on all of it. The rest is cut into stages. Between two stages
//! the activation of the whole picture lies in host memory, so that a tile overlaps its neighbours only by what its own stage
//! sees. Within a stage, a norm needs the statistics of the whole picture: passes over the tiles collect them norm by norm,
//! each with those of the norms before it as inputs, and the last pass gives the result. So tiles compute what the whole
//! picture would, and nothing is left to hide by blending.

mod moments;
mod route;
mod run;
mod stage;

pub use route::{Room, Route, TileOptions, route};

use crate::backend::{Device, Planner, Session};
use crate::checkpoint::Weights;
use crate::error::{CheckpointError, Error, Result};
use crate::models::{Part, Side, Vae};
use crate::plan::{Bytes, Choice, Named, Plan, Policy};
use crate::tensor::{DType, TensorType};
use crate::tiling::Grid;
use stage::{Pass, Stage};
use std::collections::BTreeSet;

/// One half of an autoencoder with its weights.
#[derive(Clone, Copy, Debug)]
pub struct Half<'a> {
    /// The model.
    pub vae: &'a Vae,
    /// Its weights.
    pub weights: &'a Weights,
    /// Which half.
    pub side: Side,
}

/// Where the activation of the whole picture lies in host memory: the more often, the less is computed, and the more memory it
/// takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// After every part: half of the work is done twice.
    Parts,
    /// Where the resolution changes: most of the work is done three times or more.
    Levels,
    /// Nowhere: a tile runs through all parts, once for every norm.
    Once,
}

impl Cut {
    /// All of them, the quickest first.
    pub const ALL: [Self; 3] = [Self::Parts, Self::Levels, Self::Once];
}

/// Tiles of one size, in latent pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiles {
    /// Side of a tile.
    pub size: usize,
    /// What neighbours share at least; twice what a stage sees where that is more.
    pub overlap: usize,
    /// Where stages end.
    pub cut: Cut,
}

/// How one half of an autoencoder runs on one size.
#[derive(Debug)]
pub struct Schedule {
    dtype: DType,
    size: [usize; 2],
    stages: Vec<Stage>,
    turns: bool,
    partly: bool,
}

/// Bytes that a schedule takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// On the device: the weights, which stay, and the largest session; where weights [take turns](Schedule::takes_turns), the most of
    /// any pass.
    pub device: u64,
    /// What `device` would be if weights took turns.
    pub least: u64,
    /// Bytes on their way to the device at most, beside those.
    pub staging: u64,
    /// In host memory: the activations of the whole picture before and after a stage.
    pub host: u64,
}

/// What a run has shown.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    /// Bytes of the largest session on the device, as planned and as allocated.
    pub bytes: (Bytes, Bytes),
    /// Which way each operator ran there.
    pub choices: BTreeSet<Choice>,
    /// Passes that ran.
    pub graphs: usize,
    /// Those of them that ran on the CPU in place of the device.
    pub on_cpu: usize,
}

impl Ran {
    fn join(&mut self, other: Self) {
        if other.bytes.0.session() >= self.bytes.0.session() {
            self.bytes = other.bytes;
        }
        self.choices.extend(other.choices);
    }

    fn add(&mut self, session: &Session) {
        if session.planned().session() >= self.bytes.0.session() {
            self.bytes = (session.planned(), session.allocated());
        }
        self.choices.extend(session.plan().choices.iter().cloned());
    }
}

impl Schedule {
    /// The stages for a latent of `size`, with activations stored as `dtype`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape, or the tiles are smaller than what a stage sees.
    pub fn new(half: Half<'_>, size: [usize; 2], tiles: Tiles, dtype: DType) -> Result<Self> {
        let parts = half.vae.parts(half.side);
        if parts.is_empty() {
            // A file may hold one half only; whatever follows counts on a part.
            return Err(Error::from(CheckpointError::MissingTensor {
                file: half.weights.checkpoint().name().to_owned(),
                name: match half.side {
                    Side::Encoder => "encoder.*".into(),
                    Side::Decoder => "decoder.*".into(),
                },
                nearest: None,
            }));
        }
        let mut stages: Vec<Stage> = Vec::new();
        let mut known = 0;
        for range in stage::ranges(&parts, half.side, tiles.cut) {
            let [first, last] = [range.start, range.end - 1].map(|i| &parts[i]);
            let reach: f64 = parts[range.clone()].iter().map(Part::latent_reach).sum();
            let grid = if first.whole {
                Grid::new(size, size[0].max(size[1]), 0)
            } else {
                // So much that the middle of an overlap sees no edge.
                let needed = 2 * reach.ceil() as usize;
                if needed >= tiles.size && tiles.size < size[0].max(size[1]) {
                    return Err(Error::Request(format!(
                        "tiles for this model have at least {} pixels a side",
                        (needed + 1) * half.vae.factor()
                    )));
                }
                Grid::new(size, tiles.size, tiles.overlap.max(needed))
            };
            let [h, w] = grid.tile().map(|n| n * first.input);
            let input = match stages.last() {
                Some(stage) => TensorType::new(dtype, [1, stage.output.shape[1], h, w]),
                None => TensorType::new(DType::F32, [1, half.vae.channels(half.side), h, w]),
            };
            let mut stage = Stage {
                margin: (reach * last.output as f64).ceil() as usize,
                output: input.clone(),
                input,
                scale: [first.input, last.output],
                parts: range,
                grid,
                passes: Vec::new(),
            };
            let (graph, output) = stage.graph(half, dtype, &Pass::ONLY)?;
            stage.output = graph.ty(output).clone();
            stage.passes = if stage.grid.count() > 1 {
                Pass::all(known, graph.norms())
            } else {
                vec![Pass::ONLY]
            };
            // Where the next stage starts with a norm, this one finds its statistics with the result.
            known = 0;
            let next = stage.parts.end;
            if parts.get(next).is_some_and(|part| !part.whole)
                && stage::starts_with_norm(half, next, &stage.output, dtype)?
                && let Some(last) = stage.passes.last_mut()
            {
                last.collected = Some(graph.norms());
                known = 1;
            }
            stages.push(stage);
        }
        Ok(Self {
            dtype,
            size,
            stages,
            turns: false,
            partly: false,
        })
    }

    /// Whether the weights of a pass leave the device before those of the next come; otherwise they stay.
    pub fn takes_turns(&self) -> bool {
        self.turns
    }

    /// Whether some passes are beyond the device, so that the CPU must run them.
    pub fn is_partly(&self) -> bool {
        self.partly
    }

    /// Runs of a session, over all stages and passes: the work in steps that can be reported.
    pub fn runs(&self) -> usize {
        let runs = |stage: &Stage| stage.grid.count() * stage.passes.len();
        self.stages.iter().map(runs).sum()
    }

    /// Height and width of what goes in.
    pub fn input(&self) -> [usize; 2] {
        self.size.map(|n| n * self.stages[0].scale[0])
    }

    /// Sessions, one after the other.
    pub fn sessions(&self) -> usize {
        self.stages.iter().map(|stage| stage.passes.len()).sum()
    }

    /// Tiles of the stage that has most of them.
    pub fn grid(&self) -> &Grid {
        let most = self.stages.iter().max_by_key(|stage| stage.grid.count());
        &most.expect("an autoencoder has parts").grid
    }

    /// The plan of every session: nothing is allocated.
    ///
    /// # Errors
    /// If one does not fit the device.
    pub fn plans(&self, half: Half<'_>, planner: Planner<'_>) -> Result<Vec<Plan>> {
        self.each_plan(half, planner).map(|(_, plan)| plan).collect()
    }

    /// Whether a pass has more tiles than one, and its plan.
    fn each_plan(&self, half: Half<'_>, planner: Planner<'_>) -> impl Iterator<Item = (bool, Result<Plan>)> {
        let passes = self
            .stages
            .iter()
            .flat_map(|s| s.passes.iter().map(move |pass| (s, pass)));
        passes.map(move |(stage, pass)| {
            let graph = stage.graph(half, self.dtype, pass);
            (
                stage.grid.count() > 1,
                graph.and_then(|(graph, _)| planner.plan(&graph)),
            )
        })
    }

    /// What it takes, given its plans.
    pub fn footprint(&self, plans: &[Plan], planner: Planner<'_>) -> Footprint {
        let gpu = planner.caps.is_some();
        let mut weights: Vec<&Named> = plans.iter().flat_map(|plan| &plan.weights).collect();
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        weights.dedup_by(|a, b| a.name == b.name);
        let bytes = |ty: &TensorType| if gpu { ty.byte_len() } else { ty.count() * 4 } as u64;
        let session = |plan: &Plan| planner.bytes(plan).session();
        let host = |stage: &Stage| {
            let count = |ty: &TensorType, scale| ty.shape[1] * self.size[0] * self.size[1] * scale * scale;
            4 * (count(&stage.input, stage.scale[0]) + count(&stage.output, stage.scale[1])) as u64
        };
        let all = weights.iter().map(|w| bytes(&w.ty)).sum::<u64>() + plans.iter().map(session).max().unwrap_or(0);
        let least = plans.iter().map(|plan| planner.bytes(plan).total()).max().unwrap_or(0);
        let staging = plans.iter().map(|plan| planner.staging(planner.bytes(plan)));
        Footprint {
            device: if self.turns { least } else { all },
            least,
            staging: staging.max().unwrap_or(0),
            host: self.stages.iter().map(host).max().unwrap_or(0),
        }
    }

    /// The most bytes that a pass takes on the device, weights and what is on its way included, of those that `cap` leaves room for.
    pub(super) fn within(&self, half: Half<'_>, planner: Planner<'_>, cap: Option<u64>) -> u64 {
        let plans = self.each_plan(half, planner).filter_map(|(_, plan)| plan.ok());
        let bytes = plans.map(|plan| {
            let bytes = planner.bytes(&plan);
            bytes.total() + planner.staging(bytes)
        });
        bytes
            .filter(|bytes| cap.is_none_or(|cap| *bytes <= cap))
            .max()
            .unwrap_or(0)
    }

    /// Prepares every session and drops it again: what stays is compiled kernels.
    ///
    /// # Errors
    /// If one does not fit.
    pub async fn compile(&self, half: Half<'_>, (device, policy): (&Device, &Policy)) -> Result<()> {
        for stage in &self.stages {
            for pass in &stage.passes {
                let (graph, _) = stage.graph(half, self.dtype, pass)?;
                device.prepare(&graph, half.weights, policy).await?;
            }
        }
        Ok(())
    }

    /// Prepares the largest session, so that there is room for all of them. Where weights take turns, that is the largest with its weights,
    /// once the largest without them has shown that it fits.
    ///
    /// # Errors
    /// If there is none.
    pub async fn reserve(&self, half: Half<'_>, (device, policy): (&Device, &Policy)) -> Result<Session> {
        let planner = Planner::of(device, policy);
        let mut graphs = Vec::new();
        for stage in &self.stages {
            for pass in &stage.passes {
                let (graph, _) = stage.graph(half, self.dtype, pass)?;
                let bytes = planner.bytes(&planner.plan(&graph)?);
                graphs.push((bytes, graph));
            }
        }
        let largest = |of: fn(&Bytes) -> u64| {
            let largest = graphs.iter().max_by_key(|(bytes, _)| of(bytes));
            largest.expect("an autoencoder has parts")
        };
        let (session, graph) = largest(|bytes| bytes.session());
        if !self.turns {
            return device.prepare(graph, half.weights, policy).await;
        }
        let (total, whole) = largest(|bytes| bytes.total());
        if session.session() > total.session() {
            drop(device.prepare(graph, half.weights, policy).await?);
            device.settle().await?;
        }
        device.prepare(whole, half.weights, policy).await
    }
}

//! One measurement, in a process of its own.

use super::resident::{Sampler, anonymous};
use crate::Usage;
use anyhow::{Context as _, Result};
use pollster::block_on;
use rotile::backend::{Device, Planner, Session};
use rotile::checkpoint::Weights;
use rotile::diffusion::pipeline::{Models, Task};
use rotile::diffusion::tiled::{Half, Room, Route, Schedule, TileOptions, route};
use rotile::diffusion::vae::VaeTask;
use rotile::gpu::{Caps, Peak, Watch};
use rotile::graph::Graph;
use rotile::memory::estimate::{Marks, Point, Work};
use rotile::memory::peak;
use rotile::models::{Side, Vae};
use rotile::plan::{Plan, Policy};
use rotile::tensor::{DType, Tensor};

/// Tokens of the prompt in a denoising step: what short prompts are padded to.
const TOKENS: usize = 32;

/// The parts that are measured.
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) parts: Parts,
}

pub(crate) enum Parts {
    /// All of a pipeline.
    Whole(Box<Models>),
    /// An autoencoder alone.
    Vae(Vae, Weights),
}

impl Model {
    fn vae(&self) -> (&Vae, &Weights) {
        match &self.parts {
            Parts::Whole(models) => (&models.vae.0, &models.vae.1),
            Parts::Vae(vae, weights) => (vae, weights),
        }
    }

    /// Work that it can do.
    pub(crate) fn work(&self) -> Vec<Work> {
        let whole = matches!(self.parts, Parts::Whole(_));
        let can = |work: &Work| whole || !matches!(work, Work::Denoise | Work::Text);
        Work::ALL.into_iter().filter(can).collect()
    }

    /// The graph of work that runs as a whole.
    fn graph(&self, work: Work, size: usize, dtype: DType) -> Result<(Graph, &Weights)> {
        let (vae, weights) = self.vae();
        let [height, width] = [size / vae.factor(); 2];
        let task = match (work, &self.parts) {
            (Work::Text, Parts::Whole(models)) => return Ok(models.graph(Task::Text { tokens: size }, dtype)?),
            (Work::Denoise, Parts::Whole(models)) => {
                let task = Task::Denoise {
                    tokens: TOKENS,
                    height,
                    width,
                };
                return Ok(models.graph(task, dtype)?);
            }
            (Work::Decode, _) => VaeTask::Decode { height, width },
            (Work::Encode, _) => VaeTask::Encode { height, width },
            _ => return Err(Usage(format!("{} has no part for {}", self.name, work.name())).into()),
        };
        Ok((task.graph(vae, weights, dtype)?, weights))
    }

    fn half(&self, work: Work) -> Half<'_> {
        let (vae, weights) = self.vae();
        let side = match work {
            Work::Encode | Work::EncodeTiled => Side::Encoder,
            _ => Side::Decoder,
        };
        Half { vae, weights, side }
    }
}

/// Where it runs.
pub(crate) struct Place {
    pub(crate) device: Device,
    pub(crate) policy: Policy,
    pub(crate) dtype: DType,
}

/// What would run, and what is known of it. None where it makes no sense: tiles that are too small.
pub(crate) fn plan(model: &Model, work: Work, size: u32, place: &Place) -> Result<Option<Point>> {
    let (planner, caps) = (Planner::of(&place.device, &place.policy), place.device.caps());
    let (planned, known) = if let Work::DecodeTiled | Work::EncodeTiled = work {
        let Some(schedule) = schedule(model, work, size, place)? else {
            return Ok(None);
        };
        let plans = schedule.plans(model.half(work), planner)?;
        let footprint = schedule.footprint(&plans, planner);
        let host = if shares(caps) { footprint.host } else { 0 };
        let session = |plan: &Plan| planner.bytes(plan).session();
        let weights = footprint.device - plans.iter().map(session).max().unwrap_or(0);
        let known = peak::tiled(&plans, weights, footprint.host, caps);
        (footprint.device + host, known)
    } else {
        let plan = planner.plan(&model.graph(work, size as usize, place.dtype)?.0)?;
        (planner.bytes(&plan).total(), peak::whole(&plan, caps))
    };
    Ok(Some(Point {
        work,
        model: model.name.clone(),
        size,
        planned,
        known,
        runs: Vec::new(),
    }))
}

/// Whether the memory of the device is that of the machine.
fn shares(caps: Option<&Caps>) -> bool {
    caps.is_none_or(|caps| caps.software)
}

fn schedule(model: &Model, work: Work, size: u32, place: &Place) -> Result<Option<Schedule>> {
    let planner = Planner::of(&place.device, &place.policy);
    let half = model.half(work);
    let latent = [size as usize / half.vae.factor(); 2];
    let tile = TileOptions {
        size: size / 2 + 32,
        overlap: 0,
    };
    let found = route(half, latent, place.dtype, planner, Some(tile), Room::default());
    Ok(match found {
        Ok(Route::Tiled(schedule, _)) => Some(schedule),
        Ok(Route::Whole) | Err(rotile::Error::Request(_)) => None,
        Err(error) => return Err(error.into()),
    })
}

/// Compiles its kernels, then runs it twice, in one session as a pipeline does, and says how much memory each took. Values make no
/// difference.
pub(crate) fn measure(model: &Model, work: Work, size: u32, place: &Place) -> Result<Marks> {
    let run = Run::new(model, work, size, place)?;
    let shared = shares(place.device.caps());
    let opened = anonymous();
    let mut compiled = None;
    if let Device::Gpu(gpu) = &place.device {
        run.compile(place)?;
        block_on(gpu.idle())?;
        let grown = anonymous().zip(opened).filter(|_| shared);
        compiled = grown.map(|(now, opened)| now.saturating_sub(opened));
    }
    let watch = watch(&place.device)?;
    let before = (watch.as_ref().and_then(Watch::peak), anonymous());
    let sampler = Sampler::start().filter(|_| shared);
    run.twice(place)?;
    let peak = watch.as_ref().and_then(Watch::peak).zip(before.0);
    let grown = |of: fn(&Peak) -> u64| peak.as_ref().map(|(now, before)| of(now) - of(before));
    let driver = sampler.map(Sampler::finish).zip(before.1);
    Ok(Marks {
        allocated: grown(|peak| peak.allocated),
        reserved: grown(|peak| peak.reserved),
        driver: driver.map(|(most, before)| most.saturating_sub(before)),
        compiled,
    })
}

/// Starts when nothing is on its way.
fn watch(device: &Device) -> Result<Option<Watch>> {
    let Device::Gpu(gpu) = device else { return Ok(None) };
    block_on(gpu.idle())?;
    Ok(Some(gpu.watch()))
}

/// Work that is ready to be run.
enum Run<'a> {
    Whole(Graph, &'a Weights),
    Tiled(Half<'a>, Schedule),
}

impl<'a> Run<'a> {
    fn new(model: &'a Model, work: Work, size: u32, place: &Place) -> Result<Self> {
        if let Work::DecodeTiled | Work::EncodeTiled = work {
            let schedule = schedule(model, work, size, place)?.context("tiles that are too small")?;
            return Ok(Self::Tiled(model.half(work), schedule));
        }
        let (graph, weights) = model.graph(work, size as usize, place.dtype)?;
        Ok(Self::Whole(graph, weights))
    }

    fn compile(&self, place: &Place) -> Result<()> {
        match self {
            Self::Whole(graph, weights) => drop(block_on(place.device.prepare(graph, weights, &place.policy))?),
            Self::Tiled(half, schedule) => block_on(schedule.compile(*half, (&place.device, &place.policy)))?,
        }
        Ok(())
    }

    fn twice(&self, place: &Place) -> Result<()> {
        match self {
            Self::Whole(graph, weights) => whole(graph, weights, place),
            Self::Tiled(half, schedule) => tiled(*half, schedule, place),
        }
    }
}

fn whole(graph: &Graph, weights: &Weights, place: &Place) -> Result<()> {
    let mut session: Session = block_on(place.device.prepare(graph, weights, &place.policy))?;
    let zeros = |ty: &rotile::tensor::TensorType| Tensor {
        ty: ty.clone(),
        data: vec![0.0; ty.count()],
        blocks: Vec::new(),
    };
    let inputs = session.plan().inputs.iter().map(|i| (i.name.clone(), zeros(&i.ty)));
    let inputs: Vec<_> = inputs.collect();
    let given: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    for _ in 0..2 {
        block_on(session.run(&given))?;
    }
    Ok(())
}

fn tiled(half: Half<'_>, schedule: &Schedule, place: &Place) -> Result<()> {
    let [h, w] = schedule.input();
    let channels = half.vae.channels(half.side);
    let input = Tensor::new([1, channels, h, w], vec![0.0; channels * h * w]);
    let mut kept = Vec::new();
    let at = (&place.device, &place.policy);
    for _ in 0..2 {
        block_on(schedule.run(half, at, &mut kept, &input, |_| (), || Ok(())))?;
    }
    Ok(())
}

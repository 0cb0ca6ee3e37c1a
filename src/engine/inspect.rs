use super::{Int8Line, check_size};
use crate::backend::Planner;
use crate::checkpoint::{Checkpoint, Part, Weights};
use crate::diffusion::tiled::{Half, Room, Route, route};
use crate::diffusion::vae::{VaeOptions, VaeTask};
use crate::error::{Error, PlanError, Result};
use crate::gpu::Caps;
use crate::graph::{Graph, Source};
use crate::models::{Model, Side, Vae, autoencoder_kl, qwen3, z_image};
use crate::plan::{Plan, Policy};
use crate::tensor::{DType, TensorType};
use crate::text::prompt::Z_IMAGE_TOKENS;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a checkpoint holds, what it is, and what it needs on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// File.
    pub file: String,
    /// Model, as in the model table.
    pub model: &'static str,
    /// Terms of the published weights.
    pub licence: &'static str,
    /// Sizes, from shapes and `config.json`.
    pub config: String,
    /// Every tensor.
    pub tensors: Vec<TensorLine>,
    /// Bytes of weights in the file.
    pub file_bytes: u64,
    /// Storage of activations.
    pub dtype: &'static str,
    /// Int8 layers, with what half precision would do to their scales.
    pub int8: Vec<Int8Line>,
    /// How they run, and why.
    pub int8_path: Option<String>,
    /// Memory of each task.
    pub plans: Vec<PlanLine>,
}

/// A tensor of the file.
#[derive(Clone, Debug, Serialize)]
pub struct TensorLine {
    /// Name in the layout that models use.
    pub name: String,
    /// Element type in the file.
    pub dtype: String,
    /// Extents.
    pub shape: Vec<usize>,
    /// What becomes of it.
    pub status: Status,
}

/// Picture pixels per latent pixel in every autoencoder of this family: for parts that do not say.
const USUAL_FACTOR: usize = 8;

/// What becomes of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// A graph of the model uses it.
    Mapped,
    /// It belongs to the model, but this pipeline never runs it.
    NotRun,
    /// The model knows nothing of it.
    Unknown,
}

impl Status {
    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "mapped",
            Self::NotRun => "mapped, not run",
            Self::Unknown => "unknown",
        }
    }
}

/// Memory of a task at a picture size.
#[derive(Clone, Debug, Serialize)]
pub struct PlanLine {
    /// Task, with the size.
    pub task: String,
    /// Bytes of weights on the device.
    pub weights: u64,
    /// Bytes of shared activation buffers.
    pub activations: u64,
    /// Bytes of inputs and constants.
    pub inputs: u64,
    /// Bytes of parameters and read-back.
    pub transfer: u64,
    /// All of it: the peak of the task.
    pub peak: u64,
    /// Number of activation buffers.
    pub buffers: usize,
    /// Activations without sharing of buffers.
    pub unshared: u64,
    /// Operations of one run.
    pub gflop: f64,
    /// Why the plan does not run on the device as it is, if it does not.
    pub refused: Option<String>,
    /// What runs in its place, where it runs in tiles.
    pub tiles: Option<TilesLine>,
}

/// A task that runs in tiles.
#[derive(Clone, Debug, Serialize)]
pub struct TilesLine {
    /// Pixels of a tile.
    pub width: usize,
    /// Pixels of a tile.
    pub height: usize,
    /// Tiles in a row and in a column.
    pub count: [usize; 2],
    /// Bytes on the device at most: the weights and the largest session.
    pub peak: u64,
    /// Bytes in host memory at most: activations of the whole picture.
    pub host: u64,
    /// Runs of a session, over all tiles and passes.
    pub runs: usize,
    /// Tiles and the reason for them, in words.
    pub note: String,
}

/// What plans are made for.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Storage of activations.
    pub dtype: DType,
    /// Limits and features of the GPU; `None` is the CPU.
    pub gpu: Option<Caps>,
    /// How ways of operators are chosen.
    pub policy: Policy,
    /// How autoencoders run.
    pub vae: VaeOptions,
}

impl Target {
    fn planner(&self) -> Planner<'_> {
        Planner {
            caps: self.gpu.as_ref(),
            policy: &self.policy,
        }
    }

    /// Storage of activations of a model.
    fn dtype_of(&self, model: &Model) -> DType {
        match Vae::of(model) {
            Some(_) => self.vae.dtype.storage(self.dtype, self.gpu.as_ref()),
            None => self.dtype,
        }
    }
}

impl Inspection {
    /// Looks at a checkpoint and plans its tasks.
    ///
    /// # Errors
    /// If it is no known model, a tensor is missing or has another shape, or the model cannot have the size.
    pub fn of(checkpoint: &Arc<Checkpoint>, target: &Target) -> Result<Self> {
        let model = Model::read(checkpoint)?;
        let (path, choice) = target.policy.convrot.resolve(target.gpu.as_ref());
        let weights = Weights::new(checkpoint.clone()).with_convrot(path);
        // Small and ragged sizes use every tensor, the padding tokens too.
        let mut used = BTreeSet::new();
        for graph in graphs(&model, &weights, 2, 2, 1, DType::F32)? {
            used.extend(graph.1.values().filter_map(|v| match graph.1.source(v) {
                Source::Weight(name) => Some(Part::parse(name).map_or_else(|| name.clone(), |part| part.name)),
                _ => None,
            }));
        }
        let status = |name: &str| match name {
            name if used.contains(name) || read_on_host(&model, name) => Status::Mapped,
            // Scales of a weight that is brought to its true basis when it is loaded.
            name if name.strip_suffix("_scale").is_some_and(|weight| used.contains(weight)) => Status::Mapped,
            name if not_run(&model, name) => Status::NotRun,
            _ => Status::Unknown,
        };
        let line = |info: &crate::checkpoint::TensorInfo| TensorLine {
            name: info.name.clone(),
            dtype: info.dtype.to_string(),
            shape: info.shape.to_vec(),
            status: status(&info.name),
        };
        let (factor, multiple) = match (&model, Vae::of(&model)) {
            (_, Some(vae)) => (vae.factor(), vae.factor()),
            (Model::ZImage(_), _) => (USUAL_FACTOR, USUAL_FACTOR * z_image::PATCH),
            _ => (USUAL_FACTOR, 1),
        };
        check_size(target.width, target.height, multiple)?;
        let [height, width] = [target.height, target.width].map(|n| n as usize / factor);
        let dtype = target.dtype_of(&model);
        let tasks = graphs(&model, &weights, height, width, Z_IMAGE_TOKENS, dtype)?;
        let mut plans = Vec::new();
        for (task, graph) in &tasks {
            plans.push(plan(&task.text, graph, target)?);
        }
        if let Some(vae) = Vae::of(&model) {
            for (line, (task, _)) in plans.iter_mut().zip(&tasks) {
                let half = task.side.map(|side| (&vae, &weights, side));
                if let Some((vae, weights, side)) = half {
                    in_tiles(line, Half { vae, weights, side }, [height, width], target, dtype)?;
                }
            }
        }
        Ok(Self {
            file: checkpoint.name().to_owned(),
            model: model.entry().name,
            licence: model.entry().licence,
            config: config(&model),
            tensors: checkpoint.tensors().map(line).collect(),
            file_bytes: checkpoint.tensors().map(|info| info.byte_len() as u64).sum(),
            dtype: dtype.name(),
            plans,
            int8: Int8Line::all(checkpoint)?,
            int8_path: checkpoint
                .has_int8()
                .then(|| format!("{}: {}", choice.way, choice.reason)),
        })
    }
}

/// The sizes by name, as in the source.
fn config(model: &Model) -> String {
    let text = match model {
        Model::Qwen3(config) => format!("{config:?}"),
        Model::ZImage(config) => format!("{config:?}"),
        Model::AutoencoderKl(config) => format!("{config:?}"),
        Model::AutoencoderTiny(config) => format!("{config:?}"),
        Model::QwenImageVae(config) => format!("{config:?}"),
    };
    let fields = text.strip_prefix("Config { ").and_then(|t| t.strip_suffix(" }"));
    fields.unwrap_or(&text).to_owned()
}

fn plan(task: &str, graph: &Graph, target: &Target) -> Result<PlanLine> {
    let (plan, refused) = match &target.gpu {
        None => (Plan::cpu(graph), None),
        Some(caps) => gpu_plan(graph, caps, &target.policy)?,
    };
    let bytes = target.planner().bytes(&plan);
    let results = plan
        .nodes
        .iter()
        .map(|&n| graph.ty(graph.nodes()[n].output).byte_len() as u64);
    Ok(PlanLine {
        task: task.to_owned(),
        weights: bytes.weights,
        activations: bytes.activations,
        inputs: bytes.inputs,
        transfer: bytes.transfer,
        peak: bytes.total(),
        buffers: plan.buffers.len(),
        unshared: results.sum(),
        gflop: plan.cost.flops / 1e9,
        refused,
        tiles: None,
    })
}

/// Says how a half of an autoencoder runs where it does not run as a whole.
fn in_tiles(line: &mut PlanLine, half: Half<'_>, size: [usize; 2], target: &Target, dtype: DType) -> Result<()> {
    let planner = target.planner();
    match route(
        half,
        size,
        dtype,
        planner,
        target.vae.tile,
        Room::here(target.vae.max_memory),
    ) {
        Ok(Route::Whole) => (),
        Ok(Route::Tiled(schedule, note)) => {
            let footprint = schedule.footprint(&schedule.plans(half, planner)?, planner);
            let grid = schedule.grid();
            let [height, width] = grid.tile().map(|n| n * half.vae.factor());
            line.tiles = Some(TilesLine {
                width,
                height,
                count: [grid.x.count(), grid.y.count()],
                peak: footprint.device,
                host: footprint.host,
                runs: schedule.runs(),
                note,
            });
        }
        // Not even tiles fit: the whole's reason stands, or this one.
        Err(error @ (Error::Plan(_) | Error::OutOfMemory { .. })) => {
            let refused = line.refused.get_or_insert_with(|| error.to_string());
            if target.gpu.is_some() && target.vae.fallback {
                refused.push_str("; a run moves it to the CPU");
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// A plan for a GPU. Where a limit is in the way: the plan without limits, and what is in the way.
fn gpu_plan(graph: &Graph, caps: &Caps, policy: &Policy) -> Result<(Plan, Option<String>)> {
    let error = match Plan::gpu(graph, caps, policy) {
        Ok(plan) => return Ok((plan, None)),
        Err(error @ (PlanError::ExceedsLimit { .. } | PlanError::IndexOverflow { .. })) => error,
        Err(error) => return Err(error.into()),
    };
    let unlimited = Caps {
        max_binding: u64::MAX,
        max_buffer: u64::MAX,
        ..caps.clone()
    };
    Ok((Plan::gpu(graph, &unlimited, policy)?, Some(error.to_string())))
}

/// Tensors that the pipeline knows and leaves alone: it takes the text encoder's last hidden state but one.
fn not_run(model: &Model, name: &str) -> bool {
    match model {
        Model::Qwen3(config) => {
            let last = format!("layers.{}.", config.layers.saturating_sub(1));
            name.starts_with(&last) || name == "norm.weight" || name == "lm_head.weight"
        }
        // Counts the steps of the training.
        Model::AutoencoderKl(config) => config.packing.is_some() && name == "bn.num_batches_tracked",
        // For more than one frame.
        Model::QwenImageVae(_) => name.contains(".time_conv."),
        _ => false,
    }
}

/// Tensors whose values go into constants of a graph.
fn read_on_host(model: &Model, name: &str) -> bool {
    match model {
        Model::AutoencoderKl(config) => config.packing.is_some() && autoencoder_kl::STATISTICS.contains(&name),
        _ => false,
    }
}

/// A graph of a model.
struct Task {
    /// With the size.
    text: String,
    /// Half of an autoencoder.
    side: Option<Side>,
}

/// The graphs of a model, for a latent of `height` by `width` and a prompt of `tokens` tokens.
fn graphs(
    model: &Model,
    w: &Weights,
    height: usize,
    width: usize,
    tokens: usize,
    dtype: DType,
) -> Result<Vec<(Task, Graph)>> {
    let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let mut list = Vec::new();
    let mut add = |name: String, build: &dyn Fn(&mut Graph) -> Result<()>| {
        let mut g = Graph::new(dtype);
        build(&mut g)?;
        list.push((Task { text: name, side: None }, g));
        Ok::<_, Error>(())
    };
    let size = format!("{height}x{width} latent");
    match model {
        Model::Qwen3(config) => add(format!("text, {tokens} tokens"), &|g| {
            let ids = g.input("ids", TensorType::new(DType::U32, [tokens]));
            let embeddings = qwen3::encoder(g, w, config, ids)?;
            g.output("embeddings", embeddings);
            Ok(())
        })?,
        Model::ZImage(config) => add(format!("one step, {size}, {tokens} tokens"), &|g| {
            let latent = g.input("latent", f32(&[config.channels, height, width]));
            let time = g.input("time", f32(&[1]));
            let caption = g.input("caption", f32(&[tokens, config.caption_dim]));
            let output = z_image::transformer(g, w, config, latent, time, caption)?;
            g.output("output", output);
            Ok(())
        })?,
        Model::AutoencoderKl(_) | Model::AutoencoderTiny(_) | Model::QwenImageVae(_) => {
            let Some(vae) = Vae::of(model) else { return Ok(list) };
            let halves = [
                ("decode", vae.has_decoder(), VaeTask::Decode { height, width }),
                ("encode", vae.has_encoder(), VaeTask::Encode { height, width }),
            ];
            for (name, _, task) in halves.iter().filter(|(_, there, _)| *there) {
                let (text, side) = (format!("{name}, {size}"), Some(task.side()));
                list.push((Task { text, side }, task.graph(&vae, w, dtype)?));
            }
        }
    }
    Ok(list)
}

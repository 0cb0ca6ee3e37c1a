//! `rotile inspect`.

use crate::args::InspectArgs;
use crate::{Usage, devices, output};
use anyhow::{Context as _, Result};
use rotile::checkpoint::Checkpoint;
use rotile::engine::{Inspection, Int8Line, PlanLine, Status, Target, TensorLine};
use rotile::gpu::adapters;
use rotile::media::Image;
use rotile::plan::Policy;
use rotile::tensor::DType;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::sync::Arc;

/// Side of the picture that is planned for.
const SIDE: u32 = 1024;

pub(crate) fn run(args: &InspectArgs, as_json: bool) -> Result<()> {
    if let Some(path) = args
        .path
        .as_deref()
        .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")))
    {
        return picture(path, as_json);
    }
    let (parts, only_size) = parts(args)?;
    let (width, height) = only_size.unwrap_or((SIDE, SIDE));
    let (width, height) = (args.width.unwrap_or(width), args.height.unwrap_or(height));
    let options = args.model.device.options();
    let list = pollster::block_on(adapters());
    let gpu = devices::chosen(&list, &options.device)?;
    let gpu = gpu.map(|(index, _)| list[index].caps.limited(&options.limits));
    let target = Target {
        width,
        height,
        dtype: options.dtype.unwrap_or(DType::F32),
        policy: Policy {
            forced: options.kernels,
            convrot: options.convrot,
        },
        vae: args.vae.options().at_most(args.memory.max_memory, gpu.as_ref())?,
        gpu,
    };
    if target.gpu.is_none() && target.dtype != DType::F32 {
        return Err(Usage(format!("the CPU stores activations as f32, not {}", target.dtype)).into());
    }
    let device = target.gpu.as_ref().map_or("CPU".into(), ToString::to_string);
    let look = |part: &Arc<Checkpoint>| Inspection::of(part, &target);
    let found = parts.iter().map(look).collect::<rotile::Result<Vec<_>>>()?;
    if as_json {
        return output::json(&json!({
            "width": width,
            "height": height,
            "device": device,
            "dtype": target.dtype.name(),
            "parts": serde_json::to_value(&found)?,
        }));
    }
    for part in &found {
        text(part)?;
    }
    let dtypes: Vec<_> = found.iter().map(|part| part.dtype).collect();
    let dtype = match dtypes.iter().find(|dtype| **dtype != target.dtype.name()) {
        Some(vae) if dtypes.len() > 1 => format!("{}, {vae} in the autoencoder", target.dtype),
        Some(vae) => (*vae).to_owned(),
        None => target.dtype.to_string(),
    };
    output::line(format_args!(
        "planned for {width}x{height} pixels on {device}, activations as {dtype}"
    ))
}

/// Width and height in pixels.
type Size = (u32, u32);

/// The checkpoints to look at, and the only size that the model knows.
fn parts(args: &InspectArgs) -> Result<(Vec<Arc<Checkpoint>>, Option<Size>)> {
    // A folder with an index is a whole pipeline; anything else is one part.
    if let Some(path) = args
        .path
        .as_ref()
        .filter(|path| !path.join("model_index.json").is_file())
    {
        return Ok((vec![Arc::new(Checkpoint::open(path)?)], None));
    }
    let source = args.model.source(args.path.as_ref())?;
    let parts = source.parts;
    Ok((
        vec![parts.text_encoder, parts.transformer, parts.vae],
        source.defaults.only_size,
    ))
}

fn text(part: &Inspection) -> Result<()> {
    output::line(format_args!(
        "{}\n  model      {}\n  published  {}\n  config     {}",
        part.file, part.model, part.licence, part.config
    ))?;
    let shape = |tensor: &TensorLine| {
        let extents: Vec<_> = tensor.shape.iter().map(ToString::to_string).collect();
        extents.join("x")
    };
    let width = part.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    let shapes = part.tensors.iter().map(|t| shape(t).len()).max().unwrap_or(0);
    for tensor in &part.tensors {
        let shape = shape(tensor);
        output::line(format_args!(
            "  {:<width$}  {:<4}  {shape:<shapes$}  {}",
            tensor.name,
            tensor.dtype,
            tensor.status.name()
        ))?;
    }
    let count = |status: Status| part.tensors.iter().filter(|t| t.status == status).count();
    output::line(format_args!(
        "  {} tensors: {} mapped, {} mapped but not run, {} unknown; {:.2} MiB",
        part.tensors.len(),
        count(Status::Mapped),
        count(Status::NotRun),
        count(Status::Unknown),
        mib(part.file_bytes)
    ))?;
    int8(part)?;
    plans(&part.plans)?;
    output::line("")
}

/// How int8 layers run, and the layers whose scales F16 could not hold.
fn int8(part: &Inspection) -> Result<()> {
    let Some(path) = &part.int8_path else { return Ok(()) };
    output::line(format_args!("  int8 layers run as {path}"))?;
    let lost = |line: &&Int8Line| line.subnormal + line.zero + line.infinite > 0;
    for line in part.int8.iter().filter(lost) {
        output::line(format_args!(
            "    {}: of {} scales {} would be subnormal in F16, {} zero, {} infinite",
            line.name, line.rows, line.subnormal, line.zero, line.infinite
        ))?;
    }
    let worst = part.int8.iter().map(|line| line.worst).fold(0.0, f32::max);
    output::line(format_args!(
        "  {} int8 layers; scales stay F32, where F16 would be off by up to {:.3} %",
        part.int8.len(),
        100.0 * worst
    ))
}

/// A table: bytes of the whole, MiB of its parts.
fn plans(plans: &[PlanLine]) -> Result<()> {
    let width = plans.iter().map(|p| p.task.len()).max().unwrap_or(0);
    output::line(format_args!(
        "  {:<width$}  {:>12} = {:>9} + {:>11} + {:>7} + {:>8} MiB  {:>7}  {:>12}  {:>8}",
        "plan", "peak bytes", "weights", "activations", "inputs", "transfer", "buffers", "unshared MiB", "GFLOP"
    ))?;
    for plan in plans {
        output::line(format_args!(
            "  {:<width$}  {:>12}   {:>9.2}   {:>11.2}   {:>7.2}   {:>8.2}      {:>7}  {:>12.2}  {:>8.1}",
            plan.task,
            plan.peak,
            mib(plan.weights),
            mib(plan.activations),
            mib(plan.inputs),
            mib(plan.transfer),
            plan.buffers,
            mib(plan.unshared),
            plan.gflop
        ))?;
        match (&plan.tiles, &plan.refused) {
            (Some(tiles), _) => output::line(format_args!(
                "    runs in tiles: {}; peak {} bytes on the device ({:.2} MiB), {:.2} MiB in host memory",
                tiles.note,
                tiles.peak,
                mib(tiles.peak),
                mib(tiles.host)
            ))?,
            (None, Some(reason)) => {
                output::line(format_args!("    does not run on this device as it is: {reason}"))?;
            }
            (None, None) => (),
        }
    }
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Size and text chunks of a PNG.
fn picture(path: &Path, as_json: bool) -> Result<()> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| name.clone())?;
    let image = Image::from_bytes(&bytes, &name)?;
    let text = Image::png_text(&bytes, &name)?;
    if as_json {
        let text: Map<_, _> = text.into_iter().map(|(k, v)| (k, Value::from(v))).collect();
        return output::json(&json!({ "width": image.width(), "height": image.height(), "text": text }));
    }
    output::line(format_args!("{}x{}", image.width(), image.height()))?;
    for (keyword, text) in text {
        output::line(format_args!("{keyword}: {text}"))?;
    }
    Ok(())
}

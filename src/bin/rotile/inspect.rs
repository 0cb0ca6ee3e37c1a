//! `rotile inspect`.

use crate::args::InspectArgs;
use crate::output;
use anyhow::{Context as _, Result};
use rotile::checkpoint::Checkpoint;
use rotile::engine::{DeviceChoice, Inspection, PlanLine, Status};
use rotile::gpu::{AdapterChoice, Caps, adapters, choose};
use rotile::media::Image;
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
    let caps = caps(&args.model.device.options().device)?;
    let look = |part: &Arc<Checkpoint>| Inspection::of(part, width as usize, height as usize, &caps);
    let found = parts.iter().map(look).collect::<rotile::Result<Vec<_>>>()?;
    if as_json {
        return output::json(&json!({
            "width": width,
            "height": height,
            "device": caps.to_string(),
            "parts": serde_json::to_value(&found)?,
        }));
    }
    for part in &found {
        text(part)?;
    }
    output::line(format_args!("planned for {width}x{height} pixels on {caps}"))
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

/// Limits to plan within: those of the adapter that would be used, WebGPU's defaults for the CPU or without any.
fn caps(device: &DeviceChoice) -> Result<Caps> {
    let list = pollster::block_on(adapters());
    let choice = match device {
        DeviceChoice::Cpu => return Ok(Caps::baseline()),
        DeviceChoice::Auto if list.is_empty() => return Ok(Caps::baseline()),
        DeviceChoice::Auto => &AdapterChoice::Best,
        DeviceChoice::Gpu(choice) => choice,
    };
    let (index, _) = choose(&list, choice)?;
    Ok(list[index].caps.clone())
}

fn text(part: &Inspection) -> Result<()> {
    output::line(format_args!(
        "{}\n  model    {}\n  licence  {}\n  config   {}",
        part.file, part.model, part.licence, part.config
    ))?;
    let width = part.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0);
    for tensor in &part.tensors {
        let shape = tensor
            .shape
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("x");
        output::line(format_args!(
            "  {:<width$}  {:<4}  {shape:<16} {}",
            tensor.name,
            tensor.dtype,
            tensor.status.name()
        ))?;
    }
    let count = |status: Status| part.tensors.iter().filter(|t| t.status == status).count();
    output::line(format_args!(
        "  {} tensors: {} mapped, {} mapped but not run, {} unknown; {}",
        part.tensors.len(),
        count(Status::Mapped),
        count(Status::NotRun),
        count(Status::Unknown),
        mib(part.file_bytes)
    ))?;
    part.plans.iter().try_for_each(plan)?;
    output::line("")
}

fn plan(plan: &PlanLine) -> Result<()> {
    output::line(format_args!(
        "  {}: peak {} = weights {} + activations {} in {} buffers (unshared {}) + inputs {} + transfer {}; {:.1} GFLOP",
        plan.task,
        mib(plan.peak),
        mib(plan.weights),
        mib(plan.activations),
        plan.buffers,
        mib(plan.unshared),
        mib(plan.inputs),
        mib(plan.transfer),
        plan.gflop
    ))?;
    match &plan.refused {
        Some(reason) => output::line(format_args!("    does not run as it is: {reason}")),
        None => Ok(()),
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20))
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

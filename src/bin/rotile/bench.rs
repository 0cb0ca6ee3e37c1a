//! `rotile bench`.

use crate::args::{BenchArgs, BenchWhat, DeviceArgs, ModelArgs};
use crate::progress::Progress;
use crate::{cancel_on_signal, output};
use anyhow::Result;
use rotile::engine::{Event, Request};
use rotile::error::GpuError;
use rotile::gpu::{Caps, Gpu};
use rotile::op::{AnyCase, Cost};
use rotile::ops::OPS;
use rotile::tensor::{Tensor, TensorType, View};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// What a measurement takes at least.
const LONG_ENOUGH: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &BenchArgs, as_json: bool) -> Result<()> {
    match &args.what {
        BenchWhat::Ops { filter, all, device } => ops(filter, *all, device, as_json),
        BenchWhat::Model {
            steps,
            guidance,
            width,
            height,
            model,
        } => {
            let request = Request {
                width: *width,
                height: *height,
                ..Request::new("a paper boat on the sea below a cliff at sunset")
                    .steps(*steps)
                    .guidance(*guidance)
            };
            self::model(&request, model, as_json)
        }
    }
}

fn ops(filter: &str, all: bool, device: &DeviceArgs, as_json: bool) -> Result<()> {
    let options = device.options();
    let gpu = options
        .device
        .adapter()
        .map(|choice| pollster::block_on(Gpu::open(&choice)))
        .transpose()?;
    let caps = gpu.as_ref().map_or_else(Caps::baseline, |gpu| gpu.caps().clone());
    let name = if gpu.is_some() { caps.to_string() } else { "CPU".into() };
    if !as_json {
        output::line(format_args!(
            "{name}\n{:<18} {:<10} {:>11} {:>9} {:>8}  case",
            "operator", "way", "time", "GFLOP/s", "GB/s"
        ))?;
    }
    let mut rows = Vec::new();
    for entry in OPS.iter().filter(|entry| entry.name.contains(filter)) {
        let cases = (entry.cases)();
        let skip = if all { 0 } else { cases.len().saturating_sub(3) };
        for case in cases.into_iter().skip(skip) {
            let output = case.op.infer(&case.inputs)?;
            let label = case
                .inputs
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            let label = format!("{label}  {:?}", case.op);
            let cost = case.op.cost(&case.inputs, &output);
            let values = values(&case);
            let mut report =
                |way: &str, seconds: f64| row(&mut rows, (entry.name, way, &label), seconds, cost, as_json);
            match &gpu {
                Some(gpu) => {
                    for way in case.op.ways(&case.inputs, &output, &caps) {
                        let ready = pollster::block_on(gpu.repeat_way(&way, &values, &output))?;
                        report(way.name, measure(|times| ready.run(times))?)?;
                    }
                }
                None => report("cpu", on_cpu(&case, &values, &output)?)?,
            }
        }
    }
    if as_json {
        output::json(&json!({ "device": name, "ops": rows }))?;
    }
    Ok(())
}

fn on_cpu(case: &AnyCase, values: &[Tensor], output: &TensorType) -> Result<f64> {
    let views: Vec<View<'_>> = values.iter().map(Tensor::view).collect();
    let mut result = vec![0.0; output.count()];
    let mut run = |times: u32| {
        for _ in 0..times {
            if !case.op.compute(&views, &mut result) {
                result = case.op.reference(&views);
            }
        }
        Ok(())
    };
    Ok(measure(&mut run)?)
}

fn row(
    rows: &mut Vec<Value>,
    (op, way, case): (&str, &str, &str),
    seconds: f64,
    cost: Cost,
    as_json: bool,
) -> Result<()> {
    let (flops, bytes) = (cost.flops / seconds / 1e9, cost.bytes / seconds / 1e9);
    rows.push(json!({
        "op": op,
        "way": way,
        "case": case,
        "seconds": seconds,
        "gflops": output::number(flops, 3),
        "gbytes": output::number(bytes, 3),
    }));
    if as_json {
        return Ok(());
    }
    let time = format!("{:.1} us", seconds * 1e6);
    output::line(format_args!(
        "{op:<18} {way:<10} {time:>11} {flops:>9.2} {bytes:>8.2}  {case}"
    ))
}

/// Seconds of one run: the best of three rounds, each long enough for the clock.
fn measure(mut run: impl FnMut(u32) -> Result<(), GpuError>) -> Result<f64, GpuError> {
    run(1)?;
    let mut timed = |times: u32| -> Result<f64, GpuError> {
        let start = Instant::now();
        run(times)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(times))
    };
    let first = timed(1)?;
    let times = (LONG_ENOUGH.as_secs_f64() / first).clamp(1.0, 1000.0) as u32;
    let mut best = first;
    for _ in 0..3 {
        best = best.min(timed(times)?);
    }
    Ok(best)
}

/// The same values in every run, uniform in -1..1.
fn values(case: &AnyCase) -> Vec<Tensor> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    case.op.sample(&case.inputs, &mut uniform)
}

fn model(request: &Request, model: &ModelArgs, as_json: bool) -> Result<()> {
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("load");
    let start = Instant::now();
    let mut engine = model.open()?;
    let load = start.elapsed().as_secs_f64();
    // The first run compiles and allocates; the second is what is measured.
    pollster::block_on(engine.generate(request, |event| progress.show(event), &cancel))?;
    let first = start.elapsed().as_secs_f64() - load;
    let mut marks = Vec::new();
    let start = Instant::now();
    let mark = |event: Event| {
        let name = match &event {
            Event::Stage { name } => Some(*name),
            Event::Step { .. } => Some("step"),
            _ => None,
        };
        marks.extend(name.map(|name| (name, start.elapsed().as_secs_f64())));
        progress.show(event);
    };
    pollster::block_on(engine.generate(request, mark, &cancel))?;
    let whole = start.elapsed().as_secs_f64();
    drop(progress);

    let end = |i: usize| marks.get(i + 1).map_or(whole, |(_, time)| *time);
    let stage = |wanted: &str| -> Option<f64> {
        let found = marks.iter().enumerate().filter(|(_, (name, _))| *name == wanted);
        found.map(|(i, (_, begin))| end(i) - begin).reduce(|a, b| a + b)
    };
    // A step event ends its step; what lies before the first is the denoise stage's mark.
    let ends = || marks.iter().enumerate().filter(|(_, (name, _))| *name == "step");
    let steps: Vec<f64> = ends()
        .map(|(i, (_, time))| time - marks[..i].last().map_or(0.0, |(_, t)| *t))
        .collect();
    let mut sorted = steps.clone();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(sorted.len() / 2).copied();
    let ms = |seconds: Option<f64>| seconds.map_or(Value::Null, |s| output::number(s * 1e3, 2));
    let found = json!({
        "load_ms": ms(Some(load)),
        "first_run_ms": ms(Some(first)),
        "run_ms": ms(Some(whole)),
        "text_ms": ms(stage("text")),
        "step_ms": { "median": ms(median), "best": ms(sorted.first().copied()), "worst": ms(sorted.last().copied()), "steps": steps.len() },
        "decode_ms": ms(stage("decode")),
    });
    if as_json {
        return output::json(&found);
    }
    let mut text = String::new();
    output::tree(&found, 0, &mut text);
    output::line(text.trim_end())
}

//! `rotile bench`.

use crate::args::{BenchArgs, BenchWhat, DeviceArgs, ModelArgs};
use crate::output;
use anyhow::Result;
use rotile::backend::{Device, Session};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::diffusion::pipeline::Task;
use rotile::graph::Graph;
use rotile::op::{Cost, Op};
use rotile::ops::OPS;
use rotile::plan::Policy;
use rotile::tensor::{Tensor, TensorType};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a measurement takes at least.
const LONG_ENOUGH: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &BenchArgs, as_json: bool) -> Result<()> {
    let mut found = Map::new();
    if args.filter.is_none() && args.only != Some(BenchWhat::Ops) {
        found.insert(
            "model".into(),
            self::model(args.width, args.height, &args.model, as_json)?,
        );
    }
    if args.only != Some(BenchWhat::Model) {
        let filter = args.filter.as_deref().unwrap_or_default();
        found.insert("operators".into(), ops(filter, args.all, &args.model.device, as_json)?);
    }
    if as_json { output::json(&found.into()) } else { Ok(()) }
}

/// One operator with the types of a case.
struct Case {
    op: Arc<dyn Op>,
    inputs: Vec<TensorType>,
    output: TensorType,
}

fn ops(filter: &str, all: bool, args: &DeviceArgs, as_json: bool) -> Result<Value> {
    let options = args.options();
    let (device, _) = pollster::block_on(options.device.open(&options.limits))?;
    if !as_json {
        output::line(device.name())?;
        output::line(format_args!(
            "{:<20} {:<10} {:>12} {:>9} {:>8}  case",
            "operator", "way", "time", "GFLOP/s", "GB/s"
        ))?;
    }
    let mut rows = Vec::new();
    for entry in OPS.iter().filter(|entry| entry.name.contains(filter)) {
        let cases = (entry.cases)();
        let skip = if all { 0 } else { cases.len().saturating_sub(3) };
        for case in cases.into_iter().skip(skip) {
            let case = Case {
                output: case.op.infer(&case.inputs)?,
                op: case.op.into(),
                inputs: case.inputs,
            };
            let cost = case.op.cost(&case.inputs, &case.output);
            let ways = match &device {
                Device::Gpu(gpu) => case
                    .op
                    .ways(&case.inputs, &case.output, gpu.caps())
                    .iter()
                    .map(|w| w.name)
                    .collect(),
                Device::Cpu(_) => vec!["cpu"],
            };
            for way in ways {
                let policy = Policy {
                    forced: vec![(entry.name.to_owned(), way.to_owned())],
                    ..Policy::default()
                };
                let mut session = prepare(&case, &device, &policy)?;
                let row = Row {
                    op: entry.name,
                    way,
                    case: format!("{} {:?}", list(&case.inputs), case.op),
                    seconds: measure(&mut session)?,
                    cost,
                };
                if !as_json {
                    row.print()?;
                }
                rows.push(row.to_json());
            }
        }
    }
    Ok(json!({ "device": device.name(), "ops": rows }))
}

/// A session of one node, with the same values in every run.
fn prepare(case: &Case, device: &Device, policy: &Policy) -> Result<Session> {
    let mut graph = Graph::new(case.output.dtype);
    let names: Vec<String> = (0..case.inputs.len()).map(|i| format!("x{i}")).collect();
    let inputs: Vec<_> = names
        .iter()
        .zip(&case.inputs)
        .map(|(name, ty)| graph.input(name, ty.clone()))
        .collect();
    let result = graph.push_shared(case.op.clone(), &inputs)?;
    graph.output("y", result);
    let none = Checkpoint::describe("none", r#"{"tensors": {}}"#)?;
    let mut session = pollster::block_on(device.prepare(&graph, &Weights::new(Arc::new(none)), policy))?;
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let values = case.op.sample(&case.inputs, &mut uniform);
    let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&values).collect();
    pollster::block_on(session.run(&given))?;
    Ok(session)
}

/// Seconds of one run: the best of three rounds, each long enough for the clock.
fn measure(session: &mut Session) -> rotile::Result<f64> {
    let mut timed = |times: u32| {
        let start = Instant::now();
        session.repeat(times)?;
        Ok::<_, rotile::Error>(start.elapsed().as_secs_f64() / f64::from(times))
    };
    // The first run pays for caches.
    timed(1)?;
    let first = timed(1)?;
    let times = (LONG_ENOUGH.as_secs_f64() / first).clamp(1.0, 1000.0) as u32;
    (0..3).try_fold(first, |best, _| Ok(best.min(timed(times)?)))
}

fn list(types: &[TensorType]) -> String {
    types
        .iter()
        .map(|t| t.to_string().replace(", ", "x").replace(' ', ""))
        .collect::<Vec<_>>()
        .join(" ")
}

/// One line of the table.
struct Row {
    op: &'static str,
    way: &'static str,
    case: String,
    seconds: f64,
    cost: Cost,
}

impl Row {
    fn rates(&self) -> (f64, f64) {
        (
            self.cost.flops / self.seconds / 1e9,
            self.cost.bytes / self.seconds / 1e9,
        )
    }

    fn print(&self) -> Result<()> {
        let (time, (flops, bytes)) = (format!("{:.1} us", self.seconds * 1e6), self.rates());
        output::line(format_args!(
            "{:<20} {:<10} {time:>12} {flops:>9.2} {bytes:>8.2}  {}",
            self.op, self.way, self.case
        ))
    }

    fn to_json(&self) -> Value {
        let (flops, bytes) = self.rates();
        json!({
            "op": self.op,
            "way": self.way,
            "case": self.case,
            "microseconds": output::number(self.seconds * 1e6, 2),
            "gflops": output::number(flops, 3),
            "gbytes": output::number(bytes, 3),
        })
    }
}

/// Tokens of a prompt of usual length, and what the denoiser pads them to.
const TOKENS: (usize, usize) = (19, 32);

fn model(width: Option<u32>, height: Option<u32>, args: &ModelArgs, as_json: bool) -> Result<Value> {
    let start = Instant::now();
    let mut engine = args.open()?;
    let load = start.elapsed().as_secs_f64();
    let (factor, _) = engine.pipeline().factors();
    let side = |asked: Option<u32>, own: u32| asked.unwrap_or(own) as usize / factor;
    let (width, height) = (
        side(width, engine.defaults().width),
        side(height, engine.defaults().height),
    );
    let (device, _) = engine.device();
    if !as_json {
        let size = format!("{}x{}", width * factor, height * factor);
        output::line(format_args!(
            "{} at {size} on {device}; opened in {:.1} ms",
            engine.name(),
            load * 1e3
        ))?;
        output::line(format_args!(
            "{:<8} {:>12} {:>12} {:>9}  memory",
            "task", "prepare", "time", "GFLOP/s"
        ))?;
    }
    let mut rows = Vec::new();
    for (name, task) in [
        ("text", Task::Text { tokens: TOKENS.0 }),
        ("caption", Task::Caption { tokens: TOKENS.0 }),
        (
            "step",
            Task::Denoise {
                tokens: TOKENS.1,
                height,
                width,
            },
        ),
        ("decode", Task::Decode { height, width }),
        ("encode", Task::Encode { height, width }),
    ] {
        let start = Instant::now();
        let session = pollster::block_on(engine.pipeline().prepare(task))?;
        let prepare = start.elapsed().as_secs_f64();
        let seconds = measure(session)?;
        let (planned, allocated) = (session.planned(), session.allocated());
        let flops = session.plan().cost.flops / seconds / 1e9;
        rows.push(json!({
            "task": name,
            "prepare_ms": output::number(prepare * 1e3, 2),
            "ms": output::number(seconds * 1e3, 3),
            "gflops": output::number(flops, 3),
            "planned_bytes": planned.total(),
            "allocated_bytes": allocated.total(),
        }));
        if !as_json {
            let [prepare, time] = [prepare, seconds].map(|s| format!("{:.2} ms", s * 1e3));
            let ratio = allocated.total() as f64 / planned.total() as f64;
            output::line(format_args!(
                "{name:<8} {prepare:>12} {time:>12} {flops:>9.2}  {planned}; allocated / planned {ratio:.3}"
            ))?;
        }
    }
    Ok(json!({
        "name": engine.name(),
        "device": device,
        "width": width * factor,
        "height": height * factor,
        "load_ms": output::number(load * 1e3, 2),
        "tasks": rows,
    }))
}

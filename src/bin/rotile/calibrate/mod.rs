//! `rotile calibrate`.

mod point;
mod resident;

use crate::args::DeviceArgs;
use crate::{Usage, output};
use anyhow::{Context as _, Result, bail};
use clap::Args;
use point::{Model, Parts, Place};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::diffusion::pipeline::Models;
use rotile::engine::{Files, Source};
use rotile::memory::estimate::{Calibration, Class, Key, Marks, Measured, Point, Work};
use rotile::models::Vae;
use rotile::plan::Policy;
use rotile::tensor::DType;
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Fresh processes for each point.
const RUNS: usize = 2;

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Model folder, or autoencoder: safetensors or GGUF file or its folder [default: the embedded model]
    #[arg(long, value_name = "PATH", env = "ROTILE_MODEL", hide_env_values = true)]
    model: Option<PathBuf>,
    /// Pixels a side, and tokens of prompts [default: 512 to 1536; less where the processor computes]
    #[arg(long, value_name = "PIXELS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    sizes: Vec<u32>,
    /// Only this work; may be repeated: decode, encode, decode-tiled, encode-tiled, denoise, text
    #[arg(long, value_name = "WORK", value_delimiter = ',', value_parser = work)]
    only: Vec<Work>,
    /// Adds what is measured to this calibration, in place of points of the same size, model and work
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure one point in this process: WORK=SIZE
    #[arg(long, hide = true, value_parser = work_and_size)]
    point: Option<(Work, u32)>,
    #[command(flatten)]
    device: DeviceArgs,
}

fn work(text: &str) -> Result<Work, String> {
    let found = Work::ALL.into_iter().find(|work| work.name() == text);
    found.ok_or_else(|| format!("wanted {}", Work::ALL.map(Work::name).join(", ")))
}

fn work_and_size(text: &str) -> Result<(Work, u32), String> {
    let (name, size) = text.split_once('=').ok_or("wanted WORK=SIZE")?;
    Ok((work(name)?, size.parse().map_err(|_| "wanted WORK=SIZE")?))
}

pub(crate) fn run(args: &CalibrateArgs, as_json: bool) -> Result<()> {
    let model = args.open()?;
    let place = args.place()?;
    if let Some((work, size)) = args.point {
        let marks = point::measure(&model, work, size, &place)?;
        return output::line(serde_json::to_string(&marks)?);
    }
    let key = Key::of(place.device.caps(), &place.policy, place.dtype)?;
    let sizes = match (args.sizes.as_slice(), key.class) {
        ([], Class::Hardware) => vec![512, 768, 1024, 1280, 1536],
        ([], Class::Software) => vec![128, 192, 256, 320, 384],
        ([], Class::Cpu) => vec![256, 320, 384, 448, 512],
        (sizes, _) => sizes.to_vec(),
    };
    let mut points = Vec::new();
    for work in model.work() {
        for &size in &sizes {
            if !args.only.is_empty() && !args.only.contains(&work) {
                continue;
            }
            let Some(mut point) = point::plan(&model, work, size, &place)? else {
                continue;
            };
            eprintln!("{} {size}: {} bytes planned", work.name(), point.planned);
            for _ in 0..RUNS {
                point.runs.push(child(work, size)?);
            }
            points.push(point);
        }
    }
    let mut found = Measured::new(key, driver(&place), points);
    if let Some(file) = &args.out {
        found = add(file, found)?;
    }
    if as_json {
        output::json(&serde_json::to_value(&found)?)
    } else {
        table(&found)
    }
}

impl CalibrateArgs {
    fn open(&self) -> Result<Model> {
        let Some(path) = &self.model else {
            return Model::whole(&embedded()?);
        };
        if path.join("model_index.json").is_file() {
            let files = Files {
                folder: Some(path.clone()),
                ..Files::default()
            };
            return Model::whole(&Source::open(&files)?);
        }
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let name = checkpoint.name().to_owned();
        let parts = Parts::Vae(Vae::read(&checkpoint)?, Weights::new(checkpoint));
        Ok(Model { name, parts })
    }

    fn place(&self) -> Result<Place> {
        let options = self.device.options();
        let (device, _) = pollster::block_on(options.device.open(&options.limits))?;
        let dtype = options.dtype.unwrap_or(DType::F32);
        if !device.dtypes().contains(&dtype) {
            let known: Vec<_> = device.dtypes().iter().map(|d| d.name()).collect();
            let message = format!(
                "{} stores activations as {}, not {dtype}",
                device.name(),
                known.join(" or ")
            );
            return Err(Usage(message).into());
        }
        Ok(Place {
            device,
            policy: Policy {
                forced: options.kernels,
                convrot: options.convrot,
            },
            dtype,
        })
    }
}

impl Model {
    fn whole(source: &Source) -> Result<Self> {
        Ok(Self {
            name: source.name.clone(),
            parts: Parts::Whole(Box::new(Models::read(&source.parts)?)),
        })
    }
}

#[cfg(feature = "scenes-tiny")]
fn embedded() -> Result<Source> {
    Ok(Source::embedded()?)
}

#[cfg(not(feature = "scenes-tiny"))]
fn embedded() -> Result<Source> {
    Err(Usage("this build has no embedded model: use --model PATH".into()).into())
}

/// Measures in a fresh process: this program with the same arguments and the point.
fn child(work: Work, size: u32) -> Result<Marks> {
    let mut command = Command::new(std::env::current_exe().context("the path of this program")?);
    command.args(std::env::args_os().skip(1));
    command.arg(format!("--point={}={size}", work.name()));
    let out = command.stderr(Stdio::piped()).output().context("starting a process")?;
    if !out.status.success() {
        let message = String::from_utf8_lossy(&out.stderr);
        bail!("{} at {size}: {}", work.name(), message.trim_end());
    }
    Ok(serde_json::from_slice(&out.stdout)?)
}

/// What else decides.
fn driver(place: &Place) -> String {
    match place.device.caps() {
        Some(caps) => caps.driver.clone(),
        None => format!(
            "{} threads",
            std::thread::available_parallelism().map_or(1, usize::from)
        ),
    }
}

/// Puts points into a file of calibrations, where those of the same key are kept, and fits again.
fn add(file: &PathBuf, found: Measured) -> Result<Measured> {
    let mut all = match std::fs::read_to_string(file) {
        Ok(text) => Calibration::parse(&text).with_context(|| file.display().to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Calibration::default(),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let same = |a: &Point, b: &Point| (a.work, &a.model, a.size) == (b.work, &b.model, b.size);
    let mut points = found.points;
    if let Some(old) = all.measured.iter().find(|m| m.key == found.key) {
        let kept = old.points.iter().filter(|old| !points.iter().any(|new| same(old, new)));
        let kept: Vec<_> = kept.cloned().collect();
        points.extend(kept);
    }
    points.sort_by(|a, b| (a.work, &a.model, a.size).cmp(&(b.work, &b.model, b.size)));
    let merged = Measured::new(found.key, found.driver, points);
    all = all.merge(Calibration {
        measured: vec![merged.clone()],
    });
    let text = format!("{:#}\n", serde_json::to_value(&all)?);
    output::file(file, text.as_bytes())?;
    Ok(merged)
}

fn table(found: &Measured) -> Result<()> {
    let Key {
        adapter,
        backend,
        ways,
        dtype,
        ..
    } = &found.key;
    output::line(format_args!("{adapter} ({backend}, {}) {dtype} {ways}", found.driver))?;
    output::line(format_args!(
        "{:<13} {:<24} {:>5} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9} {:>6} {:>8} {:>6}",
        "work",
        "model",
        "size",
        "planned",
        "known",
        "allocated",
        "reserved",
        "driver",
        "estimate",
        "ratio",
        "kernels",
        "all"
    ))?;
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for point in &found.points {
        let most = |of: fn(&Marks) -> Option<u64>| {
            let most = point.runs.iter().filter_map(of).max();
            most.map_or("?".into(), mib)
        };
        let line = found.lines.iter().find(|line| line.work == point.work);
        let kernels = line.map_or(0, |line| line.kernels);
        let estimate = point.known + line.map_or(0, |line| line.overhead(point.known));
        output::line(format_args!(
            "{:<13} {:<24} {:>5} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9} {:>6.3} {:>8} {:>6.3}",
            point.work.name(),
            point.model.chars().take(24).collect::<String>(),
            point.size,
            mib(point.planned),
            mib(point.known),
            most(|m| m.allocated),
            most(|m| m.reserved),
            most(|m| m.driver),
            mib(estimate),
            estimate as f64 / point.demand() as f64,
            mib(point.compiled()),
            (estimate + kernels) as f64 / total(point) as f64
        ))?;
    }
    for line in &found.lines {
        let text = json!({ "base": line.base, "slope": line.slope, "kernels": line.kernels });
        output::line(format_args!("{}: {text}", line.work.name()))?;
    }
    Ok(())
}

/// Most bytes of a process, kernels included.
fn total(point: &Point) -> u64 {
    let sum = |run: &Marks| run.demand() + run.compiled.unwrap_or(0);
    point.runs.iter().map(sum).max().unwrap_or(0)
}

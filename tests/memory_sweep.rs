//! A model of a gigabyte, from all the memory that it needs down to the floor: which tier is at work, what is really taken, how long it takes, and that
//! the picture is the same.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/counting.rs"]
mod counting;
#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::scenes;
use pollster::block_on;
use rotile::backend::{Device, Planner};
use rotile::diffusion::MemoryOptions;
use rotile::diffusion::pipeline::Task;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Files, Options, Picture, Request, Source};
use rotile::error::{Error, PlanError};
use rotile::gpu::{AdapterChoice, Watch};
use rotile::memory::budget::MaxMemory;
use rotile::memory::offload::Blocks;
use rotile::memory::tier::Tier;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

const PROMPT: &str = "a red paper boat";

const SIDE: u32 = 64;

/// Sizes of a transformer.
#[derive(Clone, Copy)]
struct Sizes {
    dim: usize,
    heads: usize,
    intermediate: usize,
    layers: usize,
    refiners: usize,
}

/// A random Z-Image in half precision that fits the embedded model's text encoder and autoencoder.
fn write_transformer(folder: &Path, s: Sizes) {
    const MODULATION: usize = 256;
    let mut tensors: Vec<(String, Vec<usize>)> = Vec::new();
    let mut add = |name: &str, shape: &[usize]| tensors.push((name.to_owned(), shape.to_vec()));
    let (dim, head) = (s.dim, s.dim / s.heads);
    add("all_x_embedder.2-1.weight", &[dim, 64]);
    add("all_x_embedder.2-1.bias", &[dim]);
    add("all_final_layer.2-1.linear.weight", &[64, dim]);
    add("all_final_layer.2-1.linear.bias", &[64]);
    add("all_final_layer.2-1.adaLN_modulation.1.weight", &[dim, MODULATION]);
    add("all_final_layer.2-1.adaLN_modulation.1.bias", &[dim]);
    add("cap_embedder.0.weight", &[256]);
    add("cap_embedder.1.weight", &[dim, 256]);
    add("cap_embedder.1.bias", &[dim]);
    add("t_embedder.mlp.0.weight", &[1024, 256]);
    add("t_embedder.mlp.0.bias", &[1024]);
    add("t_embedder.mlp.2.weight", &[MODULATION, 1024]);
    add("t_embedder.mlp.2.bias", &[MODULATION]);
    add("x_pad_token", &[1, dim]);
    add("cap_pad_token", &[1, dim]);
    for (kind, count) in [
        ("layers", s.layers),
        ("noise_refiner", s.refiners),
        ("context_refiner", s.refiners),
    ] {
        for i in 0..count {
            let mut add = |name: &str, shape: &[usize]| add(&format!("{kind}.{i}.{name}"), shape);
            for name in ["to_q", "to_k", "to_v", "to_out.0"] {
                add(&format!("attention.{name}.weight"), &[dim, dim]);
            }
            for name in ["norm_q", "norm_k"] {
                add(&format!("attention.{name}.weight"), &[head]);
            }
            for name in ["attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"] {
                add(&format!("{name}.weight"), &[dim]);
            }
            add("feed_forward.w1.weight", &[s.intermediate, dim]);
            add("feed_forward.w2.weight", &[dim, s.intermediate]);
            add("feed_forward.w3.weight", &[s.intermediate, dim]);
            if kind != "context_refiner" {
                add("adaLN_modulation.0.weight", &[4 * dim, MODULATION]);
                add("adaLN_modulation.0.bias", &[4 * dim]);
            }
        }
    }
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, shape) in &tensors {
        let end = at + 2 * shape.iter().product::<usize>();
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": "F16", "shape": shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let file = File::create(folder.join("diffusion_pytorch_model.safetensors")).expect("a temporary file");
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("writes");
    file.write_all(&header).expect("writes");
    for (name, shape) in &tensors {
        let mut next = support::uniform(name);
        let scale = (3.0 / *shape.last().unwrap_or(&1) as f32).sqrt();
        for _ in 0..shape.iter().product::<usize>() {
            let value = match name.contains("norm") || name == "cap_embedder.0.weight" {
                true => 1.0,
                false => scale * next(),
            };
            file.write_all(&half::f16::from_f32(value).to_le_bytes())
                .expect("writes");
        }
    }
    file.flush().expect("writes");
    let axes = [head / 4, head * 3 / 8, head * 3 / 8];
    let config = serde_json::json!({
        "_class_name": "ZImageTransformer2DModel", "all_f_patch_size": [1], "all_patch_size": [2], "axes_dims": axes,
        "axes_lens": [1024, 256, 256], "cap_feat_dim": 256, "dim": dim, "in_channels": 16, "n_heads": s.heads,
        "n_kv_heads": s.heads, "n_layers": s.layers, "n_refiner_layers": s.refiners, "norm_eps": 1e-5, "qk_norm": true,
        "rope_theta": 256.0, "t_scale": 1000.0,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("writes");
}

/// The largest block of a task and what its session takes beside weights, for the task where both are the most.
fn largest_block(files: &Files, device: &DeviceChoice) -> u64 {
    let options = Options {
        device: device.clone(),
        ..Options::default()
    };
    let mut engine = block_on(Engine::new(Source::open(files).expect("opens"), &options)).expect("fits");
    let pipeline = engine.pipeline();
    let planner = Planner::of(pipeline.device(), pipeline.policy());
    let tokens = pipeline.tokens(PROMPT).expect("tokens").ids.len();
    let denoise = Task::Denoise {
        tokens: tokens.next_multiple_of(32),
        height: SIDE as usize / 8,
        width: SIDE as usize / 8,
    };
    let tasks = [Task::Text { tokens }, Task::Caption { tokens }, denoise];
    let bytes = tasks.map(|task| {
        let plan = pipeline.plan(task).expect("plans");
        Blocks::of(&plan, planner.caps).largest() + planner.bytes(&plan).session()
    });
    bytes.into_iter().max().expect("three tasks")
}

struct Run {
    pictures: Vec<Picture>,
    tier: Tier,
    promised: u64,
    measured: Option<u64>,
    seconds: f64,
    tiled: bool,
}

fn run(files: &Files, device: &DeviceChoice, max: Option<u64>) -> Result<Run, Error> {
    let options = Options {
        device: device.clone(),
        memory: MemoryOptions {
            max: max.map(MaxMemory::Most),
            ..MemoryOptions::default()
        },
        ..Options::default()
    };
    let mut engine = block_on(Engine::new(Source::open(files).expect("opens"), &options)).expect("fits");
    // What an open device has before there is a model on it is not of the plan.
    let watch: Option<(Watch, u64)> = match engine.pipeline().device() {
        Device::Gpu(gpu) => Some((gpu.watch(), gpu.allocated_bytes().unwrap_or(0))),
        Device::Cpu(_) => None,
    };
    let request = Request::new(PROMPT).steps(2).guidance(0.0).size(SIDE, SIDE);
    let mut tiled = false;
    counting::take_peak();
    let before = counting::bytes();
    let start = Instant::now();
    let on = |event: Event| tiled |= matches!(event, Event::Tile { .. });
    let pictures = block_on(engine.generate(&request, on, &Cancel::new()))?;
    let heap = (counting::take_peak() - before) as u64;
    let engaged = engine.engaged().expect("it ran");
    Ok(Run {
        pictures,
        tier: engaged.tier,
        promised: engaged.peak,
        measured: match watch {
            Some((watch, before)) => watch.peak().map(|peak| peak.allocated - before),
            // The heap, with the scratch of kernels and what the pipeline has beside its sessions.
            None => Some(heap),
        },
        seconds: start.elapsed().as_secs_f64(),
        tiled,
    })
}

fn sweep(files: &Files, device: &DeviceChoice) {
    let whole = run(files, device, Some(1 << 40)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(whole.tier, Tier::Resident);
    let error = run(files, device, Some(1 << 16)).err().expect("64 KiB");
    let Error::Plan(PlanError::MaxMemory { wanted: floor, .. }) = error else {
        panic!("{error}")
    };
    let block = largest_block(files, device);
    println!(
        "floor {floor}, {:.3} of the largest block with its activations ({block})",
        floor as f64 / block as f64
    );
    println!(
        "| may take, MiB | tier | promised | measured | promised / measured | seconds | same |\n|---|---|---|---|---|---|---|"
    );
    for step in 0..=10 {
        let max = whole.promised - (whole.promised - floor) * step / 10;
        let run = run(files, device, Some(max)).unwrap_or_else(|e| panic!("{max}: {e}"));
        let same = run.pictures[0].image == whole.pictures[0].image;
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        println!(
            "| {} | {}{} | {} | {} | {} | {:.1} | {same} |",
            mib(max),
            run.tier.name(),
            if run.tiled { ", tiles" } else { "" },
            mib(run.promised),
            run.measured.map_or("-".into(), mib),
            run.measured
                .map_or("-".into(), |m| format!("{:.4}", run.promised as f64 / m as f64)),
            run.seconds
        );
        assert!(run.promised <= max);
        // On a GPU every byte is planned; the CPU's kernels have scratch of their own beside the plan.
        if *device != DeviceChoice::Cpu {
            let ratio = run
                .measured
                .map_or(1.0, |measured| run.promised as f64 / measured as f64);
            assert!((1.0..=1.05).contains(&ratio), "{ratio}");
        }
        assert!(same || run.tiled);
    }
}

fn devices() -> Vec<DeviceChoice> {
    let gpu = support::gpu().map(|_| DeviceChoice::Gpu(AdapterChoice::Best));
    [Some(DeviceChoice::Cpu), gpu].into_iter().flatten().collect()
}

#[test]
fn the_embedded_model() {
    for device in devices() {
        sweep(&Files::folder(scenes("")), &device);
    }
}

fn random(sizes: Sizes) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    write_transformer(folder.path(), sizes);
    let files = Files {
        transformer: Some(folder.path().to_owned()),
        ..Files::folder(scenes(""))
    };
    for device in devices() {
        sweep(&files, &device);
    }
}

#[test]
fn a_small_random_model() {
    random(Sizes {
        dim: 256,
        heads: 4,
        intermediate: 682,
        layers: 6,
        refiners: 1,
    });
}

#[test]
#[ignore = "writes a gigabyte and takes minutes"]
fn a_random_model_of_a_gigabyte() {
    random(Sizes {
        dim: 1536,
        heads: 12,
        intermediate: 4096,
        layers: 14,
        refiners: 2,
    });
}

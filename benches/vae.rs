//! Decode with a VAE of Stable Diffusion's size and random weights: seconds, GFLOP/s, and the share of what the best matmul of the
//! same device reaches in the same run.
//!
//! `cargo bench --bench vae` takes minutes; as a test (`cargo test --benches`) it decodes one tiny latent.

#![expect(clippy::print_stdout, reason = "a table for people")]

use rotile::backend::{Device, Session};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::error::Result;
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::models::{Model, autoencoder_kl};
use rotile::ops::Epilogue;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor, TensorType};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Names and shapes of the published checkpoint; its sizes are those of Stable Diffusion 1.5 too.
const MANIFEST: &str = include_str!("../goldens/reference/manifests/sdxl_vae.json");

/// Sides of square matrix products that a device is measured by.
const MATMULS: [usize; 3] = [512, 1024, 2048];

fn main() -> Result<()> {
    let real = std::env::args().any(|a| a == "--bench");
    let weights = Weights::new(Arc::new(random_vae()));
    let mut devices = vec![(Device::Cpu(Cpu::default()), if real { 64 } else { 1 })];
    if let Ok(gpu) = pollster::block_on(Gpu::open(&AdapterChoice::Best)) {
        let side = match (real, gpu.caps().software) {
            (false, _) => 1,
            (true, true) => 32,
            (true, false) => 64,
        };
        devices.push((Device::Gpu(gpu), side));
    }
    for (device, side) in devices {
        let limit = if real { Some(best_matmul(&device)?) } else { None };
        let (seconds, flops) = decode(&device, &weights, side)?;
        let rate = flops / seconds / 1e9;
        let share = limit.map_or(String::new(), |limit| {
            let percent = 100.0 * rate / limit;
            format!(", {percent:.0} % of the best matmul ({limit:.1} GFLOP/s)")
        });
        let pixels = 8 * side;
        println!(
            "{}: decode {pixels}x{pixels}: {seconds:.2} s, {rate:.1} GFLOP/s{share}",
            device.name()
        );
    }
    Ok(())
}

fn decode(device: &Device, weights: &Weights, side: usize) -> Result<(f64, f64)> {
    let Model::AutoencoderKl(config) = Model::read(weights.checkpoint())? else {
        return Err(rotile::Error::Request("the manifest is no AutoencoderKL".into()));
    };
    let mut g = Graph::new(DType::F32);
    let shape = [1, config.latent_channels, side, side];
    let latent = g.input("latent", TensorType::new(DType::F32, shape));
    let picture = autoencoder_kl::decoder(&mut g, weights, &config, latent)?;
    g.output("picture", picture);
    let mut session = pollster::block_on(device.prepare(&g, weights, &Policy::default()))?;
    let values = noise(shape.iter().product(), 1.0);
    let picture = pollster::block_on(session.run(&[("latent", &Tensor::new(shape, values))]))?.remove(0);
    assert!(picture.first_non_finite().is_none(), "random weights must not overflow");
    Ok((seconds(&mut session, 1)?, session.plan().cost.flops))
}

fn best_matmul(device: &Device) -> Result<f64> {
    let none = Weights::new(Arc::new(Checkpoint::from_bytes(
        "none",
        b"\x02\0\0\0\0\0\0\0{}".as_slice().into(),
    )?));
    let mut best = 0.0f64;
    for n in MATMULS {
        let mut g = Graph::new(DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, [n, n]));
        let w = g.input("w", TensorType::new(DType::F32, [n, n]));
        let y = g.matmul(x, w, Epilogue::default())?;
        g.output("y", y);
        let mut session = pollster::block_on(device.prepare(&g, &none, &Policy::default()))?;
        let value = Tensor::new([n, n], noise(n * n, 1.0));
        pollster::block_on(session.run(&[("x", &value), ("w", &value)]))?;
        best = best.max(session.plan().cost.flops / seconds(&mut session, 3)? / 1e9);
    }
    Ok(best)
}

/// The quickest of some runs.
fn seconds(session: &mut Session, runs: u32) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        session.repeat(1)?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn noise(count: usize, scale: f32) -> Vec<f32> {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * scale).collect()
}

/// Weights that keep activations near one: norms of gain 1, everything else uniform with variance 1 / inputs.
fn random_vae() -> Checkpoint {
    let manifest: serde_json::Value = serde_json::from_str(MANIFEST).expect("a manifest");
    let tensors = manifest["tensors"].as_object().expect("tensors");
    let mut bytes = HashMap::new();
    for (name, entry) in tensors {
        let shape: Vec<usize> = serde_json::from_value(entry[1].clone()).expect("a shape");
        let inputs: usize = shape[1..].iter().product();
        let values = match (shape.len(), name.ends_with("weight")) {
            (1, true) => vec![1.0; shape[0]],
            (1, false) => vec![0.0; shape[0]],
            _ => noise(shape.iter().product(), (3.0 / inputs as f32).sqrt()),
        };
        let tensor = Tensor::new(shape.clone(), values).to_dtype(DType::F16);
        bytes.insert(name.clone(), (shape, tensor.to_bytes()));
    }
    let views = bytes.iter().map(|(name, (shape, bytes))| {
        let exact = &bytes[..2 * shape.iter().product::<usize>()];
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F16, shape.clone(), exact);
        (name, view.expect("bytes fill the shape"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    Checkpoint::from_bytes("random VAE", file.into()).expect("a checkpoint")
}

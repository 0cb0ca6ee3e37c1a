//! Models with adapters on them, run on every device.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::model::Part;
use crate::support::{self, uniform};
use pollster::block_on;
use rotile::adapter::{Adapter, Apply, Report, apply};
use rotile::backend::Device;
use rotile::checkpoint::{Checkpoint, TensorInfo, Weights};
use rotile::cpu::Cpu;
use rotile::error::AdapterError;
use rotile::graph::{Graph, Value};
use rotile::models::{Model, Role, Vae, qwen3, z_image};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use std::sync::Arc;

/// Largest difference, of the largest value: one layer in `f32` against `f64`, and whole models.
pub(crate) const LIMIT: f64 = 1e-5;

pub(crate) fn packed(_: Role, info: &TensorInfo) -> bool {
    info.weight().is_ok_and(DType::is_packed) && info.shape.len() == 2
}

pub(crate) fn devices() -> Vec<Device> {
    let gpu = support::gpu().map(|gpu| Device::Gpu(gpu.clone()));
    [Device::Cpu(Cpu::default())].into_iter().chain(gpu).collect()
}

pub(crate) fn random(name: &str, shape: &[usize]) -> Tensor {
    let mut next = uniform(name);
    Tensor::new(shape, (0..shape.iter().product()).map(|_| next()).collect())
}

pub(crate) fn worst(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f64, |m, v| m.max(f64::from(v.abs())));
    let error = |(g, w): (&f32, &f32)| (f64::from(*g) - f64::from(*w)).abs();
    let more = |m: f64, e: f64| if m.is_nan() || e <= m { m } else { e };
    got.iter().zip(want).map(error).fold(0.0, more) / largest
}

/// A part of the embedded model in single precision, with weights changed.
pub(crate) fn single(name: &str, changes: &[(&str, Vec<f64>)]) -> Arc<Checkpoint> {
    let mut part = Part::open(name);
    for stored in part.tensors.values_mut() {
        stored.scale(1.0);
    }
    for (weight, change) in changes {
        let stored = part.get(weight);
        let values = rotile::tensor::decode(DType::F32, &stored.bytes);
        assert_eq!(values.len(), change.len(), "{weight}");
        let new = values.iter().zip(change).map(|(&v, c)| (f64::from(v) + c) as f32);
        stored.bytes = new.flat_map(f32::to_le_bytes).collect();
    }
    let config = part
        .config
        .as_deref()
        .map(|text| serde_json::from_str(text).expect("JSON"));
    Arc::new(
        Checkpoint::from_bytes(name, part.bytes().into())
            .expect("a checkpoint")
            .with_config(config),
    )
}

pub(crate) fn values(checkpoint: &Checkpoint, name: &str) -> Tensor {
    checkpoint.load(name, DType::F32).unwrap_or_else(|e| panic!("{e}"))
}

pub(crate) fn with(
    checkpoint: &Arc<Checkpoint>,
    role: Role,
    adapters: &[Adapter],
    how: Apply,
) -> (Arc<Checkpoint>, Report) {
    let mut parts = [(role, checkpoint.clone())];
    let report = apply(&mut parts, adapters, how, &packed).unwrap_or_else(|e| panic!("{e}"));
    let [(_, new)] = parts;
    (new, report)
}

pub(crate) fn refused(checkpoint: &Arc<Checkpoint>, role: Role, adapter: Adapter) -> AdapterError {
    let mut parts = [(role, checkpoint.clone())];
    apply(&mut parts, &[adapter], Apply::Auto, &packed).expect_err("refused")
}

pub(crate) fn run(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    inputs: &[(&str, &Tensor)],
    build: impl Fn(&mut Graph, &Weights, &[Value]) -> rotile::Result<Value>,
) -> Vec<f32> {
    let w = Weights::new(checkpoint.clone());
    let mut g = Graph::new(DType::F32);
    let values: Vec<_> = inputs.iter().map(|(name, t)| g.input(name, t.ty.clone())).collect();
    let out = build(&mut g, &w, &values).unwrap_or_else(|e| panic!("{e}"));
    g.output("out", out);
    let mut session = block_on(device.prepare(&g, &w, &Policy::default())).unwrap_or_else(|e| panic!("{e}"));
    block_on(session.run(inputs)).expect("runs").remove(0).data
}

/// The transformer on a small latent.
pub(crate) fn denoise(device: &Device, checkpoint: &Arc<Checkpoint>) -> Vec<f32> {
    let Ok(Model::ZImage(cfg)) = Model::read(checkpoint) else {
        panic!("not detected")
    };
    let inputs = [
        ("x", &random("latent", &[cfg.channels, 6, 4])),
        ("t", &Tensor::new([1], vec![0.3])),
        ("caption", &random("caption", &[5, cfg.caption_dim])),
    ];
    run(device, checkpoint, &inputs, |g, w, v| {
        z_image::transformer(g, w, &cfg, v[0], v[1], v[2])
    })
}

pub(crate) fn encode(device: &Device, checkpoint: &Arc<Checkpoint>) -> Vec<f32> {
    let Ok(Model::Qwen3(cfg)) = Model::read(checkpoint) else {
        panic!("not detected")
    };
    let ids = Tensor::ids([7], &[3, 5, 8, 13, 21, 34, 55]);
    run(device, checkpoint, &[("ids", &ids)], |g, w, v| {
        qwen3::encoder(g, w, &cfg, v[0])
    })
}

pub(crate) fn decode(device: &Device, checkpoint: &Arc<Checkpoint>) -> Vec<f32> {
    let vae = Vae::read(checkpoint).expect("a VAE");
    let latent = random("latent", &[1, vae.latent_channels(), 4, 6]);
    run(device, checkpoint, &[("x", &latent)], |g, w, v| vae.decoder(g, w, v[0]))
}

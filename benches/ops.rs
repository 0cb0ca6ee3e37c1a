//! Every way of every operator on the cases of the op table that are large enough to say something, and the CPU beside it.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rotile::backend::{Device, Session};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::op::Op;
use rotile::ops::OPS;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor, TensorType};
use std::sync::Arc;
use std::time::Instant;

/// Smaller cases measure the launch, not the work.
const FLOPS: f64 = 1e6;

fn ops(criterion: &mut Criterion) {
    let gpu = pollster::block_on(Gpu::open(&AdapterChoice::Best)).ok();
    for entry in OPS {
        for case in (entry.cases)() {
            let Ok(output) = case.op.infer(&case.inputs) else {
                continue;
            };
            let cost = case.op.cost(&case.inputs, &output);
            if cost.flops < FLOPS {
                continue;
            }
            let mut devices = vec![("cpu".to_owned(), Device::Cpu(Cpu::default()))];
            if let Some(gpu) = &gpu {
                for way in case.op.ways(&case.inputs, &output, gpu.caps()) {
                    devices.push((way.name.to_owned(), Device::Gpu(gpu.clone())));
                }
            }
            let op: Arc<dyn Op> = case.op.into();
            let case = (op, case.inputs, output);
            let mut group = criterion.benchmark_group(entry.name);
            group.sample_size(10);
            group.throughput(Throughput::Elements(cost.flops as u64));
            for (way, device) in devices {
                let forced = vec![(entry.name.to_owned(), way.clone())];
                let policy = Policy {
                    forced: if way == "cpu" { Vec::new() } else { forced },
                    ..Policy::default()
                };
                let Some(mut session) = prepare(&case, &device, &policy) else {
                    continue;
                };
                let name = format!("{way}/{}", describe(&case.1, &case.2));
                group.bench_function(name, |bencher| {
                    bencher.iter_custom(|times| {
                        let start = Instant::now();
                        session.repeat(times as u32).expect("the device runs");
                        start.elapsed()
                    });
                });
            }
            group.finish();
        }
    }
}

fn prepare(case: &(Arc<dyn Op>, Vec<TensorType>, TensorType), device: &Device, policy: &Policy) -> Option<Session> {
    let (op, types, output) = case;
    let mut graph = Graph::new(output.dtype);
    let names: Vec<String> = (0..types.len()).map(|i| format!("x{i}")).collect();
    let inputs: Vec<_> = names
        .iter()
        .zip(types)
        .map(|(name, ty)| graph.input(name, ty.clone()))
        .collect();
    let result = graph.push_shared(op.clone(), &inputs).ok()?;
    graph.output("y", result);
    let weights = Weights::new(Arc::new(Checkpoint::from_bytes("none", EMPTY.into()).ok()?));
    let mut session = pollster::block_on(device.prepare(&graph, &weights, policy)).ok()?;
    let mut seed = 1u32;
    let mut uniform = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    let values = op.sample(types, &mut uniform);
    let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&values).collect();
    pollster::block_on(session.run(&given)).ok()?;
    Some(session)
}

/// A safetensors file without tensors.
const EMPTY: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

fn describe(inputs: &[TensorType], output: &TensorType) -> String {
    let half = if output.dtype == DType::F16 { "f16 " } else { "" };
    let shapes: Vec<_> = inputs
        .iter()
        .map(|t| t.to_string().replace(", ", "x").replace(' ', ""))
        .collect();
    format!("{half}{}", shapes.join(" "))
}

criterion_group!(benches, ops);
criterion_main!(benches);

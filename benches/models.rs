//! The embedded model, stage by stage: one denoising step, the text encoder, decode and encode.

use criterion::{Criterion, criterion_group, criterion_main};
use rotile::diffusion::pipeline::Task;
use rotile::engine::{DeviceChoice, Engine, Options};
use std::time::Instant;

const TASKS: [(&str, Task); 4] = [
    ("text", Task::Text { tokens: 19 }),
    (
        "step",
        Task::Denoise {
            tokens: 32,
            height: 16,
            width: 16,
        },
    ),
    ("decode", Task::Decode { height: 16, width: 16 }),
    ("encode", Task::Encode { height: 16, width: 16 }),
];

fn models(criterion: &mut Criterion) {
    for (device, choice) in [("gpu", DeviceChoice::Auto), ("cpu", DeviceChoice::Cpu)] {
        let options = Options {
            device: choice,
            ..Options::default()
        };
        let mut engine = pollster::block_on(Engine::embedded(&options)).expect("the embedded model loads");
        let mut group = criterion.benchmark_group(format!("scenes-tiny/{device}"));
        group.sample_size(10);
        for (name, task) in TASKS {
            let session = pollster::block_on(engine.pipeline().prepare(task)).expect("the task fits");
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

criterion_group!(benches, models);
criterion_main!(benches);

//! Weights held block by block: the same results to the bit, in the bytes that were planned.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use pollster::block_on;
use rotile::backend::{Device, Planner, Session};
use rotile::cpu::Cpu;
use rotile::diffusion::pipeline::{Models, Task};
use rotile::engine::Source;
use rotile::error::{Error, PlanError};
use rotile::gpu::{AdapterChoice, Gpu, Limits};
use rotile::memory::offload::{Blocks, Hold};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};

const TASKS: [Task; 4] = [
    Task::Text { tokens: 9 },
    Task::Caption { tokens: 9 },
    Task::Denoise {
        tokens: 32,
        height: 6,
        width: 10,
    },
    Task::Decode { height: 3, width: 5 },
];

fn devices() -> Vec<Device> {
    let gpu = support::gpu().cloned().map(Device::Gpu);
    // Weights in parts, and slots in several buffers.
    let limits = Limits {
        max_buffer: Some(1 << 20),
        max_binding: Some(256 << 10),
    };
    let small = gpu.is_some().then(|| {
        let gpu = block_on(Gpu::open_limited(&AdapterChoice::Best, &limits));
        Device::Gpu(gpu.expect("it opened before"))
    });
    [Some(Device::Cpu(Cpu::default())), gpu, small]
        .into_iter()
        .flatten()
        .collect()
}

fn inputs(session: &Session) -> Vec<(String, Tensor)> {
    let inputs = session.plan().inputs.iter().map(|input| {
        let mut next = support::uniform(&input.name);
        let mut tensor = match input.ty.dtype {
            DType::U32 => Tensor::ids([input.ty.count()], &(1..=input.ty.count() as u32).collect::<Vec<_>>()),
            _ => Tensor::new(input.ty.shape.clone(), (0..input.ty.count()).map(|_| next()).collect()),
        };
        tensor.ty = input.ty.clone();
        (input.name.clone(), tensor)
    });
    inputs.collect()
}

fn run(session: &mut Session) -> Vec<u32> {
    let inputs = inputs(session);
    let inputs: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let outputs = block_on(session.run(&inputs)).unwrap_or_else(|e| panic!("{e}"));
    outputs
        .iter()
        .flat_map(|t| t.data.iter().map(|v| v.to_bits()))
        .collect()
}

#[test]
fn streamed_weights_change_no_bit_and_take_the_planned_bytes() {
    let models = Models::read(&Source::embedded().expect("is embedded").parts).expect("fits");
    let policy = Policy::default();
    for device in devices() {
        let planner = Planner::of(&device, &policy);
        for task in TASKS {
            let (graph, weights) = models.graph(task, DType::F32).expect("builds");
            let plan = match device.plan(&graph, &policy) {
                Ok(plan) => plan,
                Err(Error::Plan(PlanError::ExceedsLimit { .. })) => continue,
                Err(e) => panic!("{e}"),
            };
            let blocks = Blocks::of(&plan, device.caps());
            let all = planner.bytes(&plan).weights;
            let least = blocks.least().total();
            let mut whole = block_on(device.prepare(&graph, weights, &policy)).expect("fits");
            let wanted = run(&mut whole);
            drop(whole);
            let budgets = (0..4u64)
                .map(|i| Some(least + (all - least.min(all)) * i / 3))
                .chain([None]);
            for budget in budgets {
                let hold = Hold::Streamed { budget };
                let mut session = block_on(device.prepare_held(&graph, weights, &policy, hold)).expect("fits");
                for _ in 0..2 {
                    assert_eq!(run(&mut session), wanted, "{task:?} {budget:?} on {}", device.name());
                }
                let stream = session.stream().expect("is streamed").clone();
                assert!(budget.is_none_or(|budget| stream.total() <= budget));
                assert_eq!(session.allocated(), session.planned());
                if budget.is_none() {
                    println!(
                        "{task:?}, {}: weights {all}, largest block {}, least {least}, {} blocks",
                        device.name(),
                        blocks.largest(),
                        stream.segments.len()
                    );
                }
            }
            let error = block_on(device.prepare_held(
                &graph,
                weights,
                &policy,
                Hold::Streamed {
                    budget: Some(least - 1),
                },
            ));
            let error = error.expect_err("below the least");
            assert!(
                matches!(error, Error::Plan(PlanError::MaxMemory { wanted, .. }) if wanted == least),
                "{error}"
            );
        }
    }
}

//! Plans: buffers are shared only by tensors that are never alive together, limits are known beforehand, and the same graph
//! gives the same plan.

use proptest::prelude::*;
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::error::PlanError;
use rotile::gpu::Caps;
use rotile::graph::Graph;
use rotile::models::{Model, qwen3};
use rotile::op::Way;
use rotile::ops::{Act, PatchOrder, TimestepEmbedding};
use rotile::plan::{Lifetime, Place, Plan, Policy, lower_bound, share};
use rotile::tensor::{DType, TensorType};
use std::path::Path;
use std::sync::Arc;

fn lifetimes() -> impl Strategy<Value = Vec<Lifetime>> {
    let one = (1..5000u64, 0..40usize, 0..12usize).prop_map(|(bytes, first, length)| Lifetime {
        bytes,
        first,
        last: first + length,
    });
    prop::collection::vec(one, 0..60)
}

proptest! {
    #[test]
    fn tensors_that_live_together_never_share(tensors in lifetimes()) {
        let sharing = share(&tensors);
        for (i, a) in tensors.iter().enumerate() {
            prop_assert!(a.bytes <= sharing.buffers[sharing.of[i]]);
            for (j, b) in tensors.iter().enumerate().skip(i + 1) {
                prop_assert!(!(a.overlaps(b) && sharing.of[i] == sharing.of[j]), "{a:?} and {b:?}");
            }
        }
        prop_assert!(sharing.buffers.iter().sum::<u64>() >= lower_bound(&tensors));
        prop_assert_eq!(sharing, share(&tensors));
    }
}

/// A chain of softmaxes with a branch over it, and a node that nothing needs.
fn chain(rows: usize) -> Graph {
    let mut g = Graph::new(DType::F32);
    let x = g.input("x", TensorType::new(DType::F32, [rows, 64]));
    let first = g.softmax(x, 1.0).expect("fits");
    let mut y = first;
    for _ in 0..5 {
        y = g.softmax(y, 2.0).expect("fits");
    }
    g.softmax(x, 3.0).expect("fits");
    let flat = g.reshape(first, [rows * 64]).expect("fits");
    g.output("first", flat);
    g.output("last", y);
    g
}

#[test]
fn a_chain_takes_three_buffers_and_drops_what_nothing_needs() {
    let plan = Plan::gpu(&chain(10), &Caps::baseline(), &Policy::default()).expect("fits");
    assert_eq!(plan.nodes.len(), 6, "the seventh node has no reader");
    // `first` stays for the caller; the chain alternates between two more.
    assert_eq!(plan.buffers, [2560, 2560, 2560]);
    let bytes = plan.gpu_bytes();
    assert_eq!(bytes.activations, 3 * 2560);
    assert_eq!(bytes.inputs, 2560);
    assert_eq!(bytes.transfer, 6 * 256 + 2 * 2560);
    assert_eq!(bytes.total(), 3 * 2560 + 2560 + 6 * 256 + 2 * 2560);
    assert_eq!(plan.lower_bound, 3 * 2560);
}

#[test]
fn no_step_reads_what_it_writes() {
    let plan = Plan::gpu(&chain(10), &Caps::baseline(), &Policy::default()).expect("fits");
    for step in &plan.steps {
        let written = step.bindings.iter().find(|(n, _)| *n == 1).expect("an output").1;
        assert!(
            step.bindings
                .iter()
                .filter(|(n, _)| *n != 1)
                .all(|(_, place)| *place != written)
        );
    }
}

#[test]
fn a_tensor_over_a_limit_is_refused_with_node_size_and_limit() {
    let caps = Caps {
        max_binding: 2559,
        ..Caps::baseline()
    };
    let error = Plan::gpu(&chain(10), &caps, &Policy::default()).expect_err("too large");
    let PlanError::ExceedsLimit {
        bytes, limit, which, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*bytes, *limit, *which), (2560, 2559, "maxStorageBufferBindingSize"));
    let message = error.to_string();
    assert!(
        message.contains("f32 [10, 64]") && message.contains("--device cpu"),
        "{message}"
    );
}

#[test]
fn more_elements_than_an_index_reaches_are_refused() {
    let caps = Caps {
        max_binding: u64::MAX,
        max_buffer: u64::MAX,
        ..Caps::baseline()
    };
    let error = Plan::gpu(&chain(1 << 27), &caps, &Policy::default()).expect_err("too many");
    assert!(
        matches!(error, PlanError::IndexOverflow { count, .. } if count == 1 << 33),
        "{error}"
    );
}

#[test]
fn empty_and_uncountable_tensors_are_refused_with_the_rule() {
    let mut g = Graph::new(DType::F32);
    let mut input = |shape: &[usize]| g.input("x", TensorType::new(DType::F32, shape));
    let (empty, some, large) = (input(&[2, 0, 3]), input(&[2, 4, 3]), input(&[1, 1, 1 << 40, 1 << 20]));
    for error in [
        g.softmax(empty, 1.0),
        g.slice(empty, 0, 0, 1),
        g.concat(&[some, empty], 1),
        g.permute(empty, &[2, 0, 1]),
    ] {
        assert!(error.expect_err("empty").to_string().contains("no input may be empty"));
    }
    let error = g.upsample_nearest(large, 1 << 32).expect_err("too large").to_string();
    assert!(error.contains("no tensor may have more than"), "{error}");
    assert!(
        g.unpatchify(some, usize::MAX, 4, 4, 2, PatchOrder::ChannelsLast)
            .is_err()
    );
    let wide = TimestepEmbedding {
        dim: usize::MAX,
        ..TimestepEmbedding::default()
    };
    let t = g.input("t", TensorType::new(DType::F32, [1]));
    assert!(g.timestep_embedding(t, wide).is_err());
}

#[test]
fn scratch_over_a_limit_is_refused() {
    let mut g = Graph::new(DType::F32);
    let x = g.input("x", TensorType::new(DType::F32, [1, 4096, 1]));
    let vector = g.input("v", TensorType::new(DType::F32, [4096]));
    let y = g.group_norm(x, vector, vector, 4096, 1e-6, Act::None).expect("fits");
    g.output("y", y);
    // Three values for each group, where a group is one value.
    let caps = Caps {
        max_binding: 4 * 4096,
        ..Caps::baseline()
    };
    let error = Plan::gpu(&g, &caps, &Policy::default()).expect_err("too large");
    assert!(
        matches!(error, PlanError::ExceedsLimit { bytes: 49_152, .. }),
        "{error}"
    );
}

#[test]
fn half_precision_needs_the_feature() {
    let g = Graph::new(DType::F16);
    assert!(matches!(
        Plan::gpu(&g, &Caps::baseline(), &Policy::default()),
        Err(PlanError::NoF16(DType::F16))
    ));
}

#[test]
fn a_forced_way_must_exist() {
    let force = |op: &str, way: &str| Policy {
        forced: vec![(op.into(), way.into())],
        ..Policy::default()
    };
    let plan = |policy| Plan::gpu(&chain(2), &Caps::baseline(), &policy);
    let error = plan(force("softmax", "fastest")).expect_err("no such way").to_string();
    assert!(error.contains("softmax") && error.contains("baseline"), "{error}");
    assert!(plan(force("sofmax", "baseline")).is_err());
    let plan = plan(force("softmax", Way::BASELINE)).expect("it exists");
    assert!(plan.choices.iter().all(|c| c.reason.contains("forced")));
}

fn manifest(name: &str) -> Weights {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/reference/manifests");
    let checkpoint = Checkpoint::open(folder.join(name)).unwrap_or_else(|e| panic!("{e}"));
    Weights::new(Arc::new(checkpoint))
}

#[test]
fn a_table_over_the_default_limits_is_read_in_parts() {
    let weights = manifest("qwen3_4b_text_encoder.json");
    let Ok(Model::Qwen3(config)) = Model::read(weights.checkpoint()) else {
        panic!("the manifest is no Qwen3")
    };
    let mut g = Graph::new(DType::F32);
    let ids = g.input("ids", TensorType::new(DType::U32, [40]));
    let embeddings = qwen3::encoder(&mut g, &weights, &config, ids).expect("fits");
    g.output("embeddings", embeddings);
    let caps = Caps::baseline();
    let plan = Plan::gpu(&g, &caps, &Policy::default()).unwrap_or_else(|e| panic!("{e}"));

    let table = plan.weights.iter().position(|w| w.name.contains("embed_tokens"));
    let table = table.expect("a table");
    assert_eq!(plan.weights[table].ty.byte_len(), 777_912_320);
    let parts = caps.parts(&plan.weights[table].ty);
    assert_eq!(parts.len(), 6);
    assert!(parts.iter().all(|p| p.ty.byte_len() as u64 <= caps.max_binding));
    let read: Vec<_> = plan
        .steps
        .iter()
        .flat_map(|s| &s.bindings)
        .map(|(_, place)| *place)
        .collect();
    for part in 0..parts.len() {
        let place = Place::Weight(table, part);
        assert_eq!(read.iter().filter(|p| **p == place).count(), 1, "part {part}");
    }
    let bytes: usize = plan.weights.iter().map(|w| w.ty.byte_len()).sum();
    assert_eq!(plan.gpu_bytes().weights, bytes as u64);
}

/// A graph over a weight, an `f32` matrix `[8, 4]`.
fn over_weight(build: impl Fn(&mut Graph, rotile::graph::Value) -> rotile::graph::Value) -> Graph {
    let text = r#"{"tensors": {"w": ["F32", [8, 4]]}}"#;
    let checkpoint = Checkpoint::describe("w", text).unwrap_or_else(|e| panic!("{e}"));
    let weights = Weights::new(Arc::new(checkpoint));
    let mut g = Graph::new(DType::F32);
    let w = g.weight(&weights, "w", [8, 4]).expect("there");
    let y = build(&mut g, w);
    g.output("y", y);
    g
}

#[test]
fn weights_are_cut_only_where_the_operator_takes_parts() {
    let caps = Caps {
        max_binding: 64,
        ..Caps::baseline()
    };
    let plan = |g: &Graph, caps: &Caps| Plan::gpu(g, caps, &Policy::default());
    let matmul = |shape: [usize; 2]| {
        over_weight(move |g, w| {
            let x = g.input("x", TensorType::new(DType::F32, [1, shape[1]]));
            let w = g.reshape(w, shape).expect("fits");
            g.matmul(x, w, Default::default()).expect("fits")
        })
    };
    let steps = |g: &Graph| plan(g, &caps).map(|p| p.steps.len());
    assert_eq!(steps(&matmul([8, 4])), Ok(2));
    // Other rows, and the same bytes in each part.
    assert_eq!(steps(&matmul([4, 8])), Ok(2));
    let refused = |g: &Graph, caps: &Caps| match plan(g, caps) {
        Err(PlanError::ExceedsLimit { bytes, .. }) => bytes,
        other => panic!("{other:?}"),
    };
    // A row over the limit; parts of the reshaped matrix that are not those of the weight.
    assert_eq!(refused(&matmul([1, 32]), &caps), 128);
    let uneven = Caps {
        max_binding: 48,
        ..caps.clone()
    };
    assert_eq!(refused(&matmul([4, 8]), &uneven), 128);
    // An operator that takes weights whole.
    let softmax = over_weight(|g, w| g.softmax(w, 1.0).expect("fits"));
    assert_eq!(refused(&softmax, &caps), 128);
}

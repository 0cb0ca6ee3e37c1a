//! Working-memory pricing: high-water marks, and what is made of them.

use pollster::block_on;
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::memory::offload::Hold;
use rotile::ops::Unary;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor, TensorType};
use std::sync::Arc;

/// A device of its own: marks and allocations are those of a device.
fn gpu() -> Option<Gpu> {
    match block_on(Gpu::open(&AdapterChoice::Best)) {
        Ok(gpu) if gpu.allocated_bytes().is_some() => Some(gpu),
        Ok(_) => None,
        Err(e) if std::env::var("REQUIRE_GPU").is_ok_and(|v| v == "1") => panic!("REQUIRE_GPU is set, but {e}"),
        Err(_) => None,
    }
}

#[test]
fn a_watch_sees_the_most_that_was_allocated_at_once() {
    let Some(gpu) = gpu() else { return };
    let weights = Weights::new(Arc::new(
        Checkpoint::describe("none", r#"{"tensors":{}}"#).expect("empty"),
    ));
    // The session is larger than what rounding could hide, and its input is staged on top of it.
    let ty = TensorType::new(DType::F32, [1 << 22]);
    let bytes = ty.byte_len() as u64;
    let session = || {
        let mut g = Graph::new(DType::F32);
        let x = g.input("x", ty.clone());
        let y = g.unary(x, Unary::Tanh).expect("any shape");
        g.output("y", y);
        block_on(gpu.prepare(&g, &weights, &Policy::default(), Hold::Resident)).expect("it fits")
    };
    // What the device itself staged is gone.
    block_on(gpu.idle()).expect("the device is there");
    let before = gpu.allocated_bytes().expect("as before");
    let outer = gpu.watch();
    let first = outer.peak().expect("this backend tells");
    assert_eq!(first.allocated, before, "what is there counts");
    let mut held = session();
    let planned = held.allocated().total();
    let prepared = outer.peak().expect("as before").allocated - before;
    assert!(
        (planned..=planned + (1 << 16)).contains(&prepared),
        "{prepared} of {planned}"
    );
    let inner = gpu.watch();
    block_on(held.run(&[("x", &Tensor::new([1 << 22], vec![0.5; 1 << 22]))])).expect("it runs");
    let staged = outer.peak().expect("as before").allocated - before;
    assert!(
        (planned + bytes..=planned + bytes + (1 << 16)).contains(&staged),
        "{staged} of {planned}"
    );
    assert_eq!(inner.peak(), outer.peak(), "both see the same run");
    let peak = outer.peak().expect("as before");
    assert!(peak.reserved >= peak.allocated);
    drop((held, inner));
    block_on(gpu.idle()).expect("the device is there");
    assert!(
        gpu.allocated_bytes().expect("as before") < before + bytes,
        "it is freed"
    );
    assert_eq!(outer.peak(), Some(peak), "a mark stays");
    drop(outer);
    let late = gpu.watch();
    assert!(
        late.peak().expect("as before").allocated < before + bytes,
        "a new watch starts anew"
    );
}

//! Working-memory pricing: high-water marks, and what is made of them.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

use pollster::block_on;
use proptest::prelude::*;
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::error::PlanError;
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::memory::estimate::{Basis, Calibration, Class, Key, Line, Marks, Measured, Point, Work, fit};
use rotile::memory::offload::Hold;
use rotile::memory::peak::BLOCK;
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

fn point(work: Work, known: u64, demands: &[u64]) -> Point {
    let run = |&demand: &u64| Marks {
        driver: Some(demand),
        ..Marks::default()
    };
    Point {
        work,
        model: "m".into(),
        size: 64,
        planned: known,
        known,
        runs: demands.iter().map(run).collect(),
    }
}

fn key(adapter: &str, class: Class, dtype: &str) -> Key {
    Key {
        adapter: adapter.into(),
        backend: "vulkan".into(),
        class,
        ways: String::new(),
        dtype: dtype.into(),
    }
}

#[test]
fn committed_lines_are_those_of_the_committed_points() {
    let all = Calibration::embedded();
    assert!(!all.measured.is_empty(), "the file is read");
    for measured in &all.measured {
        let Measured {
            key, driver, points, ..
        } = measured.clone();
        assert!(
            points.iter().all(|p| p.runs.len() >= 2),
            "each point has two runs: {key:?}"
        );
        let again = Measured::new(key, driver, points);
        assert_eq!(
            again, *measured,
            "lines are fitted, not edited: run `rotile calibrate --out`"
        );
    }
    let keys: Vec<_> = all.measured.iter().map(|m| &m.key).collect();
    assert!(
        (1..keys.len()).all(|i| !keys[..i].contains(&keys[i])),
        "one entry for a key"
    );
    // That an edit of any line would be seen: no line is another one's fit.
    for measured in &all.measured {
        for (i, line) in measured.lines.iter().enumerate() {
            for edited in [
                Line {
                    base: line.base - 1,
                    ..*line
                },
                Line {
                    slope: line.slope + 1e-6,
                    ..*line
                },
            ] {
                let mut copy = measured.clone();
                copy.lines[i] = edited;
                assert_ne!(
                    Measured::new(copy.key.clone(), copy.driver.clone(), copy.points.clone()),
                    copy
                );
            }
        }
    }
}

/// Never below what was measured. At most 5 % above it, or a block of the allocator more: small pictures take less than what varies
/// with the kernels that their sizes choose. Peers are 1.05 to 1.3 times above, 1.27 to 1.49 times in tiles.
#[test]
fn estimates_are_above_what_was_measured_and_close() {
    let all = Calibration::embedded();
    let (mut count, mut within, mut worst) = (0, 0, 1.0f64);
    for measured in &all.measured {
        for p in &measured.points {
            let price = all.price(p.known, &measured.key, p.work).expect("measured");
            assert_eq!(price.basis, Basis::Measured);
            let demand = p.demand();
            let ratio = price.bytes as f64 / demand as f64;
            let Key { adapter, dtype, .. } = &measured.key;
            let what = format!("{adapter} {dtype} {} {} {}: {ratio:.3}", p.work.name(), p.model, p.size);
            println!("{what}");
            assert!(price.bytes >= demand, "{what}");
            assert!(price.bytes <= demand + demand / 20 + BLOCK, "{what}");
            assert!(price.kernels >= p.compiled(), "{what}");
            count += 1;
            within += usize::from(ratio <= 1.05);
            worst = worst.max(ratio);
        }
    }
    println!("{within} of {count} within 1.05, at most {worst:.3}");
}

#[test]
fn a_line_goes_through_the_upper_hull_with_five_percent_on_top() {
    let fitted = |points: &[(u64, u64)]| {
        let points: Vec<_> = points.iter().map(|&(x, y)| point(Work::Decode, x, &[x + y])).collect();
        fit(Work::Decode, &points).expect("points")
    };
    let line = |base, slope| Line {
        work: Work::Decode,
        base,
        slope,
        kernels: 0,
    };
    // On a line, with one below it.
    assert_eq!(
        fitted(&[(1000, 200), (2000, 300), (3000, 400), (2500, 1)]),
        line(105, 0.105)
    );
    // Never falling.
    assert_eq!(fitted(&[(1000, 200), (2000, 100)]), line(210, 0.0));
    // Never below zero at zero.
    assert_eq!(fitted(&[(1000, 100), (2000, 300)]), line(0, 0.1575));
    assert_eq!(fitted(&[(1000, 100)]), line(105, 0.0));
    // A demand below what is known takes no overhead, and does not lower the line.
    let below = point(Work::Decode, 1000, &[900]);
    assert_eq!(fit(Work::Decode, &[below]), Some(line(0, 0.0)));
    // The larger run counts; other work does not.
    let two = [
        point(Work::Decode, 1000, &[1100, 1400]),
        point(Work::Text, 1000, &[9000]),
    ];
    assert_eq!(fit(Work::Decode, &two), Some(line(420, 0.0)));
    assert_eq!(fit(Work::Encode, &two), None);
    let marks = Marks {
        allocated: Some(5),
        reserved: Some(9),
        driver: None,
        compiled: Some(50),
    };
    assert_eq!(marks.demand(), 9, "kernels are apart");
    let compiled = Point {
        runs: vec![marks, Marks::default()],
        ..point(Work::Decode, 4, &[])
    };
    assert_eq!(fit(Work::Decode, &[compiled]).map(|line| line.kernels), Some(53));
}

proptest! {
    /// No line over the points, steeper or flatter, has less excess, and none of the points lies above it.
    #[test]
    fn no_line_above_the_points_is_closer(
        points in prop::collection::vec((0u64..1 << 30, 0u64..1 << 28), 1..12),
        slope in 0.0f64..2.0,
    ) {
        let list: Vec<_> = points.iter().map(|&(x, y)| point(Work::Denoise, x, &[x + y])).collect();
        let line = fit(Work::Denoise, &list).expect("points");
        for &(x, y) in &points {
            prop_assert!(line.overhead(x) >= y, "{line:?} at {x}: {y}");
        }
        // The best line of another slope touches the points from above.
        let base = points.iter().map(|&(x, y)| y as f64 - slope * x as f64).fold(0.0, f64::max);
        let excess = |f: &dyn Fn(u64) -> f64| points.iter().map(|&(x, y)| f(x) - y as f64).sum::<f64>();
        let own = |x: u64| line.overhead(x) as f64 / 1.05;
        // Rounding up of the stored slope: 1e-6 of what is known, and a byte or two.
        let rounding: f64 = points.iter().map(|&(x, _)| 2.0 + 1e-6 * x as f64).sum();
        prop_assert!(excess(&own) <= excess(&|x| base + slope * x as f64) + rounding);
    }
}

#[test]
fn what_was_not_measured_is_never_cheaper_than_its_class() {
    let measured = |adapter: &str, class, dtype: &str, overheads: [u64; 2]| {
        let points = vec![
            point(Work::Decode, 1000, &[1000 + overheads[0]]),
            point(Work::Text, 1000, &[1000 + overheads[1]]),
        ];
        Measured::new(key(adapter, class, dtype), String::new(), points)
    };
    let all = Calibration {
        measured: vec![
            measured("a", Class::Hardware, "f32", [100, 50]),
            measured("b", Class::Hardware, "f16", [300, 20]),
            measured("c", Class::Software, "f32", [7000, 9000]),
        ],
    };
    let price = |adapter, class, dtype, work| {
        let price = all.price(1000, &key(adapter, class, dtype), work).expect("a price");
        (price.bytes - 1000, price.basis)
    };
    let (own, rule) = (Basis::Measured, Basis::Rule);
    assert_eq!(price("a", Class::Hardware, "f32", Work::Decode), (105, own));
    // Another adapter, or another storage: the dearest of its class for this work.
    assert_eq!(price("x", Class::Hardware, "f32", Work::Decode), (315, rule));
    assert_eq!(price("a", Class::Hardware, "f16", Work::Text), (53, rule));
    assert_eq!(price("x", Class::Software, "f16", Work::Decode), (7350, rule));
    // Work that no line of its class knows: the dearest of any work.
    assert_eq!(price("a", Class::Hardware, "f32", Work::Denoise), (315, rule));
    // A class without lines: the dearest of all.
    assert_eq!(price("x", Class::Cpu, "f32", Work::Text), (9450, rule));
    // Other ways are other kernels.
    let mut other = key("a", Class::Hardware, "f32");
    other.ways = "matmul=baseline".into();
    assert_eq!(all.price(1000, &other, Work::Decode).expect("a price").basis, rule);
    let error = all.price(1000, &key("a", Class::Hardware, "bf16"), Work::Decode);
    let Err(PlanError::Unpriced { dtype, known }) = &error else {
        panic!("{error:?}")
    };
    assert_eq!((dtype.as_str(), known.as_str()), ("bf16", "f16, f32"));
    // A file replaces what it has measured, and leaves the rest.
    let file = Calibration {
        measured: vec![measured("a", Class::Hardware, "f32", [200, 60])],
    };
    let merged = all.merge(file);
    assert_eq!(merged.measured.len(), 3);
    let price = merged.price(1000, &key("a", Class::Hardware, "f32"), Work::Decode);
    assert_eq!(price.expect("a price").bytes, 1210);
    let absurd = merged.price(u64::MAX, &key("a", Class::Hardware, "f32"), Work::Decode);
    assert_eq!(absurd.expect("a price").bytes, u64::MAX, "sums saturate");
}

/// What the allocator takes in blocks is known before, within a block: the next one may be begun a little sooner or later.
#[cfg(feature = "scenes-tiny")]
#[test]
fn the_blocks_of_the_allocator_are_foreseen() {
    use rotile::diffusion::pipeline::{Models, Task};
    use rotile::engine::Source;
    use rotile::memory::peak::reserved;
    let source = Source::embedded().expect("in the crate");
    let models = Models::read(&source.parts).expect("it fits");
    let tasks = [
        Task::Text { tokens: 40 },
        Task::Decode { height: 8, width: 8 },
        Task::Encode { height: 12, width: 8 },
        Task::Decode { height: 20, width: 20 },
        Task::Denoise {
            tokens: 32,
            height: 16,
            width: 16,
        },
    ];
    let Some(first) = gpu() else { return };
    let dtypes = [DType::F32, DType::F16];
    for dtype in dtypes.into_iter().filter(|d| *d == DType::F32 || first.caps().f16) {
        for task in tasks {
            let gpu = gpu().expect("as before");
            block_on(gpu.idle()).expect("the device is there");
            let watch = gpu.watch();
            let before = watch.peak().expect("this backend tells").reserved;
            let (graph, weights) = models.graph(task, dtype).expect("it builds");
            let mut session =
                block_on(gpu.prepare(&graph, weights, &Policy::default(), Hold::Resident)).expect("it fits");
            let zeros = |ty: &TensorType| Tensor {
                ty: ty.clone(),
                data: vec![0.0; ty.count()],
                blocks: Vec::new(),
            };
            let inputs = session.plan().inputs.iter().map(|i| (i.name.clone(), zeros(&i.ty)));
            let inputs: Vec<_> = inputs.collect();
            let given: Vec<_> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            block_on(session.run(&given)).expect("it runs");
            let found = watch.peak().expect("as before").reserved - before;
            let foreseen = reserved(session.plan(), gpu.caps());
            let allocated = session.allocated().total();
            println!("{task:?} {dtype}: {allocated} in buffers, {found} reserved, {foreseen} foreseen");
            assert!(
                found.abs_diff(foreseen) <= BLOCK,
                "{task:?} {dtype}: {found}, foreseen {foreseen}"
            );
        }
    }
}

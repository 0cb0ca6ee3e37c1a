//! The bytes that a residency counts, against what the GPU's allocator says of itself.

use crate::support;
use rotile::backend::Device;
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::memory::residency::{Guard, Home, Residency, WeightRef};
use rotile::ops::Epilogue;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor, TensorType};
use safetensors::tensor::{Dtype, TensorView};
use std::sync::Arc;

/// Sizes of which none is another's sum, and which allocators need not round.
const WEIGHTS: [(&str, Dtype, [usize; 2]); 4] = [
    ("a", Dtype::F32, [256, 1024]),
    ("b", Dtype::BF16, [512, 1024]),
    ("c", Dtype::F32, [1024, 1024]),
    ("d", Dtype::F16, [64, 512]),
];

fn checkpoint() -> Arc<Checkpoint> {
    // Every byte 0x3c: finite in each type.
    let bytes = vec![0x3c; 4 << 20];
    let views = WEIGHTS.map(|(name, dtype, shape)| {
        let size = dtype.bitsize() / 8 * shape[0] * shape[1];
        (
            name,
            TensorView::new(dtype, shape.to_vec(), &bytes[..size]).expect("bytes fill the shape"),
        )
    });
    let file = safetensors::serialize(views, None).expect("a file");
    Arc::new(Checkpoint::from_bytes("weights", file.into()).expect("valid"))
}

/// A GPU that no other test allocates on, and what fills up the line that wgpu's own few bytes have begun: what comes after it needs
/// no padding.
fn own_gpu() -> Option<(Gpu, Guard)> {
    support::gpu()?;
    let gpu = pollster::block_on(Gpu::open(&AdapterChoice::Best)).unwrap_or_else(|e| panic!("{e}"));
    let weights = weights(&checkpoint());
    let residency = Residency::new();
    let lock = || residency.lock(&weights[3..], Home::Device, &gpu.store()).expect("fits");
    // What wgpu allocates for its first upload goes with the second.
    drop(lock());
    let padding = lock();
    gpu.allocated_bytes().is_some().then_some((gpu, padding))
}

fn weights(checkpoint: &Arc<Checkpoint>) -> Vec<WeightRef> {
    let of = |info: &rotile::checkpoint::TensorInfo| {
        let ty = TensorType::new(info.weight().expect("a float"), info.shape.to_vec());
        WeightRef::new(checkpoint, &info.name, ty).expect("is there")
    };
    checkpoint.tensors().map(of).collect()
}

#[test]
fn counted_bytes_are_those_of_the_allocator() {
    let Some((gpu, _padding)) = own_gpu() else { return };
    let (device, host) = (gpu.store(), gpu.host().store());
    let weights = weights(&checkpoint());
    let residency = Residency::keeping();
    let allocated = || gpu.allocated_bytes().expect("asked before");
    let base = allocated();
    let check = |what: &str, counted: u64, real: u64| {
        assert_eq!(residency.bytes(Home::Device), counted, "{what}: counted");
        assert_eq!(residency.real_bytes(Home::Device), real, "{what}: real");
        assert_eq!(allocated() - base, real, "{what}: the allocator");
    };
    let (a, b, c, d) = (1 << 20, 1 << 20, 4 << 20, 64 << 10);
    let all = a + b + c + d;

    let guard = residency.lock(&weights, Home::Device, &device).expect("fits");
    check("lock", all, all);
    let second = residency.lock(&weights[..2], Home::Device, &device).expect("is there");
    check("second lock", all, all);
    guard.cast(1, DType::F32).expect("a float");
    check("cast", all, all + b);
    guard.cast(2, DType::F16).expect("a float");
    check("second cast", all, all + b - c / 2);
    guard.offload(&[2, 3], &host).expect("the host has room");
    check("offload", a + b, a + b + b);
    assert_eq!(residency.bytes(Home::Host), 4 * (1024 * 1024 + 64 * 512));
    guard.reload(&[3]).expect("fits");
    check("reload", a + b + d, a + b + b + d);
    drop(second);
    check("inner unlock", a + b + d, a + b + b + d);
    assert!(guard.unlock().is_empty());
    check("last unlock", a + b + d, a + b + d);

    // Smallest first, and no more than it takes.
    let cap = base + all;
    let evicted = residency.evict(Home::Device, c + d, || cap - allocated());
    assert_eq!(evicted, d);
    check("evict", a + b, a + b);
    residency
        .reassign(&weights, Home::Host, &host)
        .expect("the host has room");
    check("reassign to the host", 0, 0);
    let widened: u64 = WEIGHTS
        .iter()
        .map(|(.., [rows, columns])| (rows * columns * 4) as u64)
        .sum();
    assert_eq!(
        [residency.bytes(Home::Host), residency.real_bytes(Home::Host)],
        [widened; 2]
    );
    residency.reassign(&weights, Home::Device, &device).expect("fits");
    check("reassign to the device", all, all);
    assert_eq!([residency.bytes(Home::Host), residency.real_bytes(Home::Host)], [0; 2]);
    residency.release();
    check("release", 0, 0);
}

#[test]
fn sessions_hold_and_free_what_they_use() {
    let Some((gpu, _padding)) = own_gpu() else { return };
    let checkpoint = checkpoint();
    let weights = Weights::new(checkpoint.clone());
    let graph = |part: bool| {
        let mut g = Graph::new(DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, [3, 1024]));
        let w = match part {
            true => g.weight_part(&weights, "a", [256, 1024], 0, 0..256),
            false => g.weight(&weights, "a", [256, 1024]),
        };
        let y = g.matmul(x, w.expect("is there"), Epilogue::default()).expect("fits");
        g.output("y", y);
        g
    };
    for device in [Device::Gpu(gpu.clone()), Device::Cpu(gpu.host())] {
        let home = match &device {
            Device::Gpu(_) => Home::Device,
            Device::Cpu(_) => Home::Host,
        };
        let held = || [gpu.residency().bytes(home), gpu.residency().real_bytes(home)];
        let base = gpu.allocated_bytes();
        let prepare = |graph: &Graph| pollster::block_on(device.prepare(graph, &weights, &Policy::default()));
        let mut first = prepare(&graph(false)).expect("fits");
        let second = prepare(&graph(true)).expect("fits");
        assert_eq!(held(), [1 << 20; 2], "the same bytes under two names are there once");
        let kept = first.keep_weights();
        drop(second);
        let x = Tensor::new([3, 1024], vec![1.0; 3 * 1024]);
        let y = pollster::block_on(first.run(&[("x", &x)])).expect("runs");
        let want = 1024.0 * f32::from_bits(0x3c3c_3c3c);
        assert!(
            y[0].data.iter().all(|v| (v / want - 1.0).abs() < 1e-5),
            "{:?}",
            &y[0].data[..4]
        );
        let weight = WeightRef::new(&checkpoint, "a", TensorType::new(DType::F32, [256, 1024])).expect("is there");
        let error = gpu
            .residency()
            .reassign(std::slice::from_ref(&weight), home.other(), &device.store());
        assert!(error.expect_err("held").to_string().contains("in use"));
        drop(first);
        assert_eq!(held(), [1 << 20; 2], "kept for the next session");
        drop(kept);
        assert_eq!(held(), [0; 2]);
        assert_eq!(gpu.allocated_bytes(), base);
    }
}

#[test]
fn engines_on_one_device_share_nothing() {
    let Some((gpu, _padding)) = own_gpu() else { return };
    let weights = weights(&checkpoint());
    let [one, other] = [gpu.scoped(), gpu.scoped()];
    let base = gpu.allocated_bytes().expect("asked before");
    let first = one
        .residency()
        .lock(&weights, Home::Device, &one.store())
        .expect("fits");
    let second = other
        .residency()
        .lock(&weights, Home::Device, &other.store())
        .expect("fits");
    let all = one.residency().bytes(Home::Device);
    assert_eq!(gpu.allocated_bytes(), Some(base + 2 * all));
    assert!(!Arc::ptr_eq(&first.storage(0), &second.storage(0)));
    drop(first);
    assert_eq!(gpu.allocated_bytes(), Some(base + all));
    assert_eq!(gpu.residency().bytes(Home::Device), 0);
}

#[test]
fn what_is_kept_goes_when_there_is_no_room() {
    let Some((gpu, _padding)) = own_gpu() else { return };
    let checkpoint = checkpoint();
    let weights = Weights::new(checkpoint.clone());
    let kept = gpu.keeping();
    let device = Device::Gpu(kept.clone());
    let base = gpu.allocated_bytes().expect("asked before");
    let prepare = |name: &str, rows: usize| {
        let mut g = Graph::new(DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, [3, 1024]));
        let w = g.weight(&weights, name, [rows, 1024]).expect("is there");
        let y = g.matmul(x, w, Epilogue::default()).expect("fits");
        g.output("y", y);
        pollster::block_on(device.prepare(&g, &weights, &Policy::default()))
    };
    let held = || kept.residency().bytes(Home::Device);
    let (a, c) = (1 << 20, 4 << 20);
    drop(prepare("a", 256).expect("fits"));
    drop(prepare("c", 1024).expect("fits"));
    assert_eq!((held(), gpu.allocated_bytes()), (a + c, Some(base + a + c)));
    let weight = WeightRef::new(&checkpoint, "a", TensorType::new(DType::F32, [256, 1024])).expect("is there");
    let first = kept.residency().resident(&weight, Home::Device).expect("is kept");
    drop(prepare("a", 256).expect("fits"));
    let again = kept.residency().resident(&weight, Home::Device).expect("is kept");
    assert!(Arc::ptr_eq(&first, &again), "uploaded once");
    drop((first, again));

    // Sessions are refused, and with them goes what nobody holds; what a session holds stays.
    let session = prepare("a", 256).expect("fits");
    gpu.faults().refuse_above(0);
    prepare("b", 512).expect_err("no room");
    assert_eq!(held(), a);
    gpu.faults().refuse_above(u64::MAX);
    drop(session);
    drop(prepare("c", 1024).expect("fits"));
    assert_eq!(held(), a + c);
    kept.residency().release();
    assert_eq!((held(), gpu.allocated_bytes()), (0, Some(base)));
}

//! Products with packed weights, and int8 layers on every path, beside the same product in `f32`, at the layer sizes of Z-Image and
//! Wan: a table for each device.
//!
//! `cargo bench --bench packed`, or `-- cpu` or `-- gpu` for one of them, and a number for one layer; with `--test`, as
//! `cargo test --benches` runs it, one small shape. Where a matrix in `f32` would not fit a binding of WebGPU's default size, fewer
//! rows of it are taken, for every type.

#![expect(clippy::print_stdout, reason = "the table is what it is for")]

use rotile::backend::{Device, Session};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::models::linear::linear;
use rotile::op::random_tensor;
use rotile::ops::Epilogue;
use rotile::plan::{ConvrotPath, Policy};
use rotile::tensor::{DType, Tensor, TensorType};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns of weights: attention and both MLP matrices of Z-Image, then of Wan 2.1 14B.
const LAYERS: [[usize; 2]; 6] = [
    [3840, 3840],
    [10_240, 3840],
    [3840, 10_240],
    [5120, 5120],
    [13_824, 5120],
    [5120, 13_824],
];
const ROWS: [usize; 3] = [1, 64, 512];
const BINDING: usize = 128 << 20;
const MARKER: &[u8] = br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256}"#;

fn main() {
    let test = std::env::args().any(|arg| arg == "--test") || !std::env::args().any(|arg| arg == "--bench");
    let wanted = |name: &str, other: &str| {
        let given = |text: &str| std::env::args().any(|arg| arg == text);
        given(name) || !given(other)
    };
    let layer: Option<usize> = std::env::args().find_map(|arg| arg.parse().ok());
    let mut devices = Vec::new();
    if wanted("cpu", "gpu") {
        devices.push(Device::Cpu(Cpu::default()));
    }
    if wanted("gpu", "cpu") {
        devices.extend(
            pollster::block_on(Gpu::open(&AdapterChoice::Best))
                .ok()
                .map(Device::Gpu),
        );
    }
    for device in devices {
        println!("{}", device.name());
        println!(
            "{:>5} {:>6} {:>6}  {:<6} {:>9} {:>9} {:>7} {:>7}  ways",
            "m", "n", "k", "type", "ms", "GFLOP/s", "GB/s", "x f32"
        );
        let layers = if test { &[[33, 512]][..] } else { &LAYERS[..] };
        for (_, &[n, k]) in layers.iter().enumerate().filter(|(i, _)| layer.is_none_or(|l| l == *i)) {
            let n = n.min(BINDING / 4 / k);
            for m in if test { &[3][..] } else { &ROWS[..] } {
                table(&device, [*m, n, k], test);
            }
        }
    }
}

/// How a product is made.
#[derive(Clone, Copy)]
enum Product {
    /// With a weight of this type.
    Plain(DType),
    /// By an int8 layer of group 256.
    Convrot(ConvrotPath),
}

impl Product {
    fn all() -> impl Iterator<Item = Self> {
        let types = [DType::F32, DType::BF16].into_iter().chain(DType::BLOCKS);
        types.map(Self::Plain).chain(ConvrotPath::ALL.map(Self::Convrot))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.name(),
            Self::Convrot(path) => path.name(),
        }
    }

    fn suits(self, k: usize) -> bool {
        match self {
            Self::Plain(dtype) => k.is_multiple_of(dtype.block().0),
            Self::Convrot(_) => true,
        }
    }

    fn prepare(self, device: &Device, sizes: [usize; 3]) -> Option<Session> {
        match self {
            Self::Plain(dtype) => plain(device, sizes, dtype),
            Self::Convrot(path) => convrot(device, sizes, path),
        }
    }
}

fn table(device: &Device, [m, n, k]: [usize; 3], test: bool) {
    let mut f32_time = None;
    for product in Product::all().filter(|p| p.suits(k)) {
        let name = product.name();
        let Some(mut session) = product.prepare(device, [m, n, k]) else {
            println!("{m:>5} {n:>6} {k:>6}  {name:<6} does not run");
            continue;
        };
        let time = measure(&mut session, test).as_secs_f64();
        let base = *f32_time.get_or_insert(time);
        let cost = session.plan().cost;
        let ways: Vec<_> = session
            .plan()
            .choices
            .iter()
            .map(|c| format!("{}: {}", c.op, c.way))
            .collect();
        // The product alone counts: a rotation is what a path costs, not what it does.
        println!(
            "{m:>5} {n:>6} {k:>6}  {name:<6} {:>9.2} {:>9.2} {:>7.2} {:>7.2}  {}",
            time * 1e3,
            2.0 * (m * n * k) as f64 / time / 1e9,
            cost.bytes / time / 1e9,
            base / time,
            ways.join(", ")
        );
    }
}

fn uniform() -> impl FnMut() -> f32 {
    let mut seed = 1u32;
    move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed as f32 / u32::MAX as f32 * 2.0 - 1.0
    }
}

/// An int8 layer as models run it.
fn convrot(device: &Device, [m, n, k]: [usize; 3], path: ConvrotPath) -> Option<Session> {
    let weights = Weights::new(Arc::new(layer(n, k))).with_convrot(path);
    let mut graph = Graph::new(DType::F32);
    let ty = TensorType::new(DType::F32, [m, k]);
    let x = graph.input("x", ty.clone());
    let y = linear(&mut graph, &weights.at("layer"), x, n, Epilogue::default()).ok()?;
    graph.output("y", y);
    let mut session = pollster::block_on(device.prepare(&graph, &weights, &Policy::default())).ok()?;
    pollster::block_on(session.run(&[("x", &random_tensor(&ty, &mut uniform()))])).ok()?;
    Some(session)
}

/// A file with one int8 layer.
fn layer(n: usize, k: usize) -> Checkpoint {
    let codes: Vec<u8> = (0..n * k).map(|i| ((i * 2_654_435_761) >> 7) as u8).collect();
    let scales: Vec<u8> = std::iter::repeat_n(1e-3f32.to_le_bytes(), n).flatten().collect();
    let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).expect("whole");
    let views = [
        ("layer.weight", view(Dtype::I8, &[n, k], &codes)),
        ("layer.weight_scale", view(Dtype::F32, &[n, 1], &scales)),
        ("layer.comfy_quant", view(Dtype::U8, &[MARKER.len()], MARKER)),
    ];
    let bytes = safetensors::serialize(views, None).expect("a file");
    Checkpoint::from_bytes("layer.safetensors", bytes.into()).expect("a layer")
}

fn plain(device: &Device, [m, n, k]: [usize; 3], dtype: DType) -> Option<Session> {
    let mut graph = Graph::new(DType::F32);
    let types = [TensorType::new(DType::F32, [m, k]), TensorType::new(dtype, [n, k])];
    let x = graph.input("x", types[0].clone());
    let w = graph.input("w", types[1].clone());
    let y = graph.matmul(x, w, Epilogue::default()).ok()?;
    graph.output("y", y);
    let none = b"\x02\0\0\0\0\0\0\0{}";
    let weights = Weights::new(Arc::new(Checkpoint::from_bytes("none", none[..].into()).ok()?));
    let mut session = pollster::block_on(device.prepare(&graph, &weights, &Policy::default())).ok()?;
    let mut uniform = uniform();
    let x = random_tensor(&types[0], &mut uniform);
    // Quantising takes longer than multiplying: a few rows are made and repeated.
    let few = TensorType::new(dtype, [n.min(8), k]);
    let made = random_tensor(&few, &mut uniform);
    let w = match dtype.is_packed() {
        true => Tensor::packed(types[1].clone(), repeated(&made.blocks, dtype.bytes(n * k))),
        false => {
            let values = repeated(&made.data, n * k);
            Tensor::new([n, k], values).to_dtype(dtype)
        }
    };
    pollster::block_on(session.run(&[("x", &x), ("w", &w)])).ok()?;
    Some(session)
}

fn repeated<T: Copy>(values: &[T], len: usize) -> Vec<T> {
    values.iter().copied().cycle().take(len).collect()
}

/// The best of several runs, each of at least a tenth of a second.
fn measure(session: &mut Session, test: bool) -> Duration {
    let once = |session: &mut Session, times: u32| {
        let start = Instant::now();
        session.repeat(times).expect("the device runs");
        start.elapsed() / times
    };
    let first = once(session, 1);
    if test {
        return first;
    }
    let times = (0.1 / first.as_secs_f64()).ceil().clamp(1.0, 1000.0) as u32;
    (0..5).map(|_| once(session, times)).min().unwrap_or(first)
}

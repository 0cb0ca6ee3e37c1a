//! Int8 layers of group 256 on every path beside the same layer in `f32`, at the layer sizes of Z-Image and Wan: a table for each
//! device.
//!
//! `cargo bench --bench convrot`, or `-- cpu` or `-- gpu` for one device, and a number for one layer; with `--test`, as
//! `cargo test --benches` runs it, one small shape.

#![expect(clippy::print_stdout, reason = "the table is what it is for")]

use rotile::backend::{Device, Session};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::gpu::{AdapterChoice, Gpu};
use rotile::graph::Graph;
use rotile::models::linear::linear;
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
    let args: Vec<String> = std::env::args().collect();
    let given = |text: &str| args.iter().any(|arg| arg == text);
    let test = given("--test") || !given("--bench");
    let layer: Option<usize> = args.iter().find_map(|arg| arg.parse().ok());
    let mut devices = Vec::new();
    if given("cpu") || !given("gpu") {
        devices.push(Device::Cpu(Cpu::default()));
    }
    if given("gpu") || !given("cpu") {
        let gpu = pollster::block_on(Gpu::open(&AdapterChoice::Best));
        devices.extend(gpu.ok().map(Device::Gpu));
    }
    for device in devices {
        println!("{}", device.name());
        println!(
            "{:>5} {:>6} {:>6}  {:<13} {:>9} {:>9} {:>7}",
            "m", "n", "k", "path", "ms", "GFLOP/s", "x f32"
        );
        let layers = if test { &[[33, 512]][..] } else { &LAYERS[..] };
        for (_, &[n, k]) in layers.iter().enumerate().filter(|(i, _)| layer.is_none_or(|l| l == *i)) {
            // Where a matrix in f32 would not fit a binding of WebGPU's default size, fewer rows of it are taken, on every path.
            let n = n.min(BINDING / 4 / k);
            for m in if test { &[3][..] } else { &ROWS[..] } {
                table(&device, [*m, n, k], test);
            }
        }
    }
}

fn table(device: &Device, [m, n, k]: [usize; 3], test: bool) {
    let float = Arc::new(checkpoint(n, k, false));
    let codes = Arc::new(checkpoint(n, k, true));
    let packed = [("matmul_i8".to_owned(), "packed".to_owned())];
    let mut runs = vec![("f32", &float, ConvrotPath::Op, Vec::new())];
    runs.extend(
        ConvrotPath::ALL
            .iter()
            .map(|path| (path.name(), &codes, *path, Vec::new())),
    );
    if let Device::Gpu(_) = device {
        runs.push(("native packed", &codes, ConvrotPath::Native, packed.to_vec()));
    }
    let mut f32_time = None;
    for (name, checkpoint, path, forced) in runs {
        let weights = Weights::new(checkpoint.clone()).with_convrot(path);
        let policy = Policy {
            forced,
            ..Policy::default()
        };
        let Some(mut session) = prepare(device, &weights, [m, n, k], &policy) else {
            println!("{m:>5} {n:>6} {k:>6}  {name:<13} does not run");
            continue;
        };
        let time = measure(&mut session, test).as_secs_f64();
        let base = *f32_time.get_or_insert(time);
        let flops = 2.0 * (m * n * k) as f64;
        println!(
            "{m:>5} {n:>6} {k:>6}  {name:<13} {:>9.2} {:>9.2} {:>7.2}",
            time * 1e3,
            flops / time / 1e9,
            base / time
        );
    }
}

/// A file with one layer, of codes or of floats.
fn checkpoint(n: usize, k: usize, int8: bool) -> Checkpoint {
    let codes: Vec<u8> = (0..n * k).map(|i| (i * 2_654_435_761 >> 7) as u8).collect();
    let scales: Vec<u8> = std::iter::repeat_n(1e-3f32.to_le_bytes(), n).flatten().collect();
    let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).expect("whole");
    let floats: Vec<u8> = match int8 {
        true => Vec::new(),
        false => codes
            .iter()
            .flat_map(|&c| (f32::from(c as i8) * 1e-3).to_le_bytes())
            .collect(),
    };
    let views = match int8 {
        true => vec![
            ("layer.weight", view(Dtype::I8, &[n, k], &codes)),
            ("layer.weight_scale", view(Dtype::F32, &[n, 1], &scales)),
            ("layer.comfy_quant", view(Dtype::U8, &[MARKER.len()], MARKER)),
        ],
        false => vec![("layer.weight", view(Dtype::F32, &[n, k], &floats))],
    };
    let bytes = safetensors::serialize(views, None).expect("a file");
    Checkpoint::from_bytes("layer.safetensors", bytes.into()).expect("a layer")
}

fn prepare(device: &Device, weights: &Weights, [m, n, k]: [usize; 3], policy: &Policy) -> Option<Session> {
    let mut graph = Graph::new(DType::F32);
    let x = graph.input("x", TensorType::new(DType::F32, [m, k]));
    let y = linear(&mut graph, &weights.at("layer"), x, n, Epilogue::default()).ok()?;
    graph.output("y", y);
    let mut session = pollster::block_on(device.prepare(&graph, weights, policy)).ok()?;
    let x = Tensor::new(
        [m, k],
        (0..m * k).map(|i| (i * 37 % 201) as f32 / 100.0 - 1.0).collect(),
    );
    pollster::block_on(session.run(&[("x", &x)])).ok()?;
    Some(session)
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

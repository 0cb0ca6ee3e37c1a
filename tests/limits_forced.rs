//! The embedded model on devices that are opened with less than the adapter has, so that the API itself refuses what is too large.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::{part, weights};
use rotile::Error;
use rotile::backend::{Device, Session};
use rotile::checkpoint::Weights;
use rotile::cpu::Cpu;
use rotile::diffusion::tiled::Ran;
use rotile::diffusion::vae::{VaeOptions, VaeRunner, VaeTask};
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Picture, Request, Stage};
use rotile::error::{GpuError, PlanError};
use rotile::gpu::{AdapterChoice, Caps, Gpu, Limits, adapters, choose};
use rotile::media::{Comparison, psnr};
use rotile::models::Vae;
use rotile::plan::{Bytes, Named, Policy};
use rotile::tensor::{DType, Tensor};
use std::fmt::Write as _;
use std::time::Instant;

const MIB: u64 = 1 << 20;
/// What WebGPU promises: 256 MiB for a buffer, 128 MiB for a binding.
const DEFAULTS: [u64; 2] = [256 * MIB, 128 * MIB];

fn limits([max_buffer, max_binding]: [u64; 2]) -> Limits {
    Limits {
        max_buffer: Some(max_buffer),
        max_binding: Some(max_binding),
    }
}

/// Without a CPU to fall back to, so that the GPU shows what it can do.
fn engine(device: DeviceChoice, limits: Limits) -> Engine {
    let options = Options {
        device,
        limits,
        vae: alone(),
        ..Options::default()
    };
    pollster::block_on(Engine::embedded(&options)).unwrap_or_else(|e| panic!("{e}"))
}

fn alone() -> VaeOptions {
    VaeOptions {
        fallback: false,
        ..VaeOptions::default()
    }
}

fn generate(engine: &mut Engine, request: &Request, on: impl FnMut(Event)) -> rotile::Result<Picture> {
    let mut pictures = engine.generate_blocking(request, on, &Cancel::new())?;
    Ok(pictures.remove(0))
}

#[test]
fn the_same_picture_under_small_limits() {
    if support::gpu().is_none() {
        return;
    }
    // The largest weights take 512 KiB: the last limit cuts them. At 64x64 an activation takes as much.
    let cases = [
        (None, DEFAULTS),
        (None, [16 * MIB; 2]),
        (Some(64), [MIB / 2; 2]),
        (Some(48), [3 * MIB / 8; 2]),
    ];
    for (side, forced) in cases {
        let mut request = Request::new("a red house under a blue sky").steps(2);
        (request.width, request.height) = (side, side);
        let [want, got] = [Limits::default(), limits(forced)].map(|limits| {
            let mut engine = engine(DeviceChoice::Auto, limits);
            let picture = generate(&mut engine, &request, |_| {}).unwrap_or_else(|e| panic!("{forced:?}: {e}"));
            let (planned, allocated) = engine.bytes();
            assert_eq!(planned, allocated, "{forced:?}");
            let weights = |(_, session): (_, &Session)| session.plan().weights.clone();
            let cut = |w: &Named| limits.max_binding.is_some_and(|limit| w.ty.parts(limit).len() > 1);
            let cut = engine.pipeline().sessions().flat_map(weights).any(|w| cut(&w));
            assert_eq!(
                cut,
                limits.max_binding.is_some_and(|limit| limit < MIB / 2),
                "{forced:?}"
            );
            picture
        });
        let psnr = Comparison::of(&got.image, &want.image).expect("the same size").psnr;
        println!("{forced:?}: {psnr:.1} dB");
        assert!(psnr >= 60.0, "{forced:?}: {psnr} dB");
    }
}

#[test]
fn limits_too_small_are_a_typed_error_before_anything_runs() {
    if support::gpu().is_none() {
        return;
    }
    for forced in [[MIB / 4; 2], [16 * MIB, MIB / 4], [MIB, 4096]] {
        let mut engine = engine(DeviceChoice::Auto, limits(forced));
        let mut stages = Vec::new();
        let request = Request::new("a red house").steps(2);
        let result = generate(&mut engine, &request, |event| {
            if let Event::Stage(stage) = event {
                stages.push(stage);
            }
        });
        match result {
            Err(Error::Plan(PlanError::ExceedsLimit { bytes, limit, .. })) => {
                assert!(bytes > limit && forced.contains(&limit), "{bytes} over {limit}");
            }
            other => panic!("{forced:?}: {other:?}"),
        }
        assert_eq!(stages, [Stage::Prepare], "{forced:?}");
    }
}

/// What every WebGPU device gives, and two that give less.
const FORCED: [[u64; 2]; 3] = [DEFAULTS, [64 * MIB; 2], [16 * MIB; 2]];

/// Rows and columns of latents: the first of the embedded model, with 128 bytes a pixel in its largest activation, then of a small
/// random one with 64, the last of one with 32. The last two exceed 16 MiB, and the last exceeds 64 MiB.
const SIZES: [[usize; 2]; 20] = [
    [1, 1],
    [2, 3],
    [5, 4],
    [8, 8],
    [11, 7],
    [16, 9],
    [13, 21],
    [24, 24],
    [1, 2],
    [3, 3],
    [7, 10],
    [10, 23],
    [15, 1],
    [17, 16],
    [2, 40],
    [31, 30],
    [40, 21],
    [64, 64],
    [65, 64],
    [182, 183],
];

/// Sizes of the embedded model.
const EMBEDDED: usize = 8;

/// The adapter as a WebGPU device with no more than the defaults, and buffers and bindings within `forced`.
fn webgpu(forced: [u64; 2]) -> Device {
    let mut list = pollster::block_on(adapters());
    let (index, _) = choose(&list, &AdapterChoice::Best).expect("an adapter");
    let least = Caps::baseline();
    list[index].caps = Caps {
        workgroup_memory: least.workgroup_memory,
        workgroup_invocations: least.workgroup_invocations,
        ..list[index].caps.limited(&limits(forced))
    };
    let gpu = pollster::block_on(Gpu::open_adapter(&list[index])).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!([gpu.caps().max_buffer, gpu.caps().max_binding], forced);
    Device::Gpu(gpu)
}

fn runner(weights: &Weights, device: Device) -> VaeRunner {
    let vae = Vae::read(weights.checkpoint()).unwrap_or_else(|e| panic!("{e}"));
    VaeRunner::new((vae, weights.clone()), device, DType::F32, Policy::default()).with_options(alone())
}

/// Bytes as planned and as allocated of what has just run.
fn bytes(runner: &VaeRunner, task: VaeTask) -> (Bytes, Bytes) {
    let whole = runner.sessions().find(|(t, _)| *t == task);
    let whole = whole.map(|(_, session)| (session.planned(), session.allocated()));
    let last = runner.tiled().last();
    whole.unwrap_or_else(|| last.map(|ran: &Ran| ran.bytes).expect("it ran as a whole or in tiles"))
}

/// What runs under [`FORCED`] have shown.
#[derive(Clone, Copy)]
struct Count {
    runs: usize,
    tiled: usize,
    refused: usize,
    worst: f64,
}

/// Decodes a random latent under every limit and compares with the CPU.
fn decode_under(devices: &[Device; 3], model: &Weights, [height, width]: [usize; 2], counts: &mut [Count; 3]) {
    let mut cpu = runner(model, Device::Cpu(Cpu::default()));
    let shape = [1, cpu.vae().latent_channels(), height, width];
    let mut uniform = support::uniform(&format!("{shape:?}"));
    let latent = Tensor::new(shape, (0..shape.iter().product()).map(|_| uniform()).collect());
    let want = pollster::block_on(cpu.decode(&latent)).unwrap_or_else(|e| panic!("{height}x{width}: {e}"));
    let mut line = format!("{height}x{width}:");
    for ((device, count), forced) in devices.iter().zip(counts).zip(FORCED) {
        let name = format!("{height}x{width} under {forced:?}");
        let mut gpu = runner(model, device.clone());
        let (mut tiles, mut notes) = (0, 0);
        let on = &mut |event| match event {
            Event::Tile { .. } => tiles += 1,
            Event::Note(_) => notes += 1,
            _ => (),
        };
        count.runs += 1;
        match pollster::block_on(gpu.decode_with(&latent, on, &Cancel::new())) {
            Ok(got) => {
                let psnr = psnr(&got.data, &want.data);
                let _ = write!(line, " {psnr:.1} dB in {tiles} tiles;");
                assert!(psnr >= 45.0, "{name}: {psnr} dB");
                let (planned, allocated) = bytes(&gpu, VaeTask::Decode { height, width });
                assert_eq!(planned, allocated, "{name}");
                // Tiles are never a surprise.
                assert_eq!(notes, usize::from(tiles > 0), "{name}");
                count.tiled += usize::from(tiles > 0);
                count.worst = count.worst.min(psnr);
            }
            Err(Error::Plan(error @ PlanError::ExceedsLimit { .. })) => {
                let _ = write!(line, " {error};");
                assert_eq!((tiles, notes), (0, 0), "{name}: something has run");
                count.refused += 1;
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
    println!("{line}");
}

fn all_under(sizes: &[([usize; 2], Weights)]) -> [Count; 3] {
    let start = Instant::now();
    let devices = FORCED.map(webgpu);
    let mut counts = [Count {
        runs: 0,
        tiled: 0,
        refused: 0,
        worst: f64::INFINITY,
    }; 3];
    for (size, model) in sizes {
        decode_under(&devices, model, *size, &mut counts);
    }
    for (count, forced) in counts.iter().zip(FORCED) {
        println!(
            "buffers and bindings of {forced:?} bytes: {} of {} right, the worst {:.1} dB; {} of them in tiles; {} refused",
            count.runs - count.refused,
            sizes.len(),
            count.worst,
            count.tiled,
            count.refused
        );
        assert_eq!(count.runs, sizes.len());
    }
    println!("{:.0} s", start.elapsed().as_secs_f64());
    counts
}

#[test]
fn twenty_sizes_under_webgpu_limits() {
    if support::gpu().is_none() {
        return;
    }
    let [embedded, random, tiny] = [part("vae"), weights("vae_sd15"), weights("vae_taesd")];
    let model = |i| match i {
        i if i < EMBEDDED => &embedded,
        i if i + 1 < SIZES.len() => &random,
        _ => &tiny,
    };
    let sizes = SIZES.iter().enumerate().map(|(i, size)| (*size, model(i).clone()));
    let counts = all_under(&sizes.collect::<Vec<_>>());
    assert!(
        counts[1].tiled >= 1 && counts[2].tiled >= 2,
        "the limits are in nobody's way"
    );
}

/// A minute or more: `cargo test --test limits_forced -- --ignored --nocapture`.
#[test]
#[ignore = "takes a minute"]
fn more_than_webgpu_promises() {
    if support::gpu().is_none() {
        return;
    }
    let counts = all_under(&[([183, 182], weights("vae_sd15"))]);
    assert!(counts.iter().all(|count| count.tiled == 1), "it fits as a whole");
}

/// A driver may have less memory than its limits say: found when the room is taken, before anything runs.
#[test]
fn without_memory_for_the_whole_it_runs_in_tiles() {
    if support::gpu().is_none() {
        return;
    }
    let Device::Gpu(gpu) = webgpu(DEFAULTS) else {
        panic!("a GPU")
    };
    let model = part("vae");
    let [height, width] = [20, 14];
    let shape = [1, 16, height, width];
    let mut uniform = support::uniform("short of memory");
    let latent = Tensor::new(shape, (0..shape.iter().product()).map(|_| uniform()).collect());
    let decode = |least| {
        gpu.faults().refuse_above(least);
        let mut runner = runner(&model, Device::Gpu(gpu.clone()));
        let (mut notes, mut tiles) = (Vec::new(), 0);
        let on = &mut |event| match event {
            Event::Note(note) => notes.push(note),
            Event::Tile { .. } => tiles += 1,
            _ => (),
        };
        let picture = pollster::block_on(runner.decode_with(&latent, on, &Cancel::new()));
        (picture, notes, tiles)
    };
    let (want, notes, tiles) = decode(u64::MAX);
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((notes.len(), tiles), (0, 0));
    // Less and less: smaller and smaller tiles.
    let task = VaeTask::Decode { height, width };
    let plan = runner(&model, Device::Gpu(gpu.clone())).plan(task);
    let whole = plan.expect("plans").gpu_bytes().session();
    let mut before = 0;
    for least in [whole - 1, whole / 3, whole / 6] {
        let (got, notes, tiles) = decode(least);
        let got = got.unwrap_or_else(|e| panic!("{least}: {e}"));
        let psnr = psnr(&got.data, &want.data);
        println!("{least}: {psnr:.1} dB, {notes:?}");
        assert!(psnr >= 80.0, "{least}: {psnr}");
        assert!(tiles > before, "{least}: {tiles} tiles, {before} before");
        before = tiles;
        assert!(notes.len() == 1 && notes[0].contains("out of memory"), "{notes:?}");
    }
    let (nothing, notes, tiles) = decode(1000);
    assert!(
        matches!(nothing, Err(Error::Gpu(GpuError::OutOfMemory { .. }))),
        "{nothing:?}"
    );
    assert_eq!((notes.len(), tiles), (0, 0));
}

/// Rows and columns of a latent, and limits on buffers and bindings so small that some are refused.
const DECODES: [([usize; 2], [u64; 2]); 20] = [
    ([1, 1], [MIB / 4; 2]),
    ([1, 1], [4096; 2]),
    ([1, 2], [MIB / 4; 2]),
    ([3, 1], [MIB / 8; 2]),
    ([2, 2], [MIB / 4; 2]),
    ([4, 4], [MIB / 4; 2]),
    ([5, 7], [MIB; 2]),
    ([7, 5], [MIB, MIB / 2]),
    ([8, 8], [MIB / 2; 2]),
    ([8, 8], [MIB / 2 - 4; 2]),
    ([9, 8], [MIB / 2; 2]),
    ([3, 17], [MIB; 2]),
    ([12, 12], [2 * MIB; 2]),
    ([13, 11], [MIB; 2]),
    ([16, 16], [2 * MIB; 2]),
    ([16, 16], [4 * MIB, 2 * MIB]),
    ([16, 16], [MIB; 2]),
    ([17, 9], [16 * MIB; 2]),
    ([24, 16], [3 * MIB; 2]),
    ([32, 32], DEFAULTS),
];

#[test]
fn every_decode_is_right_or_refused() {
    if support::gpu().is_none() {
        return;
    }
    let mut cpu = engine(DeviceChoice::Cpu, Limits::default());
    let mut refused = 0;
    for ([height, width], forced) in DECODES {
        let shape = [1, 16, height, width];
        let mut uniform = support::uniform(&format!("{shape:?}"));
        let latent = Tensor::new(shape, (0..16 * height * width).map(|_| uniform()).collect());
        let name = format!("{height}x{width} under {forced:?}");
        let mut gpu = engine(DeviceChoice::Auto, limits(forced));
        match pollster::block_on(gpu.decode(&latent)) {
            Ok(got) => {
                let want = pollster::block_on(cpu.decode(&latent)).unwrap_or_else(|e| panic!("{name}: {e}"));
                let psnr = Comparison::of(&got, &want).expect("the same size").psnr;
                println!("{name}: {psnr:.1} dB");
                assert!(psnr >= 45.0, "{name}: {psnr} dB");
            }
            Err(Error::Plan(error @ PlanError::ExceedsLimit { .. })) => {
                refused += 1;
                println!("{name}: {error}");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
    assert!((1..DECODES.len()).contains(&refused), "{refused} refused");
}

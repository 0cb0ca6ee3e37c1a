//! The autoencoder where a GPU cannot run it: in tiles whose weights take turns, and on the CPU, graph by graph.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::{part, weights};
use pollster::block_on;
use rotile::backend::{Device, Planner};
use rotile::cpu::Cpu;
use rotile::diffusion::tiled::{Half, Room, Route, TileOptions, route};
use rotile::diffusion::vae::{Fault, Moved, VaeDType, VaeOptions, VaeRunner};
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Request};
use rotile::error::{Error, GpuError, PlanError};
use rotile::gpu::{AdapterChoice, Caps, Gpu};
use rotile::media::Comparison;
use rotile::memory::residency::Home;
use rotile::models::{Side, Vae};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};

/// So little that every graph moves.
const FORCED: f64 = 1e-9;

fn forced() -> VaeOptions {
    VaeOptions {
        fallback_ratio: Some(FORCED),
        ..VaeOptions::default()
    }
}

fn tiles(size: u32) -> Option<TileOptions> {
    Some(TileOptions { size, overlap: 0 })
}

fn runner(device: Device, options: VaeOptions) -> VaeRunner {
    let weights = part("vae");
    let vae = Vae::read(weights.checkpoint()).unwrap_or_else(|e| panic!("{e}"));
    VaeRunner::new((vae, weights), device, DType::F32, Policy::default()).with_options(options)
}

fn cpu() -> Device {
    Device::Cpu(Cpu::default())
}

/// A GPU of its own, so that nobody else allocates there.
fn gpu() -> Option<Gpu> {
    support::gpu()?;
    Some(block_on(Gpu::open(&AdapterChoice::Best)).unwrap_or_else(|e| panic!("{e}")))
}

fn latent(side: usize) -> Tensor {
    let mut uniform = support::uniform("latent");
    Tensor::new([1, 16, side, side], (0..16 * side * side).map(|_| uniform()).collect())
}

fn decode(runner: &mut VaeRunner, latent: &Tensor) -> (rotile::Result<Tensor>, Vec<String>) {
    let mut notes = Vec::new();
    let on = &mut |event| {
        if let Event::Note(note) = event {
            notes.push(note);
        }
    };
    let result = block_on(runner.decode_with(latent, on, &Cancel::new()));
    (result, notes)
}

fn psnr(got: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(got.ty, want.ty);
    let square = |(a, b): (&f32, &f32)| f64::from(a - b).powi(2);
    let error: f64 = got.data.iter().zip(&want.data).map(square).sum();
    10.0 * (want.data.len() as f64 / error).log10()
}

fn out_of_memory() -> GpuError {
    GpuError::OutOfMemory { wanted: 1234 }
}

/// Whether weights are after a graph where they were before it, and on the host only meanwhile.
fn check_moves(moves: &[Moved]) {
    for moved in moves {
        assert_eq!(moved.before, moved.after);
        assert_eq!(moved.before[0], 0, "nothing is on the host before");
        assert!(moved.away[0] > 0, "the graph's weights are on the host");
        assert_eq!(moved.away[1], 0, "and not on the device");
    }
}

#[test]
fn every_tile_moves_and_comes_back() {
    if support::gpu().is_none() {
        return;
    }
    let engine = |device, vae| {
        let options = Options {
            device,
            vae,
            ..Options::default()
        };
        block_on(Engine::embedded(&options)).unwrap_or_else(|e| panic!("{e}"))
    };
    let options = VaeOptions {
        tile: tiles(72),
        ..forced()
    };
    let mut gpu = engine(DeviceChoice::Gpu(AdapterChoice::Best), options);
    let mut cpu = engine(DeviceChoice::Cpu, VaeOptions::default());
    let start = cpu
        .generate_blocking(
            &Request::new("a red boat").size(128, 128).steps(2),
            |_| (),
            &Cancel::new(),
        )
        .unwrap_or_else(|e| panic!("{e}"))
        .remove(0);
    let whole = block_on(cpu.encode(&start.image)).unwrap_or_else(|e| panic!("{e}"));
    gpu.pipeline().vae_mut().moves();
    let (mut worst, mut notes) = (f64::INFINITY, Vec::new());
    for seed in 0..2 {
        let request = Request {
            seed,
            init_image: Some(start.image.clone()),
            ..Request::new("a red boat").size(128, 128).steps(2).batch(2)
        };
        let on = |event| {
            if let Event::Note(note) = event {
                notes.push(note);
            }
        };
        let pictures = gpu
            .generate_blocking(&request, on, &Cancel::new())
            .unwrap_or_else(|e| panic!("{e}"));
        for picture in &pictures {
            let want = block_on(cpu.decode(&picture.latent)).unwrap_or_else(|e| panic!("{e}"));
            let psnr = Comparison::of(&picture.image, &want).expect("the same size").psnr;
            worst = worst.min(psnr);
            let place = picture.settings.iter().find(|(name, _)| name == "vae_device");
            assert_eq!(place.map(|(_, place)| place.as_str()), Some("CPU"));
        }
    }
    let latent = block_on(gpu.encode(&start.image)).unwrap_or_else(|e| panic!("{e}"));
    let error = support::relative_rms(&latent.data, &whole.data);
    let vae = gpu.pipeline().vae_mut();
    let moves = vae.moves().to_vec();
    let residency = vae.device().residency();
    let left = Home::ALL.map(|home| residency.real_bytes(home));
    println!(
        "{} graphs moved; pictures at {worst:.1} dB of the CPU's, latent off by {error:.1e}; {} to {} bytes on the host meanwhile, {left:?} left",
        moves.len(),
        moves.iter().map(|moved| moved.away[0]).min().unwrap_or(0),
        moves.iter().map(|moved| moved.away[0]).max().unwrap_or(0),
    );
    let rerouted: Vec<_> = notes
        .iter()
        .filter(|note| note.contains("on the CPU in place of"))
        .collect();
    println!("{rerouted:#?}");
    assert!(moves.len() >= 25 && moves.len() == vae.reroutes(), "{}", moves.len());
    assert!(worst >= 60.0 && error < 1e-5);
    check_moves(&moves);
    assert_eq!(left, [0, 0]);
    // Once for each task, with every number.
    assert_eq!(rerouted.len(), 2);
    for word in ["required", "pending", "budget", "largest buffer", "free", "ratio"] {
        assert!(rerouted.iter().all(|note| note.contains(word)), "{word}");
    }
}

#[test]
fn a_gpu_that_fails_is_replaced_at_any_moment() {
    let Some(gpu) = gpu() else { return };
    let latent = latent(16);
    let want = decode(&mut runner(cpu(), VaeOptions::default()), &latent).0;
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    let allocated = |gpu: &Gpu| {
        block_on(gpu.idle()).unwrap_or_else(|e| panic!("{e}"));
        gpu.allocated_bytes()
    };
    let errors = [out_of_memory(), GpuError::Validation("injected".into())];
    let mut count = 0;
    for (tile, at) in [
        (None, 0),
        (tiles(72), 0),
        (tiles(72), 1),
        (tiles(72), 7),
        (tiles(72), 40),
    ] {
        for error in &errors {
            let options = VaeOptions {
                tile,
                ..VaeOptions::default()
            };
            let mut runner = runner(Device::Gpu(gpu.clone()), options);
            // Ready and warm: the device has the weights.
            decode(&mut runner, &latent).0.unwrap_or_else(|e| panic!("{e}"));
            let residency = runner.device().residency().clone();
            let before = (residency.real_bytes(Home::Device), allocated(&gpu));
            runner.moves();
            runner.inject(Fault::Gpu(at, error.clone()));
            let (got, notes) = decode(&mut runner, &latent);
            let psnr = psnr(&got.unwrap_or_else(|e| panic!("{tile:?} {at}: {e}")), &want);
            let moves = runner.moves().to_vec();
            let after = (residency.real_bytes(Home::Device), allocated(&gpu));
            println!(
                "{error} at run {at} in tiles {tile:?}: {psnr:.1} dB, {notes:?}, {before:?} before, {after:?} after"
            );
            assert!(psnr >= 60.0, "{psnr}");
            assert_eq!(moves.len(), 1, "one graph has moved");
            assert_eq!(moves[0].before, moves[0].after);
            assert_eq!(residency.real_bytes(Home::Host), 0);
            assert!(notes.len() == 1 && notes[0].contains(&error.to_string()), "{notes:?}");
            let last = runner.last().expect("it ran");
            assert_eq!((last.on_cpu, last.graphs > 1), (1, tile.is_some()));
            if tile.is_some() {
                // All that was there is there again, to the byte; some bytes of staging memory come and go.
                assert_eq!(before.0, after.0);
                let [before, after] = [before.1, after.1].map(|bytes| bytes.unwrap_or(0));
                assert!(before.abs_diff(after) < 4096, "{before} and {after}");
            }
            // The next one runs on the GPU.
            decode(&mut runner, &latent).0.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(runner.last().map(|last| last.on_cpu), Some(0));
            count += 1;
        }
    }
    println!("{count} failures");
}

#[test]
fn what_the_cpu_cannot_run_either_is_the_first_error() {
    let Some(gpu) = gpu() else { return };
    let latent = latent(8);
    for tile in [None, tiles(48)] {
        let mut runner = runner(
            Device::Gpu(gpu.clone()),
            VaeOptions {
                tile,
                ..VaeOptions::default()
            },
        );
        runner.inject(Fault::Gpu(0, out_of_memory()));
        runner.inject(Fault::Cpu);
        let (result, _) = decode(&mut runner, &latent);
        assert!(
            matches!(result, Err(Error::Gpu(GpuError::OutOfMemory { wanted: 1234 }))),
            "{result:?}"
        );
        let residency = runner.device().residency();
        assert_eq!(residency.real_bytes(Home::Host), 0);
        // Neither is broken.
        assert_eq!((runner.fallback_ended(), runner.reroutes()), (None, 0));
        decode(&mut runner, &latent).0.unwrap_or_else(|e| panic!("{e}"));
    }
    // Before anything is allocated: the message says how much would do.
    let mut runner = runner(Device::Gpu(gpu), forced());
    runner.inject(Fault::Cpu);
    let (result, _) = decode(&mut runner, &latent);
    assert!(
        matches!(result, Err(Error::Plan(PlanError::MaxMemory { .. }))),
        "{result:?}"
    );
}

#[test]
fn a_failed_restore_fails_the_call_and_ends_the_fallback() {
    let Some(gpu) = gpu() else { return };
    let latent = latent(8);
    for (options, works) in [
        (VaeOptions::default(), true),
        (
            VaeOptions {
                tile: tiles(48),
                ..VaeOptions::default()
            },
            true,
        ),
        // What had to move cannot any more: it is tried on the device, and says what that says.
        (
            VaeOptions {
                max_memory: Some(1 << 16),
                ..VaeOptions::default()
            },
            false,
        ),
    ] {
        let mut runner = runner(Device::Gpu(gpu.clone()), options);
        if works {
            decode(&mut runner, &latent).0.unwrap_or_else(|e| panic!("{e}"));
            runner.inject(Fault::Gpu(0, out_of_memory()));
        }
        runner.inject(Fault::Restore);
        let (result, _) = decode(&mut runner, &latent);
        assert!(matches!(result, Err(Error::Unrestored(_))), "{result:?}");
        assert!(runner.fallback_ended().is_some());
        assert_eq!(runner.device().residency().real_bytes(Home::Host), 0);
        let (result, notes) = decode(&mut runner, &latent);
        match result {
            Ok(_) => assert!(works),
            Err(Error::Plan(PlanError::MaxMemory { .. })) => assert!(!works),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(runner.reroutes(), 0, "{notes:?}");
        // The device fails again: nothing moves.
        if works {
            runner.inject(Fault::Gpu(0, out_of_memory()));
            let (result, _) = decode(&mut runner, &latent);
            assert!(
                matches!(result, Err(Error::Gpu(GpuError::OutOfMemory { wanted: 1234 }))),
                "{result:?}"
            );
        }
    }
}

#[test]
fn a_lost_device_leaves_the_picture() {
    let Some(gpu) = gpu() else { return };
    let latent = latent(8);
    let want = decode(&mut runner(cpu(), VaeOptions::default()), &latent).0;
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    let options = VaeOptions {
        tile: tiles(48),
        ..VaeOptions::default()
    };
    let mut runner = runner(Device::Gpu(gpu), options);
    runner.inject(Fault::Gpu(5, GpuError::DeviceLost("injected".into())));
    let (got, notes) = decode(&mut runner, &latent);
    let psnr = psnr(&got.unwrap_or_else(|e| panic!("{e}")), &want);
    let last = runner.last().expect("it ran");
    println!("{psnr:.1} dB, {last:?}, {notes:?}");
    assert!(psnr >= 60.0);
    // From there on everything runs on the CPU.
    assert!(last.on_cpu > 1, "{last:?}");
    assert!(notes.iter().any(|note| note.contains("was lost")), "{notes:?}");
}

#[test]
fn who_does_not_want_it_has_the_errors_of_the_gpu() {
    let latent = latent(8);
    // Nothing moves from the CPU to the CPU.
    let (result, notes) = decode(&mut runner(cpu(), forced()), &latent);
    result.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(notes, [""; 0]);
    let Some(gpu) = gpu() else { return };
    let device = || Device::Gpu(gpu.clone());
    let off = VaeOptions {
        fallback: false,
        max_memory: Some(1 << 16),
        ..forced()
    };
    let (result, _) = decode(&mut runner(device(), off), &latent);
    assert!(
        matches!(result, Err(Error::Plan(PlanError::MaxMemory { .. }))),
        "{result:?}"
    );
    // A ratio that is none is said, once, and is the default.
    let odd = VaeOptions {
        fallback_ratio: Some(1.5),
        ..VaeOptions::default()
    };
    let mut runner = runner(device(), odd);
    for wanted in [1, 0] {
        let (result, notes) = decode(&mut runner, &latent);
        result.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(notes.len(), wanted, "{notes:?}");
        assert!(notes.iter().all(|note| note.contains("0.9")), "{notes:?}");
    }
    assert_eq!(runner.reroutes(), 0);
}

#[test]
fn half_precision_becomes_single_on_the_cpu() {
    let Some(gpu) = gpu().filter(|gpu| gpu.caps().f16) else {
        return;
    };
    let latent = latent(8);
    let want = decode(&mut runner(cpu(), VaeOptions::default()), &latent).0;
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    for tile in [None, tiles(48)] {
        let options = VaeOptions {
            dtype: VaeDType::F16,
            tile,
            ..forced()
        };
        let mut runner = runner(Device::Gpu(gpu.clone()), options);
        let (got, notes) = decode(&mut runner, &latent);
        let psnr = psnr(&got.unwrap_or_else(|e| panic!("{e}")), &want);
        println!("{psnr:.1} dB; {notes:?}");
        assert!(psnr >= 60.0);
        assert_eq!(runner.last().map(|last| last.dtype), Some(DType::F32));
        assert_eq!(
            notes.iter().filter(|note| note.contains("in f32")).count(),
            1,
            "{notes:?}"
        );
    }
}

/// The least that the published sizes take where weights take turns, and where they stay: planned only.
#[test]
fn weights_that_take_turns_need_less() {
    let policy = Policy::default();
    let caps = Caps::baseline();
    let planner = Planner {
        caps: Some(&caps),
        policy: &policy,
    };
    for name in ["flux1_vae", "sdxl_vae", "qwen_image_vae"] {
        let weights = weights(&format!("manifests/{name}.json"));
        let vae = Vae::read(weights.checkpoint()).unwrap_or_else(|e| panic!("{e}"));
        let half = Half {
            vae: &vae,
            weights: &weights,
            side: Side::Decoder,
        };
        let within = |bytes| {
            let room = Room {
                device: Some(bytes),
                ..Room::default()
            };
            route(half, [64, 64], DType::F32, planner, None, room)
        };
        let Err(Error::Plan(PlanError::MaxMemory { wanted: floor, .. })) = within(1) else {
            panic!("a byte is not enough")
        };
        let Ok(Route::Tiled(schedule, note)) = within(floor) else {
            panic!("{name}: {floor} are not enough")
        };
        assert!(schedule.takes_turns() && note.contains("taking turns"), "{note}");
        let plans = schedule.plans(half, planner).expect("plans");
        let blocks = plans.iter().map(|plan| planner.bytes(plan));
        let largest = blocks.max_by_key(|bytes| bytes.total()).expect("has passes");
        // Activations of a pass are those that come and go too: the rest is on its way.
        let of = |bytes: u64| floor as f64 / bytes as f64;
        let (ratio, inner) = (of(largest.total()), of(largest.weights + largest.activations));
        let mut all: Vec<_> = plans.iter().flat_map(|plan| plan.weights.clone()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all.dedup();
        let all: u64 = all.iter().map(|weight| weight.ty.byte_len() as u64).sum();
        let session = plans.iter().map(|plan| planner.bytes(plan).session()).max();
        let stay = all + session.unwrap_or(0);
        println!(
            "{name}: floor {floor}: {ratio:.3} of the largest pass's weights and activations ({inner:.3} without its input and the result that is read back); {stay} where \
             weights stay; {largest:?}; {note}"
        );
        assert!(ratio <= 1.10, "{ratio}");
        assert!(floor < stay, "{floor} and {stay}");
        assert!(within(floor - 1).is_err());
    }
}

/// At the floor the GPU holds what was planned, and no more.
#[test]
fn the_floor_is_kept() {
    let Some(gpu) = gpu() else { return };
    let latent = latent(16);
    let want = decode(&mut runner(cpu(), VaeOptions::default()), &latent).0;
    let want = want.unwrap_or_else(|e| panic!("{e}"));
    let within = |bytes| VaeOptions {
        max_memory: Some(bytes),
        fallback: false,
        ..VaeOptions::default()
    };
    let mut small = runner(Device::Gpu(gpu.clone()), within(1000));
    let Err(Error::Plan(PlanError::MaxMemory { wanted: floor, .. })) = decode(&mut small, &latent).0 else {
        panic!("1000 bytes are not enough")
    };
    let mut runner = runner(Device::Gpu(gpu.clone()), within(floor));
    let before = gpu.allocated_bytes();
    let watch = gpu.watch();
    let (got, notes) = decode(&mut runner, &latent);
    let psnr = psnr(&got.unwrap_or_else(|e| panic!("{e}")), &want);
    let peak = watch.peak().zip(before).map(|(peak, before)| peak.allocated - before);
    println!("floor {floor}: {psnr:.1} dB, {peak:?} bytes at most; {notes:?}");
    assert!(psnr >= 60.0);
    assert!(peak.is_none_or(|peak| peak <= floor), "{peak:?} of {floor}");
}

#[test]
fn the_command_line_refuses_ratios_that_are_none() {
    let run = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rotile"));
        command.args(["generate", "a", "--steps", "1"]).args(args);
        command.output().expect("runs")
    };
    for ratio in ["0", "1.1", "-0.5", "nan", "much"] {
        let output = run(&["--vae-fallback-ratio", ratio]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{ratio}: {text}");
        assert!(text.contains("above 0, at most 1"), "{text}");
    }
    let both = run(&["--vae-fallback-ratio", "0.5", "--no-vae-fallback"]);
    assert_eq!(both.status.code(), Some(2));
}

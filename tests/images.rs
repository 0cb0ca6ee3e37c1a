//! Whole pictures, step by step, against what diffusers computes from the same weights; determinism; and refusals.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use rotile::Error;
use rotile::backend::Device;
use rotile::checkpoint::Checkpoint;
use rotile::diffusion::Rng;
use rotile::diffusion::pipeline::Task;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Picture, Request};
use rotile::media::{Comparison, Format, Image};
use rotile::models::Vae;
use rotile::tensor::{DType, Tensor};
use std::path::{Path, PathBuf};
use support::relative_rms;

/// A device with the bars that a whole run must reach on it.
struct Bars {
    name: &'static str,
    device: DeviceChoice,
    dtype: DType,
    /// Largest relative RMS error of the final latent.
    latent: f64,
    /// Smallest PSNR of the picture, in dB.
    psnr: f64,
}

const CPU: Bars = Bars {
    name: "CPU f32",
    device: DeviceChoice::Cpu,
    dtype: DType::F32,
    latent: 1e-4,
    psnr: 60.0,
};

const GPU: Bars = Bars {
    name: "GPU f32",
    device: DeviceChoice::Auto,
    dtype: DType::F32,
    latent: 1e-3,
    psnr: 50.0,
};

const GPU_F16: Bars = Bars {
    name: "GPU f16",
    device: DeviceChoice::Auto,
    dtype: DType::F16,
    // The picture decides: latents in half precision have no bar of their own.
    latent: 0.1,
    psnr: 38.0,
};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("goldens/reference/scenes-tiny")
        .join(name)
}

fn engine(bars: &Bars) -> Option<Engine> {
    if bars.device != DeviceChoice::Cpu {
        let gpu = support::gpu()?;
        if bars.dtype == DType::F16 && !gpu.caps().f16 {
            eprintln!("skipped: no f16 on {}", gpu.caps());
            return None;
        }
    }
    let options = Options {
        device: bars.device.clone(),
        dtype: Some(bars.dtype),
        ..Options::default()
    };
    Some(pollster::block_on(Engine::embedded(&options)).expect("the embedded model loads"))
}

/// The request of a stored run, from the metadata of its file.
fn request(run: &str) -> Request {
    match run {
        "run_a" => Request::new("a paper boat on the sea below a cliff at sunset")
            .seed(0)
            .steps(20)
            .guidance(3.0),
        "run_b" => Request::new("a red lighthouse by the sea at night")
            .seed(3)
            .steps(8)
            .guidance(1.0),
        "run_c" => Request::new("a green tree in a meadow under a blue sky")
            .seed(5)
            .steps(8)
            .guidance(0.0),
        other => panic!("no run {other}"),
    }
}

fn follows_diffusers(run: &str, bars: &Bars) {
    let Some(mut engine) = engine(bars) else { return };
    let stored = Checkpoint::open(reference(&format!("{run}.safetensors"))).expect("the reference opens");
    let load = |name: &str| stored.load(name, DType::F32).expect("a stored tensor").data;
    let request = request(run);

    let tokens = engine.pipeline().tokens(&request.prompt).expect("tokens");
    let embeddings = pollster::block_on(engine.pipeline().embed(&tokens)).expect("embeddings");
    let text = relative_rms(&embeddings.data, &load("prompt_embeds"));
    println!("{run} on {}: prompt embeddings {text:.1e}", bars.name);

    let mut steps = Vec::new();
    let on = |event| {
        if let Event::Step { step, latent, .. } = event {
            steps.push(relative_rms(&latent.data, &load(&format!("latents.{}", step - 1))));
        }
    };
    let pictures = pollster::block_on(engine.generate(&request, on, &Cancel::new())).expect("a picture");
    let picture = &pictures[0].image;
    let exact = image::open(reference(&format!("{run}.png")))
        .expect("the reference picture")
        .to_rgb8();
    let (width, height) = exact.dimensions();
    let exact = Image::new(width, height, exact.into_raw());
    let psnr = Comparison::of(picture, &exact).expect("one size").psnr;
    let list: Vec<_> = steps.iter().map(|e| format!("{e:.1e}")).collect();
    println!(
        "{run} on {}: latents {}; picture {psnr:.1} dB",
        bars.name,
        list.join(" ")
    );

    assert_eq!(steps.len(), request.steps.map_or(0, |n| n as usize));
    let last = steps[steps.len() - 1];
    assert!(last <= bars.latent, "final latent {last:.2e}, bar {:.0e}", bars.latent);
    assert!(psnr >= bars.psnr, "picture {psnr:.1} dB, bar {}", bars.psnr);
}

macro_rules! runs {
    ($($test:ident: $run:literal on $bars:expr;)*) => {
        $(#[test]
        fn $test() {
            follows_diffusers($run, &$bars);
        })*
    };
}

runs! {
    run_a_on_the_cpu: "run_a" on CPU;
    run_b_on_the_cpu: "run_b" on CPU;
    run_c_on_the_cpu: "run_c" on CPU;
    run_a_on_the_gpu: "run_a" on GPU;
    run_b_on_the_gpu: "run_b" on GPU;
    run_c_on_the_gpu: "run_c" on GPU;
    run_a_on_the_gpu_in_half_precision: "run_a" on GPU_F16;
    run_b_on_the_gpu_in_half_precision: "run_b" on GPU_F16;
    run_c_on_the_gpu_in_half_precision: "run_c" on GPU_F16;
}

/// The random pipeline of the fixtures, opened as a folder: latents that need padding, guidance, and its normalization.
#[test]
fn a_folder_of_random_weights_follows_diffusers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/reference/pipe_zimage");
    let stored = Checkpoint::open(folder.join("io.safetensors")).expect("the reference opens");
    let load = |name: &str| stored.load(name, DType::F32).expect("a stored tensor").data;
    let base = || Request::new("a photo of a cat").negative_prompt("blurry, low quality");
    let normalized = Request {
        cfg_normalization: 1.0,
        ..base().size(64, 64).steps(3).guidance(4.0).seed(701)
    };
    let runs = [
        ("turbo", base().size(96, 64).steps(4).guidance(0.0).seed(700)),
        ("cfg", base().size(64, 64).steps(3).guidance(3.0).seed(701)),
        ("cfg_norm", normalized),
    ];
    for (bars, limit) in [(&CPU, 2e-5), (&GPU, 2e-4)] {
        if bars.device != DeviceChoice::Cpu && support::gpu().is_none() {
            continue;
        }
        let options = Options {
            device: bars.device.clone(),
            ..Options::default()
        };
        let mut engine = pollster::block_on(Engine::load(&folder, &options)).expect("the folder loads");
        for (run, request) in &runs {
            let mut errors = Vec::new();
            let on = |event| {
                if let Event::Step { step, latent, .. } = event {
                    errors.push(relative_rms(
                        &latent.data,
                        &load(&format!("{run}.latents.{}", step - 1)),
                    ));
                }
            };
            let pictures = pollster::block_on(engine.generate(request, on, &Cancel::new())).expect("a picture");
            let decoded = pollster::block_on(engine.pipeline().decode(&pictures[0].latent)).expect("a picture");
            let decoded: Vec<f32> = decoded.data.iter().map(|v| v * 2.0 - 1.0).collect();
            errors.push(relative_rms(&decoded, &load(&format!("{run}.decoded"))));
            let list: Vec<_> = errors.iter().map(|e| format!("{e:.1e}")).collect();
            println!("{run} on {}: latents and picture {}", bars.name, list.join(" "));
            assert!(errors.iter().all(|e| *e <= limit), "{run} on {}: {errors:?}", bars.name);
        }
    }
}

#[test]
fn encode_and_decode_follow_diffusers() {
    let stored = Checkpoint::open(reference("vae.safetensors")).expect("the reference opens");
    let load = |name: &str| stored.load(name, DType::F32).expect("a stored tensor").data;
    let (images, means, decoded) = (load("image"), load("mean"), load("decoded"));
    let (pixels, cells) = (3 * 128 * 128, 16 * 16 * 16);
    for (bars, limit) in [(CPU, 2e-5), (GPU, 2e-4)] {
        let Some(mut engine) = engine(&bars) else { continue };
        let Vae::Kl(vae) = engine.pipeline().models().vae.0.clone() else {
            panic!("an AutoencoderKL")
        };
        for i in 0..2 {
            let image = images[i * pixels..][..pixels].iter().map(|v| v * 0.5 + 0.5).collect();
            let picture = Tensor::new([1, 3, 128, 128], image);
            let latent = pollster::block_on(engine.pipeline().encode(&picture)).expect("a latent");
            let scaled: Vec<f32> = means[i * cells..][..cells]
                .iter()
                .map(|m| (m - vae.shift) * vae.scaling)
                .collect();
            let encode = relative_rms(&latent.data, &scaled);
            let latent = Tensor::new([1, 16, 16, 16], scaled);
            let picture = pollster::block_on(engine.pipeline().decode(&latent)).expect("a picture");
            let picture: Vec<f32> = picture.data.iter().map(|v| v * 2.0 - 1.0).collect();
            let decode = relative_rms(&picture, &decoded[i * pixels..][..pixels]);
            println!("{}: encode {encode:.1e}, decode {decode:.1e}", bars.name);
            assert!(
                encode <= limit && decode <= limit,
                "{}: {encode:.2e}, {decode:.2e}",
                bars.name
            );
        }
    }
}

fn png(picture: &Picture) -> Vec<u8> {
    picture.image.to_bytes(Format::Png, &picture.settings).expect("a PNG")
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    for bars in [CPU, GPU, GPU_F16] {
        let make = || {
            let mut engine = engine(&bars)?;
            let request = request("run_b").steps(2).batch(2);
            let pictures = pollster::block_on(engine.generate(&request, |_| {}, &Cancel::new())).expect("pictures");
            assert_eq!(pictures[1].seed, 4);
            // The second picture alone, in an engine that has run before.
            let alone = request.batch(1).seed(4);
            let again = pollster::block_on(engine.generate(&alone, |_| {}, &Cancel::new())).expect("a picture");
            assert_eq!(
                png(&again[0]),
                png(&pictures[1]),
                "{}: a batch and its pictures one by one",
                bars.name
            );
            Some(pictures.iter().map(png).collect::<Vec<_>>())
        };
        assert_eq!(make(), make(), "{}", bars.name);
    }
}

#[test]
fn a_cancelled_run_stops_within_one_step() {
    let mut engine = engine(&CPU).expect("the CPU is always there");
    let cancel = Cancel::new();
    let mut steps = 0;
    let on = |event| {
        if matches!(event, Event::Step { .. }) {
            steps += 1;
            cancel.cancel();
        }
    };
    let result = pollster::block_on(engine.generate(&request("run_b"), on, &cancel));
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(steps, 1);
}

#[test]
fn sizes_between_are_refused_with_the_nearest() {
    let mut engine = engine(&CPU).expect("the CPU is always there");
    let mut refusal = |request: &Request| {
        pollster::block_on(engine.generate(request, |_| {}, &Cancel::new()))
            .expect_err("refused")
            .to_string()
    };
    let prompt = || Request::new("a boat");
    assert_eq!(
        refusal(&prompt().size(130, 128)),
        "width 130 is no multiple of 16; the nearest that work are 128 and 144"
    );
    assert_eq!(
        refusal(&prompt().size(128, 7)),
        "height 7 is no multiple of 16; the nearest that work are 16 and 32"
    );
    assert!(refusal(&prompt().size(128, 0)).contains("height 0"));
    assert!(refusal(&prompt().batch(0)).contains("at least 1"));
    assert!(refusal(&prompt().steps(0)).contains("at least 1 step"));
    assert!(refusal(&prompt().guidance(-1.0)).contains("guidance"));
    assert!(refusal(&prompt().guidance(f32::NAN)).contains("guidance"));
}

#[test]
fn starts_from_a_picture() {
    let mut engine = engine(&CPU).expect("the CPU is always there");
    let start = pollster::block_on(engine.generate(&request("run_c"), |_| {}, &Cancel::new())).expect("a picture");
    let start = start[0].image.clone();
    let mut steps = 0;
    let mut from = |strength| {
        let request = request("run_c").seed(9).init_image(start.clone(), strength);
        let on = |event| steps += u32::from(matches!(event, Event::Step { .. }));
        let picture = pollster::block_on(engine.generate(&request, on, &Cancel::new())).expect("a picture");
        Comparison::of(&picture[0].image, &start).expect("one size").psnr
    };
    let (near, far) = (from(0.2), from(0.9));
    assert!(near > far + 3.0 && near > 20.0, "{near:.1} dB near, {far:.1} dB far");
    assert_eq!(
        steps,
        2 + 8,
        "as diffusers: the first int(8 - 8 * strength) are left out"
    );
}

#[test]
fn noise_generators_differ() {
    let mut engine = engine(&CPU).expect("the CPU is always there");
    let mut make = |rng| {
        let request = request("run_b").steps(1).rng(rng);
        pollster::block_on(engine.generate(&request, |_| {}, &Cancel::new()))
            .expect("a picture")
            .remove(0)
            .image
    };
    assert_ne!(make(Rng::Torch), make(Rng::Philox));
}

#[test]
fn what_is_planned_is_what_is_allocated() {
    for bars in [CPU, GPU, GPU_F16] {
        let Some(mut engine) = engine(&bars) else { continue };
        pollster::block_on(engine.generate(&request("run_b").steps(1), |_| {}, &Cancel::new())).expect("a picture");
        for (task, session) in engine.pipeline().sessions() {
            let (planned, allocated) = (session.planned(), session.allocated());
            println!("{}: {task:?}: planned {planned}, allocated {allocated}", bars.name);
            assert_eq!(planned, allocated, "{}: {task:?}", bars.name);
        }
    }
}

/// Between the first step and the last, nothing is compiled and no device memory is allocated.
#[test]
fn the_loop_compiles_and_allocates_nothing() {
    let Some(mut engine) = engine(&GPU) else { return };
    let Device::Gpu(gpu) = engine.pipeline().device().clone() else {
        panic!("no GPU")
    };
    let mut seen = Vec::new();
    let on = |event| {
        if matches!(event, Event::Step { .. }) {
            seen.push((gpu.kernels(), gpu.allocated_bytes()));
        }
    };
    pollster::block_on(engine.generate(&request("run_b"), on, &Cancel::new())).expect("a picture");
    assert_eq!(seen.len(), 8);
    assert!(seen[0].0 > 0 && seen.iter().all(|s| *s == seen[0]), "{seen:?}");
    assert_eq!(
        gpu.kernels(),
        seen[0].0,
        "the decoder was compiled before the first step too"
    );
}

/// What the driver's allocator says, against the plan of a session with its weights.
#[test]
fn the_allocator_agrees_with_the_plan() {
    if support::gpu().is_none() {
        return;
    }
    let mut engine = engine(&GPU).expect("a GPU");
    let Device::Gpu(gpu) = engine.pipeline().device().clone() else {
        panic!("no GPU")
    };
    let tasks = [
        Task::Text { tokens: 19 },
        Task::Caption { tokens: 19 },
        Task::Denoise {
            tokens: 32,
            height: 16,
            width: 16,
        },
        Task::Encode { height: 16, width: 16 },
        Task::Decode { height: 16, width: 16 },
    ];
    for task in tasks {
        let session = pollster::block_on(engine.pipeline().prepare(task)).expect("it fits");
        let planned = session.planned().total();
        session.repeat(1).expect("it runs");
        let Some(with) = gpu.allocated_bytes() else {
            println!("skipped: this backend reports no allocations");
            return;
        };
        engine.pipeline().release();
        pollster::block_on(gpu.idle()).expect("the device is there");
        let used = with - gpu.allocated_bytes().expect("as before");
        let ratio = used as f64 / planned as f64;
        println!("{task:?}: planned {planned}, allocated {used}, ratio {ratio:.4}");
        assert!((1.0..=1.05).contains(&ratio), "{task:?}: ratio {ratio:.4}");
    }
}

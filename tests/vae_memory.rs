//! What autoencoders of the published sizes take: the table in the documentation is what is planned, what is planned is allocated,
//! and `inspect` says what would run.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::path;
use pollster::block_on;
use rotile::backend::{Device, Planner};
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::diffusion::tiled::{Half, Room, Route, TileOptions, route};
use rotile::diffusion::vae::{VaeDType, VaeOptions, VaeTask};
use rotile::engine::{Inspection, Target};
use rotile::error::{Error, PlanError};
use rotile::gpu::{AdapterChoice, Caps, Gpu};
use rotile::models::{Side, Vae};
use rotile::plan::Policy;
use rotile::tensor::DType;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

/// Families, and the description that has their shapes. Stable Diffusion 1.5 has those of SDXL, and Stable Diffusion 3 those of
/// FLUX.1, which is planned the same.
const FAMILIES: [(&str, &str); 8] = [
    ("Stable Diffusion 1.5, SDXL", "sdxl_vae"),
    ("Stable Diffusion 3, FLUX.1, Z-Image", "flux1_vae"),
    ("FLUX.2", "flux2_vae"),
    ("CogView4", "cogview4_vae"),
    ("Qwen-Image", "qwen_image_vae"),
    ("TAESD", "taesd"),
    ("TAEF1", "taef1"),
    ("TAEF2", "taef2"),
];

const SIDES: [usize; 3] = [512, 1024, 2048];

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/diffusion/vae/memory.md");

/// A description of published shapes.
fn description(name: &str) -> String {
    let read =
        |name: &str| std::fs::read_to_string(path(&format!("manifests/{name}.json"))).expect("in the repository");
    match name {
        // TAESD with more channels in the latent.
        "taef1" => read("taesd")
            .replace("[4,64,3,3]", "[16,64,3,3]")
            .replace("[64,4,3,3]", "[64,16,3,3]")
            .replace(r#"["F32",[4]]"#, r#"["F32",[16]]"#)
            .replace(r#""latent_channels":4"#, r#""latent_channels":16"#),
        name => read(name),
    }
}

fn described(name: &str) -> (Vae, Weights) {
    let checkpoint = Checkpoint::describe(name, &description(name)).unwrap_or_else(|e| panic!("{e}"));
    opened(checkpoint)
}

fn opened(checkpoint: Checkpoint) -> (Vae, Weights) {
    let vae = Vae::read(&checkpoint).unwrap_or_else(|e| panic!("{e}"));
    (vae, Weights::new(Arc::new(checkpoint)))
}

/// The shapes of a description with zeros in them.
fn zeros(name: &str) -> (Vae, Weights) {
    #[derive(serde::Deserialize)]
    struct Description {
        config: Option<serde_json::Value>,
        tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
    }
    let description: Description = serde_json::from_str(&description(name)).expect("a description");
    let bytes = vec![0; 1 << 28];
    let views = description.tensors.iter().map(|(name, (dtype, shape))| {
        let size = dtype.bitsize() / 8 * shape.iter().product::<usize>();
        let view = TensorView::new(*dtype, shape.clone(), &bytes[..size]);
        (name, view.expect("bytes fill the shape"))
    });
    let file = safetensors::serialize(views, None).expect("a file");
    let checkpoint = Checkpoint::from_bytes(name, file.into()).unwrap_or_else(|e| panic!("{e}"));
    opened(checkpoint.with_config(description.config))
}

fn task(side: Side, latent: usize) -> VaeTask {
    let (height, width) = (latent, latent);
    match side {
        Side::Decoder => VaeTask::Decode { height, width },
        Side::Encoder => VaeTask::Encode { height, width },
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// Bytes of a half as a whole on a GPU without limits, and how it runs within those of WebGPU.
fn row((vae, weights): &(Vae, Weights), side: Side, pixels: usize) -> [String; 2] {
    let policy = Policy::default();
    let least = Caps::baseline();
    let most = Caps {
        max_buffer: u64::MAX,
        max_binding: u64::MAX,
        ..least.clone()
    };
    let planner = |caps| Planner {
        caps: Some(caps),
        policy: &policy,
    };
    let latent = pixels / vae.factor();
    let graph = task(side, latent).graph(vae, weights, DType::F32).expect("builds");
    let plan = planner(&most).plan(&graph).expect("plans");
    let whole = mib(planner(&most).bytes(&plan).total());
    let half = Half { vae, weights, side };
    let found = route(half, [latent; 2], DType::F32, planner(&least), None, Room::default());
    let within = match found {
        Ok(Route::Whole) => "as a whole".to_owned(),
        // What runs at the size of the latent is not cut.
        Err(Error::Plan(PlanError::ExceedsLimit { bytes, .. })) => format!("refused: a tensor of {}", mib(bytes)),
        Err(other) => panic!("{pixels}: {other}"),
        Ok(Route::Tiled(schedule, _)) => {
            let plans = schedule.plans(half, planner(&least)).expect("plans");
            let footprint = schedule.footprint(&plans, planner(&least));
            let grid = schedule.grid();
            format!(
                "{} ({}x{} tiles of {}; host {})",
                mib(footprint.device),
                grid.x.count(),
                grid.y.count(),
                grid.tile()[0] * vae.factor(),
                mib(footprint.host)
            )
        }
    };
    [whole, within]
}

#[test]
fn memory_table() {
    let start = Instant::now();
    let mut table = String::from(
        "Planned peak in MiB, weights included, activations stored as f32: as a whole on a GPU without limits, and within WebGPU's\n\
         default limits (128 MiB a binding, 256 MiB a buffer). `host` is what lies in host memory between tiles. What is planned is\n\
         what is allocated, to the byte.\n\n\
         | family | pixels | decode | decode, WebGPU | encode | encode, WebGPU |\n\
         |---|---|---|---|---|---|\n",
    );
    for (family, name) in FAMILIES {
        let model = described(name);
        for pixels in SIDES {
            let [decode, encode] = [Side::Decoder, Side::Encoder].map(|side| row(&model, side, pixels));
            let _ = writeln!(
                table,
                "| {family} | {pixels}x{pixels} | {} | {} | {} | {} |",
                decode[0], decode[1], encode[0], encode[1]
            );
        }
    }
    println!("{table}{:.1} s", start.elapsed().as_secs_f64());
    let documented = std::fs::read_to_string(FILE).unwrap_or_default();
    if documented != table {
        let new = concat!(env!("CARGO_TARGET_TMPDIR"), "/vae_memory.md");
        std::fs::write(new, &table).expect("written");
        panic!("the table has changed: if that is right, copy {new} to src/diffusion/vae/memory.md");
    }
}

/// Bytes planned, in buffers, and as the driver's allocator says.
type Bytes = (u64, u64, Option<u64>);

/// Allocates what a half takes at a size, without running it. Where it runs in tiles, that is their largest session; none where it is
/// refused.
fn allocate(device: &Device, (vae, weights): &(Vae, Weights), side: Side, pixels: usize) -> Option<Bytes> {
    let (policy, latent) = (Policy::default(), pixels / vae.factor());
    let driver = || match device {
        Device::Gpu(gpu) => gpu.allocated_bytes(),
        Device::Cpu(_) => None,
    };
    let half = Half { vae, weights, side };
    let planner = Planner::of(device, &policy);
    let found = match route(half, [latent; 2], DType::F32, planner, None, Room::here(None)) {
        Err(Error::Plan(error @ PlanError::ExceedsLimit { .. })) => {
            println!("{error}");
            return None;
        }
        found => found.unwrap_or_else(|e| panic!("{e}")),
    };
    let before = driver();
    let session = match found {
        Route::Whole => {
            let graph = task(side, latent).graph(vae, weights, DType::F32).expect("builds");
            block_on(device.prepare(&graph, weights, &policy))
        }
        Route::Tiled(schedule, note) => {
            println!("{note}");
            block_on(schedule.reserve(half, (device, &policy)))
        }
    };
    let session = session.unwrap_or_else(|e| panic!("{e}"));
    let driver = driver().zip(before).map(|(after, before)| after - before);
    Some((session.planned().total(), session.allocated().total(), driver))
}

/// Allocates at a size on every device.
fn ratios(families: &[(&str, &str)], pixels: usize) {
    let mut devices = Vec::new();
    // Beyond that, the CPU would take most of a machine's memory.
    if pixels <= 1024 {
        devices.push(Device::Cpu(Cpu::default()));
    }
    // A device of its own: no other test allocates on it.
    if support::gpu().is_some() {
        let gpu = block_on(Gpu::open(&AdapterChoice::Best)).unwrap_or_else(|e| panic!("{e}"));
        devices.push(Device::Gpu(gpu));
    }
    for (family, name) in families {
        let model = zeros(name);
        for device in &devices {
            for side in [Side::Decoder, Side::Encoder] {
                let Some((planned, allocated, driver)) = allocate(device, &model, side, pixels) else {
                    // What runs at the size of the latent is not cut.
                    assert!(
                        *name == "cogview4_vae" && pixels > 1024,
                        "{family} {side:?} at {pixels} is refused"
                    );
                    continue;
                };
                let ratio = |bytes: u64| bytes as f64 / planned as f64;
                println!(
                    "{family} {side:?} {pixels}x{pixels} on {}: {planned} bytes planned, allocated {:.4} of it{}",
                    device.name(),
                    ratio(allocated),
                    driver.map_or(String::new(), |bytes| format!(
                        ", by the driver's count {:.4}",
                        ratio(bytes)
                    ))
                );
                assert!(
                    (1.0..=1.05).contains(&ratio(allocated)),
                    "{family} {side:?}: {allocated} of {planned}"
                );
                // The driver gives back some bytes of staging memory meanwhile.
                if let Some(bytes) = driver {
                    assert!(
                        (0.999..=1.05).contains(&ratio(bytes)),
                        "{family} {side:?}: {bytes} of {planned}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_planned_is_allocated() {
    ratios(&FAMILIES[5..], 256);
}

/// `cargo test --test vae_memory -- --ignored --nocapture`.
#[test]
#[ignore = "takes gigabytes"]
fn what_is_planned_is_allocated_for_every_family() {
    for pixels in SIDES {
        ratios(&FAMILIES, pixels);
    }
}

fn inspect(name: &str, gpu: Option<Caps>, vae: VaeOptions) -> Inspection {
    let target = Target {
        width: 1024,
        height: 1024,
        dtype: DType::F32,
        gpu,
        policy: Policy::default(),
        vae,
    };
    let (_, weights) = described(name);
    Inspection::of(weights.checkpoint(), &target).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn inspect_says_what_runs_in_tiles() {
    // A tensor of 256 MiB, which WebGPU does not promise to bind: not refused, but cut.
    let found = inspect("taef2", Some(Caps::baseline()), VaeOptions::default());
    let decode = &found.plans[0];
    println!("{}: {:?}", decode.task, decode.tiles);
    let tiles = decode.tiles.as_ref().expect("in tiles");
    assert!(
        decode
            .refused
            .as_ref()
            .is_some_and(|reason| reason.contains("maxStorageBufferBindingSize"))
    );
    assert!(tiles.width < 1024 && tiles.count[0] * tiles.width >= 1024);
    assert!(tiles.peak < decode.peak && tiles.host > 0 && tiles.note.contains("tiles of"));

    // As asked for, and as much as may be taken.
    let tile = TileOptions { size: 512, overlap: 0 };
    let options = VaeOptions {
        tile: Some(tile),
        ..VaeOptions::default()
    };
    let found = inspect("flux1_vae", None, options);
    assert!(found.plans.iter().all(|plan| plan.refused.is_none()));
    assert!(
        found
            .plans
            .iter()
            .all(|plan| plan.tiles.as_ref().is_some_and(|t| t.width == 512))
    );
    let options = VaeOptions {
        max_memory: Some(1 << 20),
        ..VaeOptions::default()
    };
    let found = inspect("taef2", Some(Caps::baseline()), options);
    assert!(
        found
            .plans
            .iter()
            .all(|plan| plan.tiles.is_none() && plan.refused.is_some())
    );
}

#[test]
fn inspect_knows_the_storage_of_the_autoencoder() {
    let half = Caps {
        f16: true,
        max_buffer: u64::MAX,
        max_binding: u64::MAX,
        ..Caps::baseline()
    };
    let with = |dtype, caps: &Caps| {
        let options = VaeOptions {
            dtype,
            ..VaeOptions::default()
        };
        let found = inspect("taesd", Some(caps.clone()), options);
        (found.dtype, found.plans[0].activations)
    };
    let (single, bytes) = with(VaeDType::Auto, &half);
    assert_eq!(single, "f32");
    let (name, less) = with(VaeDType::F16, &half);
    assert_eq!(name, "f16");
    assert!(less < bytes * 2 / 3, "{less} and {bytes}");
    // Without it, what would run is planned.
    let none = Caps { f16: false, ..half };
    assert_eq!(with(VaeDType::F16, &none), (single, bytes));
}

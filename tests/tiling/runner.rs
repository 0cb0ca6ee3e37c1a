//! When tiles are taken, and of which size.

use super::compare::{Model, cpu, psnr};
use super::fixtures::{part, weights};
use super::support;
use pollster::block_on;
use rotile::backend::{Device, Planner};
use rotile::diffusion::tiled::{Room, Route, TileOptions, route};
use rotile::diffusion::vae::{VaeOptions, VaeRunner, VaeTask};
use rotile::engine::{Cancel, Event};
use rotile::error::{Error, PlanError};
use rotile::models::{Side, Vae};
use rotile::plan::Policy;
use rotile::tensor::DType;

fn runner(options: VaeOptions) -> VaeRunner {
    let model = Model::new("embedded", part("vae"));
    VaeRunner::new((model.vae, model.weights), cpu(), DType::F32, Policy::default()).with_options(options)
}

#[test]
fn a_file_without_the_half_is_an_error_in_tiles_too() {
    let mut model = Model::new("embedded", part("vae"));
    let Vae::Kl(config) = &mut model.vae else {
        panic!("the embedded VAE is an AutoencoderKL")
    };
    config.encoder = None;
    let tile = Some(TileOptions { size: 96, overlap: 0 });
    let options = VaeOptions {
        tile,
        ..VaeOptions::default()
    };
    let runner = VaeRunner::new((model.vae, model.weights), cpu(), DType::F32, Policy::default()).with_options(options);
    let error = runner
        .route(VaeTask::Encode { height: 16, width: 16 })
        .expect_err("no encoder");
    assert!(matches!(error, Error::Checkpoint(_)), "{error}");
}

fn bytes_of_whole(task: VaeTask) -> u64 {
    runner(VaeOptions::default())
        .plan(task)
        .expect("plans")
        .cpu_bytes()
        .total()
}

#[test]
fn tiles_start_by_themselves_where_the_whole_does_not_fit() {
    let size = [24, 16];
    let task = VaeTask::Decode { height: 24, width: 16 };
    let whole = bytes_of_whole(task);
    let latent = Model::new("embedded", part("vae")).input(Side::Decoder, size);
    let decode = |max_memory| {
        let options = VaeOptions {
            max_memory: Some(max_memory),
            ..VaeOptions::default()
        };
        let (mut events, mut runner) = (Vec::new(), runner(options));
        let picture = block_on(runner.decode_with(&latent, &mut |e| events.push(e), &Cancel::new()));
        (picture, events, runner)
    };
    let (want, events, _) = decode(whole);
    assert!(events.is_empty(), "{events:?}");
    let limit = whole * 3 / 5;
    let (got, events, mut runner) = decode(limit);
    let (got, want) = (got.expect("fits in tiles"), want.expect("fits"));
    assert!(psnr(&got, &want, Side::Decoder) >= 80.0);
    let [Event::Note(note), rest @ ..] = &events[..] else {
        panic!("{events:?}")
    };
    println!("{note}");
    assert!(note.contains("tiles of") && note.contains(&limit.to_string()), "{note}");
    let of = rest.len() as u32;
    for (i, event) in rest.iter().enumerate() {
        assert_eq!(*event, Event::Tile { done: i as u32 + 1, of });
    }
    // What was said is what is done: the sessions stay within the limit.
    let ran = runner.tiled().next().expect("ran in tiles");
    assert_eq!(ran.bytes.0, ran.bytes.1);
    assert!(ran.bytes.1.total() <= limit);
    // It is not said twice.
    let mut again = Vec::new();
    block_on(runner.decode_with(&latent, &mut |e| again.push(e), &Cancel::new())).expect("fits");
    assert!(again.iter().all(|e| matches!(e, Event::Tile { .. })));

    let (nothing, events, _) = decode(1 << 20);
    assert!(events.is_empty());
    assert!(
        matches!(nothing, Err(Error::Plan(PlanError::MaxMemory { limit: 1_048_576, .. }))),
        "{nothing:?}"
    );
}

/// With the sizes of FLUX.1 and Z-Image: planned only.
#[test]
fn tiles_for_encoding_are_larger() {
    let Some(gpu) = support::gpu() else { return };
    let device = Device::Gpu(gpu.clone());
    let model = Model::new("FLUX.1", weights("manifests/flux1_vae.json"));
    for (size, limit) in [(128, 600 << 20), (192, 1 << 30), (256, 1 << 30)] {
        let tile = |side| {
            let found = route(
                model.half(side),
                [size, size],
                DType::F32,
                Planner::of(&device, &Policy::default()),
                None,
                Room::here(Some(limit)),
            );
            match found.unwrap_or_else(|e| panic!("{side:?} {size} {limit}: {e}")) {
                Route::Tiled(schedule, note) => {
                    let policy = Policy::default();
                    let planner = Planner::of(&device, &policy);
                    let plans = schedule.plans(model.half(side), planner).expect("plans");
                    println!("{note}; {:?}", schedule.footprint(&plans, planner));
                    schedule.grid().tile()[0]
                }
                Route::Whole => panic!("{side:?} fits as a whole"),
            }
        };
        let (encode, decode) = (tile(Side::Encoder), tile(Side::Decoder));
        println!("tiles of {encode} and {decode} latent pixels");
        assert!(encode > decode, "{encode} and {decode}");
    }
}

#[test]
fn it_stops_within_a_tile() {
    let latent = Model::new("embedded", part("vae")).input(Side::Decoder, [9, 9]);
    let options = VaeOptions {
        tile: Some(TileOptions { size: 32, overlap: 0 }),
        ..VaeOptions::default()
    };
    let (cancel, mut tiles) = (Cancel::new(), 0);
    let result = block_on(runner(options).decode_with(
        &latent,
        &mut |event| {
            if let Event::Tile { .. } = event {
                tiles += 1;
                if tiles == 5 {
                    cancel.cancel();
                }
            }
        },
        &cancel,
    ));
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert_eq!(tiles, 5);
}

#[test]
fn senseless_tiles_are_refused() {
    let latent = Model::new("embedded", part("vae")).input(Side::Decoder, [9, 9]);
    for (size, overlap, words) in [
        (32, 32, "cannot overlap by 32"),
        (16, 0, "at least 24 pixels"),
        (1, 0, "at least 24 pixels"),
        (0, 0, "cannot overlap"),
    ] {
        let options = VaeOptions {
            tile: Some(TileOptions { size, overlap }),
            ..VaeOptions::default()
        };
        let result = block_on(runner(options).decode_with(&latent, &mut |_| (), &Cancel::new()));
        let message = result.expect_err("makes no sense").to_string();
        assert!(message.contains(words), "{message}");
    }
}

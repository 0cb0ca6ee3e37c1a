//! Tiles: the grid and its weights, and autoencoders in tiles against the same as a whole.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::{Fixture, part, weights};
use pollster::block_on;
use proptest::prelude::*;
use rotile::Result;
use rotile::backend::{Device, Planner};
use rotile::checkpoint::Weights;
use rotile::cpu::Cpu;
use rotile::diffusion::tiled::{Cut, Half, Ran, Room, Route, Schedule, TileOptions, Tiles, route};
use rotile::diffusion::vae::{VaeOptions, VaeRunner, VaeTask};
use rotile::engine::{Cancel, Event};
use rotile::error::{Error, PlanError};
use rotile::graph::Graph;
use rotile::models::{Side, Vae};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use rotile::tiling::{Axis, Grid, ONE};

proptest! {
    #[test]
    fn tiles_cover_the_picture_and_weights_add_up(
        len in 1usize..300,
        tile in 1usize..120,
        overlap in 0usize..120,
        scale in 1usize..9,
        margin in 0usize..40,
    ) {
        let axis = Axis::new(len, tile, overlap);
        prop_assert!(axis.tile == tile.min(len));
        prop_assert_eq!(axis.starts[0], 0);
        prop_assert_eq!(axis.starts[axis.count() - 1] + axis.tile, len);
        let overlap = overlap.min(axis.tile - 1);
        for pair in axis.starts.windows(2) {
            prop_assert!(pair[0] < pair[1]);
            prop_assert!(pair[0] + axis.tile >= pair[1] + overlap, "{:?}", axis);
        }
        // The parts that tiles stand for follow one another, inside their tiles.
        let mut at = 0;
        for (i, start) in axis.starts.iter().enumerate() {
            let core = axis.core(i);
            prop_assert_eq!(core.start, at);
            prop_assert!(core.start >= *start && core.end <= start + axis.tile);
            at = core.end;
        }
        prop_assert_eq!(at, len);

        let weights = axis.weights(scale, margin);
        let mut sums = vec![0u32; len * scale];
        for (start, weights) in axis.starts.iter().zip(&weights) {
            prop_assert_eq!(weights.len(), axis.tile * scale);
            for (sum, weight) in sums[start * scale..].iter_mut().zip(weights) {
                *sum += u32::from(*weight);
            }
        }
        prop_assert!(sums.iter().all(|&sum| sum == u32::from(ONE)));
    }

    #[test]
    fn weights_of_two_axes_add_up_to_exactly_one(
        height in 1usize..40,
        width in 1usize..40,
        tile in 1usize..20,
        overlap in 0usize..20,
    ) {
        let grid = Grid::new([height, width], tile, overlap);
        let weights = [grid.y.weights(2, 1), grid.x.weights(2, 1)];
        let ones = vec![1.0; grid.tile()[0] * grid.tile()[1] * 4];
        let mut sums = vec![0.0; height * width * 4];
        for [i, j] in grid.tiles() {
            let corner = [grid.y.starts[i] * 2, grid.x.starts[j] * 2];
            let weights = [&*weights[0][i], &*weights[1][j]];
            rotile::tiling::blend(&mut sums, [height * 2, width * 2], corner, weights, &ones);
        }
        prop_assert!(sums.iter().all(|&sum| sum == 1.0));
    }

    #[test]
    fn weights_are_smooth(tile in 16usize..64, overlap in 2usize..8, scale in 2usize..9) {
        // From one pixel to the next, a weight changes by no more than a smooth step of the overlap does.
        let axis = Axis::new(3 * tile, tile, overlap);
        for weights in axis.weights(scale, 0) {
            for pair in weights.windows(2) {
                let step = i32::from(pair[1]) - i32::from(pair[0]);
                let most = 1.5 * f64::from(ONE) / (overlap * scale) as f64 + 2.0;
                prop_assert!(f64::from(step.abs()) <= most, "{step} over {most}");
            }
        }
    }
}

/// A model under test.
struct Model {
    name: &'static str,
    vae: Vae,
    weights: Weights,
}

impl Model {
    fn new(name: &'static str, weights: Weights) -> Self {
        let vae = Vae::read(weights.checkpoint()).expect("an autoencoder");
        Self { name, vae, weights }
    }

    fn half(&self, side: Side) -> Half<'_> {
        Half {
            vae: &self.vae,
            weights: &self.weights,
            side,
        }
    }

    /// Something with large areas, edges and noise, so that tiles differ in tone.
    fn input(&self, side: Side, size: [usize; 2]) -> Tensor {
        let scale = if side == Side::Encoder { self.vae.factor() } else { 1 };
        let [h, w] = size.map(|n| n * scale);
        let mut uniform = support::uniform(&format!("{}{side:?}{size:?}", self.name));
        let channels = self.vae.channels(side);
        let mut data = Vec::with_capacity(channels * h * w);
        for c in 0..channels {
            for y in 0..h {
                for x in 0..w {
                    let (u, v) = (x as f32 / w as f32, y as f32 / h as f32);
                    let tone = (3.0 * u + c as f32).sin() * (2.0 * v).cos() + if u + v > 1.1 { 0.6 } else { -0.4 };
                    data.push(match side {
                        Side::Decoder => 0.8 * tone + 0.8 * uniform(),
                        Side::Encoder => (0.5 + 0.35 * tone + 0.1 * uniform()).clamp(0.0, 1.0),
                    });
                }
            }
        }
        Tensor::new([1, channels, h, w], data)
    }

    fn whole(&self, device: &Device, side: Side, dtype: DType, input: &Tensor) -> Tensor {
        let mut g = Graph::new(dtype);
        let x = g.input("x", input.ty.clone());
        let y = match side {
            Side::Decoder => self.vae.decoder(&mut g, &self.weights, x),
            Side::Encoder => self.vae.encoder(&mut g, &self.weights, x),
        };
        g.output("y", y.expect("builds"));
        let mut session = block_on(device.prepare(&g, &self.weights, &Policy::default())).expect("fits");
        block_on(session.run(&[("x", input)])).expect("runs").remove(0)
    }

    fn tiled(
        &self,
        device: &Device,
        side: Side,
        size: [usize; 2],
        tiles: Tiles,
        input: &Tensor,
    ) -> Result<(Tensor, Ran)> {
        let schedule = Schedule::new(self.half(side), size, tiles, DType::F32)?;
        let mut last = 0;
        let result = block_on(schedule.run(
            self.half(side),
            (device, &Policy::default()),
            &mut Vec::new(),
            input,
            |done| {
                assert_eq!(done, last + 1);
                last = done;
            },
            || Ok(()),
        ));
        assert_eq!(last, schedule.runs());
        result
    }
}

fn models() -> Vec<Model> {
    vec![
        Model::new("embedded", part("vae")),
        Model::new("vae_flux1", weights("vae_flux1")),
        Model::new("vae_sd15", weights("vae_sd15")),
    ]
}

fn cpu() -> Device {
    Device::Cpu(Cpu::default())
}

/// In decibels, for values in 0..=1; latents are brought to their own range.
fn psnr(got: &Tensor, want: &Tensor, side: Side) -> f64 {
    assert_eq!(got.ty, want.ty);
    let square = |v: f32| f64::from(v).powi(2);
    let n = want.data.len() as f64;
    let error: f64 = got.data.iter().zip(&want.data).map(|(a, b)| square(a - b)).sum::<f64>() / n;
    let peak = match side {
        Side::Decoder => 1.0,
        Side::Encoder => want.data.iter().map(|&v| square(v)).sum::<f64>() / n,
    };
    10.0 * (peak / error).log10()
}

/// Largest difference of the mean of a channel.
fn colour(got: &Tensor, want: &Tensor) -> f64 {
    let plane: usize = want.ty.shape[2..].iter().product();
    let mean = |values: &[f32]| values.iter().map(|&v| f64::from(v)).sum::<f64>() / plane as f64;
    let planes = got.data.chunks_exact(plane).zip(want.data.chunks_exact(plane));
    planes.map(|(a, b)| (mean(a) - mean(b)).abs()).fold(0.0, f64::max)
}

/// Mean step across the lines where one tile takes over from the next, as a multiple of that across all other lines.
fn step_ratio(picture: &Tensor, grid: &Grid, scale: usize) -> Option<f64> {
    let [_, _, h, w] = picture.ty.shape[..] else {
        panic!("[1, c, h, w]")
    };
    let border = |axis: &Axis, at: usize| (1..axis.count()).any(|i| axis.core(i).start * scale == at);
    let (mut across, mut inside) = ((0.0, 0), (0.0, 0));
    let mut add = |at_border: bool, a: f32, b: f32| {
        let sum = if at_border { &mut across } else { &mut inside };
        sum.0 += f64::from(a - b).abs();
        sum.1 += 1;
    };
    for plane in picture.data.chunks_exact(h * w) {
        for y in 0..h {
            for x in 0..w {
                if x > 0 {
                    add(border(&grid.x, x), plane[y * w + x], plane[y * w + x - 1]);
                }
                if y > 0 {
                    add(border(&grid.y, y), plane[y * w + x], plane[(y - 1) * w + x]);
                }
            }
        }
    }
    (across.1 > 0).then(|| across.0 / f64::from(across.1) / (inside.0 / f64::from(inside.1)))
}

/// What one comparison has shown.
struct Shown {
    psnr: f64,
    colour: f64,
    steps: f64,
}

fn compare(
    model: &Model,
    device: &Device,
    side: Side,
    size: [usize; 2],
    tiles: Tiles,
    input: &Tensor,
    want: &Tensor,
) -> Shown {
    let what = format!("{} {side:?} {size:?} {tiles:?}", model.name);
    let (got, ran) = model
        .tiled(device, side, size, tiles, input)
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(ran.bytes.0, ran.bytes.1, "{what}: bytes planned and allocated");
    let schedule = Schedule::new(model.half(side), size, tiles, DType::F32).expect("builds");
    let grid = schedule.grid();
    assert!(grid.count() > 1, "{what}: one tile");
    let scale = if side == Side::Decoder { model.vae.factor() } else { 1 };
    // What the picture itself has at these lines is no seam.
    let ratio = |picture| step_ratio(picture, grid, scale).expect("has borders");
    let shown = Shown {
        psnr: psnr(&got, want, side),
        colour: colour(&got, want),
        steps: ratio(&got) / ratio(want),
    };
    assert!(shown.psnr >= 45.0, "{what}: {:.1} dB", shown.psnr);
    assert!(
        shown.colour < 1.0 / 255.0,
        "{what}: colour is off by {:.5}",
        shown.colour
    );
    assert!(
        (0.95..=1.05).contains(&shown.steps),
        "{what}: steps are {:.3} of those inside",
        shown.steps
    );
    shown
}

/// Sizes, tiles and overlaps in latent pixels; most sizes do not divide.
const COMBINATIONS: [([usize; 2], usize, usize); 14] = [
    ([8, 8], 4, 0),
    ([8, 8], 5, 2),
    ([9, 7], 4, 0),
    ([13, 11], 6, 0),
    ([13, 11], 6, 4),
    ([13, 11], 8, 3),
    ([13, 11], 12, 0),
    ([11, 6], 5, 1),
    ([5, 16], 6, 2),
    ([16, 16], 8, 0),
    ([16, 12], 7, 6),
    ([17, 10], 9, 4),
    ([3, 14], 4, 3),
    ([10, 10], 3, 0),
];

#[test]
fn tiles_are_the_whole_on_the_cpu() {
    let device = cpu();
    let mut worst = Vec::new();
    let mut count = 0;
    for model in models() {
        for side in [Side::Decoder, Side::Encoder] {
            let (mut psnr, mut colour, mut steps) = (f64::INFINITY, 0.0f64, 0.0f64);
            for (size, tile, overlap) in COMBINATIONS {
                let input = model.input(side, size);
                let want = model.whole(&device, side, DType::F32, &input);
                let tiles = Tiles {
                    size: tile,
                    overlap,
                    cut: Cut::Parts,
                };
                let shown = compare(&model, &device, side, size, tiles, &input, &want);
                psnr = psnr.min(shown.psnr);
                colour = colour.max(shown.colour);
                steps = steps.max((shown.steps - 1.0).abs());
                count += 1;
            }
            worst.push(format!(
                "{} {side:?}: {psnr:.1} dB, colour {colour:.1e}, steps {steps:.1e}",
                model.name
            ));
        }
    }
    assert!(count >= 80);
    println!("{count} combinations, the worst of each:\n{}", worst.join("\n"));
}

/// Models whose stages see further, or whose latent pixels are larger.
#[test]
fn every_family_comes_in_tiles() {
    for (name, size, tile) in [
        ("vae_sdxl", [9, 7], 4),
        ("vae_flux2", [7, 5], 3),
        ("vae_cogview4", [7, 9], 4),
        ("vae_taesd", [15, 21], 13),
        ("vae_taef1", [21, 12], 12),
        ("vae_qwenimage", [18, 10], 11),
    ] {
        let model = Model::new(name, weights(name));
        for side in [Side::Decoder, Side::Encoder] {
            let input = model.input(side, size);
            let want = model.whole(&cpu(), side, DType::F32, &input);
            let tiles = Tiles {
                size: tile,
                overlap: 0,
                cut: Cut::Parts,
            };
            let shown = compare(&model, &cpu(), side, size, tiles, &input, &want);
            println!("{name} {side:?}: {:.1} dB", shown.psnr);
        }
    }
}

#[test]
fn fewer_stages_are_as_exact() {
    let model = Model::new("vae_flux1", weights("vae_flux1"));
    for side in [Side::Decoder, Side::Encoder] {
        let size = [20, 5];
        let input = model.input(side, size);
        let want = model.whole(&cpu(), side, DType::F32, &input);
        for (cut, tile) in [(Cut::Parts, 17), (Cut::Levels, 17), (Cut::Once, 17)] {
            let tiles = Tiles {
                size: tile,
                overlap: 0,
                cut,
            };
            let schedule = Schedule::new(model.half(side), size, tiles, DType::F32).expect("builds");
            let shown = compare(&model, &cpu(), side, size, tiles, &input, &want);
            println!(
                "{side:?} {cut:?}: {:.1} dB, {} sessions, {} runs",
                shown.psnr,
                schedule.sessions(),
                schedule.runs()
            );
        }
    }
}

#[test]
fn tiles_are_the_whole_on_the_gpu() {
    let Some(gpu) = support::gpu() else { return };
    let device = Device::Gpu(gpu.clone());
    for model in models().into_iter().skip(1) {
        for side in [Side::Decoder, Side::Encoder] {
            let size = [7, 5];
            let input = model.input(side, size);
            let want = model.whole(&device, side, DType::F32, &input);
            let tiles = Tiles {
                size: 4,
                overlap: 0,
                cut: Cut::Parts,
            };
            let shown = compare(&model, &device, side, size, tiles, &input, &want);
            println!("{} {side:?} on {}: {:.1} dB", model.name, device.name(), shown.psnr);
        }
    }
}

/// What diffusers makes of the same latents and pictures by blending alone.
#[test]
fn diffusers_tiles_are_far_from_the_whole() {
    for name in ["vae_flux1", "vae_sd15"] {
        let model = Model::new(name, weights(name));
        let Vae::Kl(config) = &model.vae else {
            panic!("an AutoencoderKL")
        };
        let io = Fixture::open(&format!("{name}/io_tiled.safetensors"));
        let to_picture = |t: Tensor| Tensor::new(t.ty.shape.clone(), t.data.iter().map(|v| v * 0.5 + 0.5).collect());
        let theirs = [
            psnr(
                &to_picture(io.tensor("decode.image_tiled")),
                &to_picture(io.tensor("decode.image_full")),
                Side::Decoder,
            ),
            psnr(
                &io.tensor("encode.mean_tiled"),
                &io.tensor("encode.mean_full"),
                Side::Encoder,
            ),
        ];
        // Tiles of 8 latent pixels, as theirs.
        let tiles = Tiles {
            size: 8,
            overlap: 2,
            cut: Cut::Parts,
        };
        let latent = io.tensor("decode.vae_in");
        let scaled = latent
            .data
            .iter()
            .map(|v| (v - config.shift) * config.scaling)
            .collect();
        let latent = Tensor::new(latent.ty.shape.clone(), scaled);
        let size = [latent.ty.shape[2], latent.ty.shape[3]];
        let (picture, _) = model
            .tiled(&cpu(), Side::Decoder, size, tiles, &latent)
            .expect("decodes");
        let image = to_picture(io.tensor("encode.image"));
        let (mean, _) = model
            .tiled(&cpu(), Side::Encoder, size, tiles, &image)
            .expect("encodes");
        let unscaled = mean.data.iter().map(|v| v / config.scaling + config.shift).collect();
        let ours = [
            psnr(&picture, &to_picture(io.tensor("decode.image_full")), Side::Decoder),
            psnr(
                &Tensor::new(mean.ty.shape.clone(), unscaled),
                &io.tensor("encode.mean_full"),
                Side::Encoder,
            ),
        ];
        println!(
            "{name}: decode {:.1} dB, diffusers {:.1}; encode {:.1} dB, diffusers {:.1}",
            ours[0], theirs[0], ours[1], theirs[1]
        );
        for (ours, theirs) in ours.into_iter().zip(theirs) {
            assert!(ours >= 80.0 && theirs < 45.0, "{name}: {ours:.1} and {theirs:.1} dB");
        }
    }
}

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

#[test]
fn not_a_number_is_not_hidden() {
    let model = Model::new("vae_flux1", weights("vae_flux1"));
    let mut latent = model.input(Side::Decoder, [9, 9]);
    latent.data[5] = f32::NAN;
    let tiles = Tiles {
        size: 4,
        overlap: 0,
        cut: Cut::Parts,
    };
    let (picture, _) = model
        .tiled(&cpu(), Side::Decoder, [9, 9], tiles, &latent)
        .expect("runs");
    assert!(picture.data.iter().any(|v| v.is_nan()));
}

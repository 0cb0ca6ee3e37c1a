//! Whole pictures of the embedded model with quantised weights, against its own in `f32`: how near they are, on every path and
//! device, and that they repeat.
//!
//! `cargo test --test quantised -- --nocapture` compares two prompts on each device; with `--ignored` it makes the table of all 16.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use rotile::checkpoint::Checkpoint;
use rotile::convert::{Container, Conversion, WeightType};
use rotile::engine::{Cancel, DeviceChoice, Engine, Options, Picture, Request, Source};
use rotile::media::Comparison;
use rotile::plan::{ConvrotMode, ConvrotPath};
use rotile::tensor::DType;
use std::sync::Arc;

/// Those of the model's own evaluation; seeds are their numbers.
const PROMPTS: [&str; 16] = [
    "a paper boat on the sea below a cliff at sunset",
    "a red paper boat on a calm sea below a cliff at sunset",
    "a white sailing boat on the sea on a sunny day",
    "a red lighthouse by the sea at night",
    "a blue house in the snow at night",
    "a green tree in a meadow under a blue sky",
    "a purple hot air balloon over the desert at sunset",
    "a yellow house in a meadow in a storm",
    "an orange tree in the snow with mountains behind on a clear day",
    "a black sailing boat on the sea in a storm on the right",
    "a red balloon over the sea with clouds in the sky on a sunny day",
    "an orange lighthouse on a green hill at dusk with birds in the sky",
    "a white paper boat on the water with mountains in the distance at night",
    "a purple sailing boat on the ocean near a cliff on the left by day",
    "a white house in the desert at sunset",
    "an old lighthouse in the snow under dark clouds",
];

/// A way of running the model, with what its pictures must reach at least.
struct Path {
    name: &'static str,
    weights: WeightType,
    options: fn(Options) -> Options,
    psnr: f64,
}

const PATHS: &[Path] = &[
    Path {
        name: "ConvRot int8, op",
        weights: WeightType::ConvrotInt8 { group: 256 },
        options: |o| Options {
            convrot: ConvrotMode::Forced(ConvrotPath::Op),
            ..o
        },
        psnr: 48.0,
    },
    Path {
        name: "ConvRot int8, dense",
        weights: WeightType::ConvrotInt8 { group: 256 },
        options: |o| Options {
            convrot: ConvrotMode::Forced(ConvrotPath::Dense),
            ..o
        },
        psnr: 48.0,
    },
    Path {
        name: "ConvRot int8, compat",
        weights: WeightType::ConvrotInt8 { group: 256 },
        options: |o| Options {
            convrot: ConvrotMode::Forced(ConvrotPath::Compat),
            ..o
        },
        psnr: 48.0,
    },
    Path {
        name: "ConvRot int8, native",
        weights: WeightType::ConvrotInt8 { group: 256 },
        options: |o| Options {
            convrot: ConvrotMode::Forced(ConvrotPath::Native),
            ..o
        },
        psnr: 44.0,
    },
    Path {
        name: "GGUF q8_0",
        weights: WeightType::Blocks(DType::Q8_0),
        options: |o| o,
        psnr: 48.0,
    },
    Path {
        name: "GGUF q4_k",
        weights: WeightType::Blocks(DType::Q4K),
        options: |o| o,
        psnr: 31.0,
    },
];

fn devices() -> Vec<(&'static str, DeviceChoice)> {
    let gpu = support::gpu().map(|_| ("GPU", DeviceChoice::Auto));
    [("CPU", DeviceChoice::Cpu)].into_iter().chain(gpu).collect()
}

fn options(device: &DeviceChoice) -> Options {
    Options {
        device: device.clone(),
        ..Options::default()
    }
}

/// The checkpoint as `rotile convert` would write it.
fn converted(checkpoint: &Checkpoint, weights: WeightType) -> Arc<Checkpoint> {
    let container = match weights {
        WeightType::Blocks(_) => Container::Gguf,
        _ => Container::Safetensors,
    };
    let conversion = Conversion::plan(checkpoint, weights, container).expect("planned");
    let mut bytes = Vec::new();
    conversion
        .write(&mut bytes, &mut |_| {}, &Cancel::new())
        .expect("converted");
    Arc::new(Checkpoint::from_bytes(container.name(), bytes.into()).expect("reads back"))
}

fn model(weights: Option<WeightType>) -> Source {
    let mut source = Source::embedded().expect("the embedded model");
    if let Some(weights) = weights {
        source.parts.transformer = converted(&source.parts.transformer, weights);
        source.parts.text_encoder = converted(&source.parts.text_encoder, weights);
    }
    source
}

fn engine(source: Source, options: &Options) -> Engine {
    pollster::block_on(Engine::new(source, options)).expect("an engine")
}

fn picture(engine: &mut Engine, index: usize) -> Picture {
    let mut request = Request::new(PROMPTS[index]);
    (request.seed, request.steps, request.guidance) = (index as u64, Some(8), Some(3.0));
    let made = pollster::block_on(engine.generate(&request, |_| {}, &Cancel::new()));
    made.expect("a picture").remove(0)
}

fn compare(a: &Picture, b: &Picture) -> Comparison {
    Comparison::of(&a.image, &b.image).expect("the same size")
}

/// Prints a line for each path and device: the mean and the worst of all pictures.
fn table(count: usize) {
    println!(
        "{:<24} {:<4} {:>9} {:>9} {:>9} {:>9}",
        "path", "on", "PSNR", "worst", "SSIM", "worst"
    );
    for (on, device) in devices() {
        let mut plain = engine(model(None), &options(&device));
        let want: Vec<_> = (0..count).map(|i| picture(&mut plain, i)).collect();
        drop(plain);
        for path in PATHS {
            let mut engine = engine(model(Some(path.weights)), &(path.options)(options(&device)));
            let found: Vec<_> = want
                .iter()
                .enumerate()
                .map(|(i, want)| compare(&picture(&mut engine, i), want))
                .collect();
            let mean = |of: fn(&Comparison) -> f64| found.iter().map(of).sum::<f64>() / count as f64;
            let worst = |of: fn(&Comparison) -> f64| found.iter().map(of).fold(f64::INFINITY, f64::min);
            let psnr = |c: &Comparison| c.psnr;
            let ssim = |c: &Comparison| c.ssim;
            println!(
                "{:<24} {on:<4} {:>9.2} {:>9.2} {:>9.4} {:>9.4}",
                path.name,
                mean(psnr),
                worst(psnr),
                mean(ssim),
                worst(ssim)
            );
            assert!(mean(psnr) >= path.psnr, "{} on {on}: {} dB", path.name, mean(psnr));
        }
    }
}

#[test]
fn two_pictures_on_every_path() {
    table(2);
}

#[test]
#[ignore = "takes minutes: the table of the README"]
fn all_pictures_on_every_path() {
    table(PROMPTS.len());
}

#[test]
fn every_path_repeats_byte_for_byte() {
    for (on, device) in devices() {
        for path in PATHS {
            let options = (path.options)(options(&device));
            let run = || picture(&mut engine(model(Some(path.weights)), &options), 1);
            assert!(run().image == run().image, "{} on {on}", path.name);
        }
    }
}

/// Loading with `--type` gives what the converted file gives.
#[test]
fn types_when_loading_are_those_of_the_file() {
    for (on, device) in devices() {
        let file = picture(
            &mut engine(model(Some(WeightType::Blocks(DType::Q8_0))), &options(&device)),
            0,
        );
        let loading = Options {
            weight_type: Some(WeightType::Blocks(DType::Q8_0)),
            ..options(&device)
        };
        let mut loaded = engine(model(None), &loading);
        let picture = picture(&mut loaded, 0);
        assert!(file.image == picture.image, "{on}");
        assert!(picture.settings.iter().any(|(k, v)| k == "type" && v == "q8_0"));
    }
}

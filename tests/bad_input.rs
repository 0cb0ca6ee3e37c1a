//! Damaged models and impossible requests: each is a typed error that says what is wrong, and nothing is written.

#![cfg(feature = "scenes-tiny")]

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/model.rs"]
mod model;
mod support;

use fixtures::scenes;
use model::{Part, Stored};
use rotile::Error;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Files, Options, Request, Source};
use rotile::error::{CheckpointError, GpuError, PlanError, TextError};
use rotile::tensor::Tensor;
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

fn cpu() -> Options {
    Options {
        device: DeviceChoice::Cpu,
        ..Options::default()
    }
}

/// Opens the model and makes a picture in one step.
fn attempt(files: &Files, options: &Options) -> Result<(), Error> {
    let mut engine = pollster::block_on(Engine::new(Source::open(files)?, options))?;
    let request = Request::new("a").steps(1);
    engine.generate_blocking(&request, |_| {}, &Cancel::new()).map(drop)
}

#[track_caller]
fn check(name: &str, error: &Error, kind: fn(&Error) -> bool, says: &[&str]) {
    assert!(kind(error), "{name}: {error:?}");
    for text in says {
        assert!(error.to_string().contains(text), "{name}: `{text}` is not in `{error}`");
    }
}

macro_rules! is {
    ($pattern:pat) => {
        |error: &Error| matches!(error, $pattern)
    };
}

/// What is done to a part, and what comes of it.
type Damage = (
    &'static str,
    &'static str,
    fn(&mut Part),
    fn(&Error) -> bool,
    &'static [&'static str],
);

const NORM: &str = "model.layers.1.input_layernorm.weight";

const DAMAGES: &[Damage] = &[
    (
        "missing tensor",
        "text_encoder",
        |part| drop(part.tensors.remove(NORM)),
        is!(Error::Checkpoint(CheckpointError::MissingTensor { .. })),
        &["text_encoder", "`layers.1.input_layernorm.weight`", "the nearest is"],
    ),
    (
        "missing tensor of the decoder",
        "vae",
        |part| drop(part.tensors.remove("decoder.conv_out.bias")),
        is!(Error::Checkpoint(CheckpointError::MissingTensor { .. })),
        &["vae", "decoder.conv_out.bias"],
    ),
    (
        "wrong shape",
        "transformer",
        |part| part.get("layers.2.attention.to_q.weight").shape = vec![128, 512],
        is!(Error::Checkpoint(CheckpointError::Shape { .. })),
        &[
            "transformer",
            "layers.2.attention.to_q.weight",
            "[128, 512]",
            "[256, 256]",
        ],
    ),
    (
        "wrong element type",
        "text_encoder",
        |part| part.get(NORM).dtype = Dtype::I16,
        is!(Error::Checkpoint(CheckpointError::DType { .. })),
        &[
            "text_encoder",
            "`layers.1.input_layernorm.weight`",
            "I16",
            "F32, F16, BF16",
        ],
    ),
    (
        "NaN in a weight",
        "transformer",
        |part| part.get("layers.0.attention_norm1.weight").bytes[6..8].copy_from_slice(&[0, 0x7e]),
        is!(Error::Checkpoint(CheckpointError::NonFinite { index: 3, .. })),
        &[
            "transformer",
            "layers.0.attention_norm1.weight",
            "element 3",
            "download",
        ],
    ),
    (
        "infinity in a weight",
        "vae",
        |part| part.get("decoder.conv_in.bias").bytes[..2].copy_from_slice(&[0, 0xfc]),
        is!(Error::Checkpoint(CheckpointError::NonFinite { index: 0, .. })),
        &["vae", "decoder.conv_in.bias"],
    ),
    (
        "another model's tensors",
        "transformer",
        |part| *part = Part::open("vae"),
        is!(Error::Checkpoint(CheckpointError::UnknownModel { .. })),
        &["given as the transformer", "AutoencoderKL"],
    ),
    (
        "no known tensors",
        "vae",
        |part| part.tensors = BTreeMap::from([("a".into(), Stored::zeros(&[2]))]),
        is!(Error::Checkpoint(CheckpointError::UnknownModel { .. })),
        &["vae", "first: `a`"],
    ),
    (
        "text encoder of another size",
        "text_encoder",
        |part| {
            for stored in part.tensors.values_mut() {
                // 256 wide becomes 128 wide everywhere.
                for extent in &mut stored.shape {
                    *extent = if *extent == 256 { 128 } else { *extent };
                }
                *stored = Stored::zeros(&stored.shape);
            }
            part.config = None;
        },
        is!(Error::Request(_)),
        &["do not fit", "128", "256"],
    ),
    (
        "configuration that contradicts the tensors",
        "transformer",
        |part| part.configure("\"dim\": 256", "\"dim\": 512"),
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &["transformer", "config.json", "`dim` is", "512", "256"],
    ),
    (
        "configuration that is no JSON",
        "vae",
        |part| part.config = Some("{\"_class_name\": ".into()),
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &["config.json", "EOF"],
    ),
    (
        "empty configuration",
        "text_encoder",
        |part| part.config = Some(String::new()),
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &["config.json", "EOF"],
    ),
];

#[test]
fn damaged_parts() {
    for (name, part, damage, kind, says) in DAMAGES {
        let folder = tempfile::tempdir().expect("a folder");
        let mut damaged = Part::open(part);
        damage(&mut damaged);
        let path = folder.path().join(part);
        damaged.write(&path);
        let mut files = Files::folder(scenes(""));
        *place(&mut files, part) = Some(path);
        let error = attempt(&files, &cpu()).expect_err(name);
        check(name, &error, *kind, says);
    }
}

fn place<'a>(files: &'a mut Files, part: &str) -> &'a mut Option<std::path::PathBuf> {
    match part {
        "text_encoder" => &mut files.text_encoder,
        "transformer" => &mut files.transformer,
        "vae" => &mut files.vae,
        "tokenizer" => &mut files.tokenizer,
        "scheduler" => &mut files.scheduler,
        _ => panic!("no part {part}"),
    }
}

/// A part, the contents of the file that is given for it, and what comes of it.
type BadFile = (&'static str, &'static [u8], fn(&Error) -> bool, &'static [&'static str]);

const FILES: &[BadFile] = &[
    (
        "vae",
        b"",
        is!(Error::Checkpoint(CheckpointError::Truncated { .. })),
        &["bad", "the file has 0"],
    ),
    (
        "vae",
        b"not a model at all",
        is!(Error::Checkpoint(CheckpointError::Header { .. })),
        &["bad", "header"],
    ),
    (
        "tokenizer",
        b"",
        is!(Error::Text(TextError::Tokenizer { .. })),
        &["bad", "not a tokenizer"],
    ),
    (
        "tokenizer",
        b"{\"model\": 3}",
        is!(Error::Text(TextError::Tokenizer { .. })),
        &["bad", "not a tokenizer"],
    ),
    (
        "scheduler",
        b"{\"_class_name\": \"PNDMScheduler\"}",
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &[
            "bad",
            "unknown scheduler `PNDMScheduler`",
            "FlowMatchEulerDiscreteScheduler",
        ],
    ),
    (
        "scheduler",
        b"{",
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &["bad", "not valid JSON"],
    ),
    (
        "scheduler",
        b"",
        is!(Error::Checkpoint(CheckpointError::Config { .. })),
        &["bad", "not valid JSON"],
    ),
];

#[test]
fn bad_files_in_place_of_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bad");
    for (part, contents, kind, says) in FILES {
        fs::write(&path, contents).expect("written");
        let mut files = Files::folder(scenes(""));
        *place(&mut files, part) = Some(path.clone());
        check(part, &attempt(&files, &cpu()).expect_err(part), *kind, says);
    }
    for part in ["text_encoder", "transformer", "vae", "tokenizer", "scheduler"] {
        let mut files = Files::folder(scenes(""));
        *place(&mut files, part) = Some(folder.path().join("missing"));
        let error = attempt(&files, &cpu()).expect_err(part);
        check(
            part,
            &error,
            is!(Error::Checkpoint(CheckpointError::Io { .. })),
            &["missing"],
        );
        let empty = folder.path().join("empty");
        fs::create_dir_all(&empty).expect("a folder");
        *place(&mut files, part) = Some(empty);
        check(
            part,
            &attempt(&files, &cpu()).expect_err(part),
            is!(Error::Checkpoint(_)),
            &["empty"],
        );
    }
}

#[test]
fn truncated_at_every_place() {
    let whole = fs::read(scenes("vae/diffusion_pytorch_model.safetensors")).expect("the file");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.safetensors");
    for length in [1, 7, 8, 9, 1000, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).expect("written");
        let files = Files {
            vae: Some(path.clone()),
            ..Files::folder(scenes(""))
        };
        let error = attempt(&files, &cpu()).expect_err("cut");
        let kind = is!(Error::Checkpoint(
            CheckpointError::Header { .. } | CheckpointError::Truncated { .. }
        ));
        check(&format!("{length} bytes"), &error, kind, &["cut.safetensors"]);
    }
}

#[test]
fn bad_model_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = folder.path().join("model_index.json");
    let open = |path: &Path| Source::open(&Files::folder(path)).expect_err("no model");
    let config = is!(Error::Checkpoint(CheckpointError::Config { .. }));
    let io = is!(Error::Checkpoint(CheckpointError::Io { .. }));
    check("no index", &open(folder.path()), io, &["model_index.json"]);
    for text in ["", "{", "[1, 2"] {
        fs::write(&index, text).expect("written");
        check(
            text,
            &open(folder.path()),
            config,
            &["model_index.json", "not valid JSON"],
        );
    }
    for text in ["{}", "[]", r#"{"_class_name": "StableDiffusionPipeline"}"#] {
        fs::write(&index, text).expect("written");
        let unknown = is!(Error::Checkpoint(CheckpointError::UnknownModel { .. }));
        check(
            text,
            &open(folder.path()),
            unknown,
            &["model_index.json", "known: ZImagePipeline"],
        );
    }
    fs::write(&index, r#"{"_class_name": "ZImagePipeline"}"#).expect("written");
    check("no parts", &open(folder.path()), io, &["scheduler"]);
    check(
        "a file",
        &open(&index),
        config,
        &["a model is a folder", "--transformer"],
    );
    let nothing = Source::open(&Files::default()).expect_err("no model");
    check("nothing", &nothing, config, &["given neither"]);
}

#[test]
fn requests_that_no_model_can_carry_out() {
    let mut engine = pollster::block_on(Engine::embedded(&cpu())).expect("the embedded model");
    let request = || Request::new("a").steps(1);
    let guidance = |g: f32| request().guidance(g);
    let image = rotile::media::Image::new(16, 16, vec![0; 16 * 16 * 3]);
    let strength = |s: f32| request().init_image(image.clone(), s);
    for (name, request, says) in [
        ("width", request().size(100, 128), "96 and 112"),
        ("height", request().size(128, 17), "16 and 32"),
        ("no width", request().size(0, 128), "16 and 32"),
        ("last width", request().size(u32::MAX, 128), "4294967280"),
        ("large", request().size(128, 8192), "256 positions for rows"),
        ("huge", request().size(100_000, 100_000), "pixels"),
        ("largest", request().size(u32::MAX - 15, u32::MAX - 15), "pixels"),
        ("no steps", request().steps(0), "at least 1 step"),
        ("too many steps", request().steps(u32::MAX), "at most 1000000 steps"),
        ("no pictures", request().batch(0), "at least 1 picture"),
        ("negative guidance", guidance(-1.0), "guidance must be 0 or more"),
        ("NaN guidance", guidance(f32::NAN), "guidance must be 0 or more"),
        (
            "infinite guidance",
            guidance(f32::INFINITY),
            "guidance must be 0 or more",
        ),
        ("no strength", strength(0.0), "raise strength"),
        ("strength", strength(1.5), "0..=1"),
        ("NaN strength", strength(f32::NAN), "0..=1"),
    ] {
        let error = engine.generate_blocking(&request, |_| {}, &Cancel::new());
        check(name, &error.expect_err(name), is!(Error::Request(_)), &[says]);
    }
    for shape in [
        vec![16, 16, 16],
        vec![1, 4, 16, 16],
        vec![2, 16, 16, 16],
        vec![1, 16, 0, 16],
    ] {
        let latent = Tensor::new(shape.clone(), vec![0.0; shape.iter().product()]);
        let error = pollster::block_on(engine.decode(&latent)).expect_err("no latent");
        check(&format!("{shape:?}"), &error, is!(Error::Request(_)), &[]);
    }
}

#[test]
fn no_room_on_the_cpu() {
    let mut engine = pollster::block_on(Engine::embedded(&cpu())).expect("the embedded model");
    // 19 tebibytes of activations.
    let task = rotile::diffusion::pipeline::Task::Decode {
        height: 1 << 14,
        width: 1 << 14,
    };
    let error = pollster::block_on(engine.pipeline().prepare(task))
        .map(drop)
        .expect_err("no room");
    check(
        "decode",
        &error,
        is!(Error::OutOfMemory { .. }),
        &["out of memory", "smaller size"],
    );
}

#[test]
fn no_room_on_the_gpu() {
    if support::gpu().is_none() {
        return;
    }
    let mut engine = pollster::block_on(Engine::embedded(&Options::default())).expect("the embedded model");
    for side in [1 << 12, 1 << 14] {
        let task = rotile::diffusion::pipeline::Task::Decode {
            height: side,
            width: side,
        };
        let error = pollster::block_on(engine.pipeline().prepare(task))
            .map(drop)
            .expect_err("no room");
        let kind = is!(
            Error::Plan(PlanError::ExceedsLimit { .. } | PlanError::IndexOverflow { .. })
                | Error::Gpu(GpuError::OutOfMemory { .. })
        );
        check("decode", &error, kind, &["smaller size"]);
    }
}

#[test]
fn unusual_requests_that_work() {
    let mut engine = pollster::block_on(Engine::embedded(&cpu())).expect("the embedded model");
    let long = "boat ".repeat(10_000);
    for (request, note) in [
        (Request::new(""), None),
        (Request::new("\0\u{1f6a2}<|im_end|>"), None),
        (Request::new(long), Some("only the first 512 of")),
        (Request::new("a").seed(u64::MAX).batch(2), None),
    ] {
        let mut notes = String::new();
        let on = |event| {
            if let Event::Note(text) = event {
                notes += &text;
            }
        };
        let pictures = engine.generate_blocking(&request.steps(1).guidance(0.0), on, &Cancel::new());
        assert!(!pictures.expect("pictures").is_empty());
        assert!(notes.contains(note.unwrap_or_default()), "{notes}");
    }
}

/// A finite weight that makes results overflow, and where that is seen.
type Overflow = (&'static str, &'static str, &'static str);

const OVERFLOWS: &[Overflow] = &[
    (
        "text_encoder",
        "model.layers.0.mlp.down_proj.weight",
        "text embedding: ",
    ),
    ("transformer", "cap_embedder.1.weight", "text embedding, refined: "),
    (
        "transformer",
        "all_final_layer.2-1.linear.weight",
        "latent after step 1 of 2: ",
    ),
    ("vae", "decoder.conv_out.weight", "picture: "),
];

fn overflows(options: &Options) {
    for (part, weight, says) in OVERFLOWS {
        let folder = tempfile::tempdir().expect("a folder");
        let mut doctored = Part::open(part);
        doctored.get(weight).fill(3e38);
        let path = folder.path().join(part);
        doctored.write(&path);
        let mut files = Files::folder(scenes(""));
        *place(&mut files, part) = Some(path);
        let source = Source::open(&files).expect("finite weights");
        let mut engine = pollster::block_on(Engine::new(source, options)).expect("an engine");
        let request = Request::new("a paper boat").steps(2).guidance(0.0);
        let error = engine
            .generate_blocking(&request, |_| {}, &Cancel::new())
            .map(drop)
            .expect_err(weight);
        let error = match error {
            Error::Undecoded { source, .. } if *part == "vae" => *source,
            error => error,
        };
        check(
            weight,
            &error,
            is!(Error::NonFinite { .. }),
            &[says, "no picture is written"],
        );
    }
}

#[test]
fn overflow_on_the_cpu() {
    overflows(&cpu());
}

#[test]
fn overflow_on_the_gpu() {
    if support::gpu().is_some() {
        overflows(&Options::default());
    }
}

/// Runs the binary in `folder` with a driver list that `drivers` allows.
fn rotile(folder: &Path, args: &[&OsStr], drivers: bool) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rotile"));
    for name in ["MODEL", "DEVICE", "DTYPE", "KERNEL", "LOG"] {
        command.env_remove(format!("ROTILE_{name}"));
    }
    if !drivers {
        command.env("VK_DRIVER_FILES", "/no").env("VK_ICD_FILENAMES", "/no");
    }
    command
        .args(args)
        .current_dir(folder)
        .output()
        .expect("the binary runs")
}

#[test]
fn the_binary_refuses_before_it_computes_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (inputs, outputs) = (folder.path().join("in"), folder.path().join("out"));
    fs::create_dir(&inputs).expect("a folder");
    fs::create_dir(&outputs).expect("a folder");
    for name in ["empty.png", "empty.safetensors"] {
        fs::write(inputs.join(name), "").expect("written");
    }
    fs::write(inputs.join("text.png"), "no picture").expect("written");
    let cases: &[(i32, &str, &str)] = &[
        (1, "no/a.png: No such file", "generate a --out no/a.png"),
        (1, "/dev/null/a.png", "generate a --out /dev/null/a.png"),
        (2, "end the name in .png", "generate a --out ."),
        (
            2,
            "latent's name ends in .safetensors",
            "encode ../in/text.png --out a.png",
        ),
        (
            1,
            "text.png: not a PNG, JPEG or WebP",
            "generate a --init-image ../in/text.png",
        ),
        (1, "empty.png: not a PNG, JPEG or WebP", "encode ../in/empty.png"),
        (1, "../in: Is a directory", "generate a --init-image ../in"),
        (1, "empty.safetensors: truncated", "decode ../in/empty.safetensors"),
        (1, "no .safetensors or .gguf file", "inspect ../in/../out"),
        (1, "/no: No such file", "inspect /no"),
        (2, "96 and 112", "inspect --width 100"),
        (2, "pixels", "inspect --width 4294967280 --height 4294967280"),
        (2, "256 positions for rows", "inspect --height 8192"),
        (2, "pixels", "generate a --width 100000 --height 100000"),
        (2, "the CPU stores", "inspect --dtype f16"),
        (2, "CPU stores activations as f32, not f16", "generate a --dtype f16"),
        (2, "not in 1..", "generate a --steps 0"),
        (2, "not in 1..", "generate a --batch 0"),
        (2, "at most 1000000 steps", "generate a --steps 4000000000"),
        (2, "at least 0", "generate a --guidance nan"),
        (2, "at least 0", "generate a --guidance -1"),
        (2, "at most 1", "generate a --init-image ../in/text.png --strength nan"),
        (2, "2^64", "generate a --seed 18446744073709551616"),
        (2, "2^64", "generate a --seed -1"),
        (2, "cfg_truncation in 0..=1", "generate a --cfg-truncation -1"),
    ];
    for (code, says, line) in cases {
        let mut args: Vec<&OsStr> = line.split(' ').map(OsStr::new).collect();
        args.extend(["--device", "cpu"].map(OsStr::new));
        refused(&outputs, &args, true, *code, says);
    }
    // Elsewhere other drivers than Vulkan's may be there.
    let hidden: &[&str] = if cfg!(target_os = "linux") {
        &["gpu", "0", "no such adapter"]
    } else {
        &[]
    };
    for device in hidden {
        for command in ["generate", "inspect"] {
            let mut args = vec![command, "--device", device];
            if command == "generate" {
                args.push("a");
            }
            let args: Vec<_> = args.into_iter().map(OsStr::new).collect();
            refused(&outputs, &args, false, 1, "no GPU adapter");
        }
    }
    let args = ["generate", "a", "--device", "no such adapter"].map(OsStr::new);
    refused(&outputs, &args, true, 1, "no such adapter");
}

#[track_caller]
fn refused(folder: &Path, args: &[&OsStr], drivers: bool, code: i32, says: &str) {
    let output = rotile(folder, args, drivers);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
    assert!(stderr.contains(says), "{args:?}: {stderr}");
    assert!(
        !stderr.contains("panicked") && output.stdout.is_empty(),
        "{args:?}: {stderr}"
    );
    let left: Vec<_> = fs::read_dir(folder).expect("the folder").collect();
    assert!(left.is_empty(), "{args:?} left {left:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn names_that_are_no_unicode() {
    use std::os::unix::ffi::OsStrExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let name = OsStr::from_bytes(b"\xff.png");
    let args = [
        "generate", "a", "--device", "cpu", "--steps", "1", "--batch", "2", "--out",
    ]
    .map(OsStr::new);
    let output = rotile(folder.path(), &[&args[..], &[name]].concat(), true);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    for name in [&b"\xff-1.png"[..], b"\xff-2.png"] {
        assert!(folder.path().join(OsStr::from_bytes(name)).is_file());
    }
    let prompt = ["generate", "--out"].map(OsStr::new);
    let output = rotile(folder.path(), &[&prompt[..], &[name, name]].concat(), true);
    assert_eq!(output.status.code(), Some(2), "a prompt is Unicode");
}

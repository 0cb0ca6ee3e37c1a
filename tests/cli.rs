//! The command line: help, JSON, exit codes, files. Nothing here needs a GPU.

#![cfg(feature = "scenes-tiny")]

use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn rotile(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rotile"));
    for name in [
        "ROTILE_MODEL",
        "ROTILE_DEVICE",
        "ROTILE_DTYPE",
        "ROTILE_KERNEL",
        "ROTILE_LOG",
    ] {
        command.env_remove(name);
    }
    command.args(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).replace("rotile.exe", "rotile")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).replace("rotile.exe", "rotile")
}

#[track_caller]
fn refused(args: &[&str], code: i32, message: &str) {
    let output = rotile(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
    assert!(stderr(&output).contains(message), "{args:?}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "{args:?}: {}", stdout(&output));
}

fn picture(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens/reference/scenes-tiny");
    folder.join(name).to_string_lossy().into_owned()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .expect("the folder")
        .map(|e| e.expect("an entry").path())
        .collect()
}

#[test]
fn help() {
    let mut text = stdout(&rotile(&["--help"]));
    for command in [
        "generate",
        "decode",
        "encode",
        "roundtrip",
        "inspect",
        "compare",
        "devices",
        "kernels",
        "bench",
    ] {
        text += &format!("\n---- {command}\n{}", stdout(&rotile(&[command, "--help"])));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn compares_pictures() {
    let (a, b) = (picture("run_a.png"), picture("run_b.png"));
    let output = rotile(&["compare", &a, &b, "--json"]);
    assert_eq!(output.status.code(), Some(0));
    // As scikit-image 0.26.0 says: 9.289887, 0.352765 (Gaussian windows, population covariance).
    insta::assert_snapshot!(stdout(&output), @r#"
    {
      "identical": false,
      "psnr": 9.2899,
      "ssim": 0.352765,
      "max_difference": 234,
      "mean_difference": 65.945719,
      "width": 128,
      "height": 128
    }
    "#);
    insta::assert_snapshot!(stdout(&rotile(&["compare", &a, &b])), @r"
    PSNR             9.29 dB
    SSIM             0.352765
    max difference   234 of 255
    mean difference  65.9457 of 255
    ");
    let same: Value = serde_json::from_str(&stdout(&rotile(&["--json", "compare", &a, &a]))).expect("JSON");
    assert_eq!(
        (&same["identical"], &same["psnr"], &same["ssim"]),
        (&true.into(), &Value::Null, &1.0.into())
    );
}

#[test]
fn compare_writes_the_difference_and_can_fail() {
    let folder = tempfile::tempdir().expect("a folder");
    let diff = folder.path().join("diff.png");
    let (a, b) = (picture("run_a.png"), picture("run_b.png"));
    let output = rotile(&["compare", &a, &b, "--diff", &diff.to_string_lossy(), "--min-psnr", "9"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let read = |path: &Path| rotile::media::read(path).expect("a picture");
    let (x, y, found) = (read(a.as_ref()), read(b.as_ref()), read(&diff));
    let want = x.rgb8()[0].abs_diff(y.rgb8()[0]).saturating_mul(8);
    assert_eq!((found.width(), found.rgb8()[0]), (128, want));
    assert_eq!(entries(folder.path()), [diff]);

    let output = rotile(&["compare", &a, &b, "--min-psnr", "60"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("PSNR is 9.29 dB, wanted 60 dB"));
}

#[test]
fn refuses_what_cannot_be_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let a = picture("run_a.png");
    fs::write(path("text.png"), "no picture").expect("written");
    let whole = fs::read(&a).expect("a file");
    fs::write(path("cut.png"), &whole[..whole.len() / 2]).expect("written");
    let small = rotile::media::Image::new(2, 1, vec![0; 6]);
    let bytes = small.to_bytes(rotile::media::Format::Png, &[]).expect("bytes");
    fs::write(path("small.png"), bytes).expect("written");
    refused(&["compare", &a, &path("none.png")], 1, "none.png");
    refused(
        &["compare", &a, &path("text.png")],
        1,
        "text.png: not a PNG, JPEG or WebP picture",
    );
    refused(&["compare", &a, &path("cut.png")], 1, "cut.png");
    refused(
        &["compare", &a, &path("small.png")],
        1,
        "cannot compare 128x128 with 2x1",
    );
    refused(&["compare", &a], 2, "<B>");
    refused(
        &["compare", &a, &a, "--diff", &path("diff.gif")],
        2,
        ".png, .jpg or .webp",
    );
    refused(&["compare", &a, &a, "--diff", &path("no/diff.png")], 1, "diff.png");
}

#[test]
fn wrong_usage_is_code_2() {
    for (args, message) in [
        (&["generate"][..], "<PROMPT>"),
        (&["generate", "a", "--prompt", "b"], "cannot be used with"),
        (&["generate", "a", "--steps", "0"], "--steps"),
        (&["generate", "a", "--guidance", "-1"], "--guidance"),
        (&["generate", "a", "--guidance", "nan"], "at least 0"),
        (&["generate", "a", "--seed", "x"], "`random`"),
        (&["generate", "a", "--width", "0"], "--width"),
        (&["generate", "a", "--batch", "0"], "--batch"),
        (&["generate", "a", "--strength", "0.5"], "--init-image"),
        (
            &["generate", "a", "--init-image", "b.png", "--strength", "1.5"],
            "at most 1",
        ),
        (&["generate", "a", "--kernel", "matmul"], "OP=WAY"),
        (&["generate", "a", "--dtype", "int8"], "f32"),
        (&["generate", "a", "--rng", "dice"], "philox"),
        (&["generate", "a", "--out", "a.gif"], ".png, .jpg or .webp"),
        (&["encode", "a.png", "--width", "8"], "--height"),
        (
            &["encode", "a.png", "--width", "4000000000", "--height", "4000000000"],
            "pixels",
        ),
        (&["kernels", "show", "nothing"], "no kernel `nothing`"),
        (&["draw"], "draw"),
        (&[], "Usage"),
    ] {
        refused(args, 2, message);
    }
}

#[test]
fn places_that_cannot_be_written_are_found_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("no").join("a.png");
    refused(
        &["generate", "a", "--out", &missing.to_string_lossy()],
        1,
        "a.png: No such file",
    );
    let taken = folder.path().join("b.png");
    fs::create_dir(&taken).expect("a folder");
    refused(
        &["generate", "a", "--out", &taken.to_string_lossy()],
        1,
        "b.png: is a directory",
    );
    assert_eq!(entries(folder.path()), [taken]);
}

#[test]
fn missing_inputs_are_code_1() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    refused(
        &["generate", "a", "--init-image", "/no/b.png", "--out", &out("a.png")],
        1,
        "b.png",
    );
    refused(&["encode", "/no/b.png", "--out", &out("l.safetensors")], 1, "b.png");
    refused(
        &["decode", "/no/l.safetensors", "--out", &out("a.png")],
        1,
        "l.safetensors",
    );
    let wrong = picture("run_b.safetensors");
    refused(&["decode", &wrong, "--out", &out("a.png")], 1, "no tensor `latent`");
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn kernels_are_listed_and_shown() {
    let list: Value = serde_json::from_str(&stdout(&rotile(&["kernels", "--json"]))).expect("JSON");
    let list = list["kernels"].as_array().expect("a list");
    let name = list[0]["kernel"].as_str().expect("a name");
    let shown = stdout(&rotile(&["kernels", "show", name]));
    assert!(
        shown.contains("@compute") && shown.contains("// ---- wgsl/ops/"),
        "{shown}"
    );
    // The words of a name may come apart in a shell.
    let words: Vec<&str> = ["kernels", "show"].into_iter().chain(name.split(' ')).collect();
    assert_eq!(stdout(&rotile(&words)), shown);
    for kernel in list {
        assert!(!kernel["ways"].as_array().expect("a list").is_empty(), "{kernel}");
    }
}

#[test]
fn inspects_the_text_of_a_png() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.png");
    let text = [("prompt", "ein Schiff \u{1f6a2}"), ("seed", "3")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    let image = rotile::media::Image::new(2, 1, vec![0; 6]);
    let bytes = image.to_bytes(rotile::media::Format::Png, &text).expect("bytes");
    rotile::media::write(&path, &bytes).expect("written");
    let found = stdout(&rotile(&["inspect", &path.to_string_lossy(), "--json"]));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(found["text"]["prompt"], "ein Schiff \u{1f6a2}");
    assert_eq!(found["text"]["seed"], "3");
}

#[test]
fn devices_name_the_one_that_is_used() {
    let found = stdout(&rotile(&["devices", "--json", "--device", "cpu"]));
    let found: Value = serde_json::from_str(&found).expect("JSON");
    assert_eq!(found["used"], "cpu");
    assert!(found["cpu"]["threads"].as_u64().is_some_and(|n| n > 0));
    refused(&["devices", "--device", "no such adapter"], 1, "no such adapter");
}

#[test]
fn generates_the_same_file_twice_and_writes_down_how() {
    let folder = tempfile::tempdir().expect("a folder");
    let make = |name: &str| {
        let out = folder.path().join(name);
        let prompt = "ein rotes Haus \u{1f3e0}";
        let args = [
            "generate",
            prompt,
            "-s",
            "7",
            "--steps",
            "2",
            "--guidance",
            "1",
            "--device",
            "cpu",
            "--json",
            "-o",
        ];
        let output = rotile(&[&args[..], &[&out.to_string_lossy()]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let found: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        (fs::read(&out).expect("the picture"), found)
    };
    let ((first, found), (second, _)) = (make("a.png"), make("b.png"));
    assert!(first == second, "the same request gives other bytes");
    assert_eq!(entries(folder.path()).len(), 2);
    let picture = &found["pictures"][0];
    assert_eq!((&picture["width"], &picture["seed"]), (&128.into(), &7.into()));
    assert!(found["bytes"]["planned"].as_u64().is_some_and(|n| n > 0));
    let text = rotile::media::Image::png_text(&first, "a.png").expect("text");
    let entry = |name: &str| text.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str());
    assert_eq!(entry("prompt"), Some("ein rotes Haus \u{1f3e0}"));
    assert_eq!(
        (entry("seed"), entry("steps"), entry("guidance")),
        (Some("7"), Some("2"), Some("1"))
    );
}

#[test]
fn encodes_and_decodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (original, latent, decoded) = (picture("run_a.png"), path("latent.safetensors"), path("decoded.png"));
    let output = rotile(&["encode", &original, "--out", &latent, "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = rotile(&["decode", &latent, "--out", &decoded, "--device", "cpu"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = rotile(&["compare", &original, &decoded, "--min-psnr", "35"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    // Sides that are no multiples of the factor come back as they were.
    let odd = [
        "encode", &original, "--out", &latent, "-W", "100", "-H", "60", "--device", "cpu",
    ];
    let output = rotile(&odd);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("repeated up to 104x64"), "{}", stderr(&output));
    let output = rotile(&["decode", &latent, "--out", &decoded, "--device", "cpu", "--json"]);
    let found: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!((&found["width"], &found["height"]), (&json!(100), &json!(60)));
    assert!(stderr(&output).contains("cropped to 100x60"), "{}", stderr(&output));
    let wrong = picture("vae.safetensors");
    refused(
        &[
            "decode", &wrong, "--tensor", "picture", "--out", &decoded, "--device", "cpu",
        ],
        1,
        "picture",
    );
}

/// A safetensors file with this header and so many bytes behind it, of which the disk holds none.
fn sparse(path: &Path, header: &str, bytes: u64) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).expect("a file");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    file.set_len(8 + header.len() as u64 + bytes).expect("long enough");
}

#[test]
fn latents_that_cannot_be_decoded_are_refused_before_they_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("latent.safetensors");
    let name = path.to_string_lossy().into_owned();
    let out = folder.path().join("a.png").to_string_lossy().into_owned();
    let decode = |metadata: &str, shape: &str, bytes: u64, words: &str| {
        let tensor = format!(r#""latent":{{"dtype":"F32","shape":{shape},"data_offsets":[0,{bytes}]}}"#);
        sparse(&path, &format!("{{{metadata}{tensor}}}"), bytes);
        refused(&["decode", &name, "--out", &out, "--device", "cpu"], 1, words);
    };
    // 4 TiB: more than any machine that runs this has.
    decode("", "[1,16,262144,262144]", 16 << 38, "out of memory");
    decode("", "[16,4,4]", 1024, "a latent is [1, c, h, w]");
    decode("", "[1,16,0,4]", 0, "empty");
    let other = r#""__metadata__":{"convention":"raw z of the autoencoder"},"#;
    decode(other, "[1,16,4,4]", 1024, "raw z of the autoencoder");
}

#[test]
fn an_autoencoder_alone_makes_a_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (original, back, diff) = (picture("run_a.png"), path("back.png"), path("diff.png"));
    let places = ["--out", &back, "--diff", &diff];
    let run = |args: &[&str]| rotile(&[&["roundtrip", &original, "--device", "cpu"], args].concat());
    // The embedded model's, that of a model folder, and a file alone.
    let folder_of_model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/scenes-tiny");
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/models/scenes-tiny/vae/diffusion_pytorch_model.safetensors"
    );
    let output = run(&places);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("PSNR  ") && text.contains("dB\nSSIM  0."), "{text}");
    let json = |args: &[&str]| -> Value {
        let output = run(&[&["--json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        serde_json::from_str(&stdout(&output)).expect("JSON")
    };
    let found = [json(&[]), json(&["--model", folder_of_model]), json(&["--model", file])];
    for found in &found {
        assert!(found["psnr"].as_f64().is_some_and(|p| p > 35.0), "{found}");
    }
    assert!(found[0]["psnr"] == found[1]["psnr"] && found[1]["psnr"] == found[2]["psnr"]);
    // What it wrote is what it measured.
    let output = rotile(&["compare", &original, &back, "--json"]);
    let compared: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert_eq!(compared["psnr"], found[0]["psnr"]);
    assert_eq!(entries(folder.path()).len(), 2);
    // Another model in place of the autoencoder.
    let text_encoder = format!("{folder_of_model}/text_encoder");
    refused(
        &["roundtrip", &original, "--model", &text_encoder, "--device", "cpu"],
        1,
        "holds a Qwen3 text encoder",
    );
}

#[test]
fn requests_that_do_not_fit_the_model_are_code_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("a.png").to_string_lossy().into_owned();
    let generate = ["generate", "a", "--device", "cpu", "--out", &out];
    refused(&[&generate[..], &["--width", "100"]].concat(), 2, "96 and 112");
    refused(&[&generate[..], &["--dtype", "f16"]].concat(), 2, "f32");
    refused(
        &[&generate[..], &["--model", "/no/model"]].concat(),
        1,
        "model_index.json",
    );
    assert!(entries(folder.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn stops_on_ctrl_c_and_leaves_nothing() {
    use std::io::{BufRead as _, BufReader};
    use std::process::Stdio;
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("a.png");
    let mut child = Command::new(env!("CARGO_BIN_EXE_rotile"))
        .args(["generate", "a", "--steps", "1000", "--device", "cpu", "-v", "--out"])
        .arg(&out)
        .env_remove("ROTILE_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    assert!(
        lines.any(|line| line.expect("text").contains("denoise")),
        "it never began"
    );
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.expect("kill runs").success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{rest:?}");
    assert!(rest.iter().any(|line| line == "error: cancelled"), "{rest:?}");
    assert!(entries(folder.path()).is_empty());
}

#[test]
fn inspects_the_embedded_model() {
    let found: Value = serde_json::from_str(&stdout(&rotile(&["inspect", "--json", "--device", "cpu"]))).expect("JSON");
    assert_eq!((&found["width"], &found["height"]), (&128.into(), &128.into()));
    let parts = found["parts"].as_array().expect("a list");
    let models: Vec<_> = parts.iter().map(|p| p["model"].as_str().unwrap_or_default()).collect();
    assert_eq!(models, ["Qwen3 text encoder", "Z-Image transformer", "AutoencoderKL"]);
    for part in parts {
        let tensors = part["tensors"].as_array().expect("a list");
        assert!(tensors.iter().all(|t| t["status"] != "unknown"), "{}", part["file"]);
        assert!(
            part["plans"].as_array().is_some_and(|plans| !plans.is_empty()),
            "{}",
            part["file"]
        );
    }
    let text = stdout(&rotile(&["inspect", "--device", "cpu"]));
    assert!(text.contains("mapped, not run") && text.contains("peak"), "{text}");
}

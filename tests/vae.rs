//! Autoencoders against diffusers: every family, encode and decode, in both layouts, on the CPU and the GPU.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/layouts.rs"]
mod layouts;
mod support;

use fixtures::{Fixture, weights};
use layouts::{Layouts, config};
use rotile::backend::Device;
use rotile::checkpoint::{Checkpoint, Layout, Weights};
use rotile::cpu::Cpu;
use rotile::diffusion::vae::VaeRunner;
use rotile::models::Vae;
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use safetensors::Dtype;
use std::sync::Arc;
use support::{gpu, relative_rms};

/// What diffusers computes: a latent as the transformer has it with its picture, a picture with its latent; pictures in -1..1.
struct Oracle {
    decode: [Tensor; 2],
    encode: [Tensor; 2],
}

impl Oracle {
    fn open(name: &str) -> Self {
        let io = Fixture::open(&format!("{name}/io.safetensors"));
        let load = |names: &[&str]| {
            let name = names.iter().find(|n| io.has(n)).expect("one of the names");
            single_frame(io.tensor(name))
        };
        let mut latents = load(&["encode.latents", "encode.latents_packed", "encode1.mean"]);
        if io.has("encode1.mean") {
            let config = config(name);
            let number = |key: &str, c: usize| config[key][c].as_f64().expect("a number");
            let plane = latents.data.len() / latents.ty.shape[1];
            for (i, v) in latents.data.iter_mut().enumerate() {
                let c = i / plane;
                *v = ((f64::from(*v) - number("latents_mean", c)) / number("latents_std", c)) as f32;
            }
        }
        Self {
            decode: [
                load(&["decode.latents", "decode.latents_packed", "decode.latents_normalized"]),
                load(&["decode1.image", "decode.image"]),
            ],
            encode: [load(&["encode1.image", "encode.image"]), latents],
        }
    }
}

/// The first frame of `[1, c, f, h, w]`.
fn single_frame(tensor: Tensor) -> Tensor {
    let &[1, c, frames, h, w] = &tensor.ty.shape[..] else {
        return tensor;
    };
    let data = tensor.data.chunks_exact(frames * h * w).flat_map(|c| &c[..h * w]);
    Tensor::new([1, c, h, w], data.copied().collect())
}

fn map(tensor: &Tensor, f: impl Fn(f32) -> f32) -> Tensor {
    Tensor::new(tensor.ty.shape.clone(), tensor.data.iter().map(|&v| f(v)).collect())
}

/// Devices with the storage of activations and the largest relative RMS.
fn devices() -> Vec<(&'static str, Device, DType, f64)> {
    let mut list = vec![("cpu", Device::Cpu(Cpu::default()), DType::F32, 2e-5)];
    if let Some(gpu) = gpu() {
        let device = || Device::Gpu(gpu.clone());
        list.push(("gpu f32", device(), DType::F32, 2e-4));
        if gpu.caps().f16 {
            list.push(("gpu f16", device(), DType::F16, 5e-3));
        }
    }
    list
}

/// Runs both halves on every device, where the file has them.
fn check(name: &str, weights: &Weights, oracle: &Oracle) {
    let vae = Vae::read(weights.checkpoint()).unwrap_or_else(|e| panic!("{name}: {e}"));
    for (device_name, device, dtype, limit) in devices() {
        let mut runner = VaeRunner::new((vae.clone(), weights.clone()), device, dtype, Policy::default());
        let mut errors = Vec::new();
        if vae.has_decoder() {
            let [latent, image] = &oracle.decode;
            let picture = pollster::block_on(runner.decode(latent)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(picture.ty, image.ty, "{name}");
            let clamped = matches!(vae, Vae::QwenImage(_));
            let picture = map(&picture, |v| if clamped { v.clamp(0.0, 1.0) } else { v } * 2.0 - 1.0);
            errors.push(("decode", relative_rms(&picture.data, &image.data)));
        }
        if vae.has_encoder() {
            let [image, latent] = &oracle.encode;
            let picture = map(image, |v| v * 0.5 + 0.5);
            let got = pollster::block_on(runner.encode(&picture)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(got.ty, latent.ty, "{name}");
            errors.push(("encode", relative_rms(&got.data, &latent.data)));
        }
        for (half, error) in errors {
            println!("{name} {half} on {device_name}: {error:.1e}");
            assert!(error <= limit, "{name} {half} on {device_name}: {error:.2e}");
        }
    }
}

/// Both layouts against diffusers; then the original one under the prefixes of whole models and in other element types, which
/// must give the same values by the same names.
fn family(name: &str, layout: Layout) {
    let oracle = Oracle::open(name);
    let diffusers = weights(name);
    assert_eq!(diffusers.checkpoint().layout(), Layout::Diffusers);
    check(name, &diffusers, &oracle);

    let layouts = Layouts::open(name);
    for file in layouts.names() {
        let bare = |key: &str| key.strip_prefix("first_stage_model.").unwrap_or(key).to_owned();
        let open = |rename: &dyn Fn(&str) -> String, dtype| {
            let bytes = layouts.file(file, rename, dtype);
            let checkpoint = Checkpoint::from_bytes(file, bytes.into()).unwrap_or_else(|e| panic!("{name}: {e}"));
            Weights::new(Arc::new(checkpoint.with_config(Some(config(name)))))
        };
        let original = open(&bare, None);
        assert_eq!(original.checkpoint().layout(), layout, "{name}");
        check(&format!("{name} {file}"), &original, &oracle);
        // Files of one half are never part of a whole model.
        let prefixes: &[&str] = if layout == Layout::Taesd {
            &[]
        } else {
            &["first_stage_model.", "vae."]
        };
        for prefix in prefixes {
            let prefixed = open(&|key| format!("{prefix}{}", bare(key)), None);
            same(name, &original, &prefixed);
        }
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            same(name, &original, &open(&bare, Some(dtype)));
        }
    }
}

/// Whether two files hold the same model.
fn same(name: &str, a: &Weights, b: &Weights) {
    let (a, b) = (a.checkpoint(), b.checkpoint());
    assert_eq!(Vae::read(a).expect("a VAE"), Vae::read(b).expect("a VAE"), "{name}");
    assert_eq!(a.tensors().len(), b.tensors().len(), "{name}");
    for info in a.tensors().filter(|info| info.weight().is_ok()) {
        let [a, b] = [a, b].map(|c| c.load(&info.name, DType::F32).unwrap_or_else(|e| panic!("{name}: {e}")));
        assert!(a == b, "{name}: {}", info.name);
    }
}

#[test]
fn sd15() {
    family("vae_sd15", Layout::Ldm);
}

#[test]
fn sdxl() {
    family("vae_sdxl", Layout::Ldm);
}

#[test]
fn cogview4() {
    family("vae_cogview4", Layout::Ldm);
}

#[test]
fn flux2() {
    family("vae_flux2", Layout::Ldm);
}

#[test]
fn taesd() {
    family("vae_taesd", Layout::Taesd);
}

#[test]
fn taef1() {
    family("vae_taef1", Layout::Taesd);
}

#[test]
fn qwen_image() {
    family("vae_qwenimage", Layout::Wan);
}

#[test]
fn flux1() {
    let oracle = Oracle::open("vae_flux1");
    check("vae_flux1", &weights("vae_flux1"), &oracle);
    check(
        "vae_flux1 original",
        &weights("vae_flux1/original.safetensors"),
        &oracle,
    );
}

#[test]
fn taef2() {
    // From a script that knows nothing of PyTorch: diffusers has no such blocks.
    let original = weights("vae_taef2/original.safetensors");
    assert_eq!(original.checkpoint().layout(), Layout::Taesd);
    check("vae_taef2", &original, &Oracle::open("vae_taef2"));
}

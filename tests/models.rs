//! Models against diffusers, tap by tap, on the CPU and on the GPU.

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::{Fixture, part, weights};
use pollster::block_on;
use rotile::Result;
use rotile::backend::Device;
use rotile::checkpoint::Weights;
use rotile::cpu::Cpu;
use rotile::graph::{Graph, Value};
use rotile::models::{Model, autoencoder_kl, blocks::rotary_table, qwen3, z_image};
use rotile::plan::Policy;
use rotile::tensor::{DType, Tensor};
use support::relative_rms;

/// Largest relative RMS error of any intermediate value.
const CPU: f64 = 2e-5;
const GPU: f64 = 2e-4;
/// Half-precision storage; PyTorch itself is up to 3e-3 off in it.
const GPU_F16: f64 = 5e-3;

/// Runs a graph on the CPU, and on the GPU where there is one, and compares every output that `want` knows.
///
/// A fixture may have more rows than we compute: padding that nobody reads.
fn compare(
    what: &str,
    w: &Weights,
    inputs: &[(&str, &Tensor)],
    build: impl Fn(&mut Graph, &[Value]) -> Result<Vec<(String, Value)>>,
    want: impl Fn(&str) -> Option<Tensor>,
) {
    let mut runs = vec![(Device::Cpu(Cpu::default()), DType::F32, CPU)];
    if let Some(gpu) = support::gpu() {
        let device = Device::Gpu(gpu.clone());
        let limit = |dtype| if dtype == DType::F16 { GPU_F16 } else { GPU };
        runs.extend(
            device
                .dtypes()
                .iter()
                .map(|&dtype| (device.clone(), dtype, limit(dtype))),
        );
    }
    for (device, dtype, limit) in runs {
        let mut g = Graph::new(dtype).with_taps();
        let values: Vec<_> = inputs.iter().map(|(name, t)| g.input(name, t.ty.clone())).collect();
        for (name, value) in build(&mut g, &values).unwrap_or_else(|e| panic!("{what}: {e}")) {
            g.output(&name, value);
        }
        let mut session = block_on(device.prepare(&g, w, &Policy::default())).unwrap_or_else(|e| panic!("{what}: {e}"));
        let names: Vec<_> = session.plan().outputs.iter().map(|o| o.name.clone()).collect();
        let results = block_on(session.run(inputs)).unwrap_or_else(|e| panic!("{what}: {e}"));
        let (mut compared, mut worst) = (0, (0.0, String::new()));
        for (name, got) in names.iter().zip(&results) {
            let Some(want) = want(name) else { continue };
            assert!(
                got.data.len() <= want.data.len(),
                "{what}: {name}: {} is more than {}",
                got.ty,
                want.ty
            );
            let error = relative_rms(&got.data, &want.data[..got.data.len()]);
            assert!(
                error <= limit,
                "{what}, {dtype} on {}: {name}: relative RMS error {error:.2e}, limit {limit:.0e}",
                device.name()
            );
            compared += 1;
            if error >= worst.0 {
                worst = (error, name.clone());
            }
        }
        assert!(compared > 0, "{what}: nothing to compare among {names:?}");
        eprintln!(
            "{what}, {dtype} on {}: {compared} values, worst {:.1e} ({})",
            device.name(),
            worst.0,
            worst.1
        );
    }
}

fn one(name: &str, value: Value) -> Vec<(String, Value)> {
    vec![(name.to_owned(), value)]
}

/// Without the leading axis of extent 1.
fn squeezed(t: Tensor, axis: usize) -> Tensor {
    let mut shape = t.ty.shape.to_vec();
    assert_eq!(shape.remove(axis), 1);
    Tensor::new(shape, t.data)
}

#[test]
fn qwen3_equals_transformers() {
    let w = weights("text_qwen3");
    let Ok(Model::Qwen3(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let io = Fixture::open("text_qwen3/io.safetensors");
    let (shape, ids) = io.ids("input_ids");
    for prompt in 0..shape[0] {
        let want = io.tensor(&format!("zimage_prompt_embeds.{prompt}"));
        let tokens = want.ty.shape[0];
        let ids = Tensor::ids([tokens], &ids[prompt * shape[1]..][..tokens]);
        compare(
            &format!("text_qwen3 prompt {prompt}"),
            &w,
            &[("ids", &ids)],
            |g, v| Ok(one("embeddings", qwen3::encoder(g, &w, &cfg, v[0])?)),
            |name| {
                if name == "embeddings" {
                    return Some(want.clone());
                }
                // The fixture is padded at the end, which causal attention does not see.
                let all = io.tensor(name);
                let row = all.data.len() / shape[0];
                Some(Tensor::new([row], all.data[prompt * row..][..row].to_vec()))
            },
        );
    }
}

fn compare_z_image(
    what: &str,
    w: &Weights,
    cfg: &z_image::Config,
    [x, t, cap]: [Tensor; 3],
    want: impl Fn(&str) -> Option<Tensor>,
) {
    let inputs = [("latent", &x), ("t", &t), ("caption", &cap)];
    compare(
        what,
        w,
        &inputs,
        |g, v| Ok(one("out", z_image::transformer(g, w, cfg, v[0], v[1], v[2])?)),
        want,
    );
}

#[test]
fn z_image_equals_diffusers() {
    let io = Fixture::open("dit_zimage/io.safetensors");
    for file in ["dit_zimage", "dit_zimage/original.safetensors"] {
        let w = weights(file);
        let Ok(Model::ZImage(cfg)) = Model::read(w.checkpoint()) else {
            panic!("not detected")
        };
        // The bytes are the same in both layouts (tests/checkpoint.rs), so one case shows that the names are.
        for case in if file == "dit_zimage" {
            vec!["a", "b"]
        } else {
            vec!["a"]
        } {
            let x = squeezed(io.tensor(&format!("{case}.x")), 1);
            let [t, cap] = ["t", "cap_feats"].map(|n| io.tensor(&format!("{case}.{n}")));
            compare_z_image(&format!("{file} {case}"), &w, &cfg, [x, t, cap], |name| {
                let names = [format!("{case}.{name}"), format!("{case}.tap.{name}")];
                names.iter().find(|n| io.has(n)).map(|n| io.tensor(n))
            });
        }
        if file != "dit_zimage" {
            continue;
        }
        // A batch of two in diffusers, with masks: one by one here.
        let (all, times) = (io.tensor("c.x"), io.tensor("c.t"));
        let size = all.data.len() / 2;
        for i in 0..2 {
            let x = Tensor::new([16, 8, 8], all.data[i * size..][..size].to_vec());
            let t = Tensor::new([1], vec![times.data[i]]);
            let cap = io.tensor(&format!("c.cap_feats.{i}"));
            compare_z_image(&format!("{file} c.{i}"), &w, &cfg, [x, t, cap], |name| {
                (name == "out").then(|| io.tensor(&format!("c.out.{i}")))
            });
        }
    }
}

#[test]
fn z_image_in_two_graphs_is_the_same() {
    let io = Fixture::open("dit_zimage/io.safetensors");
    let w = weights("dit_zimage");
    let Ok(Model::ZImage(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let cap = io.tensor("a.cap_feats");
    let mut g = Graph::new(DType::F32);
    let input = g.input("caption", cap.ty.clone());
    let value = z_image::refined_caption(&mut g, &w, &cfg, input).expect("builds");
    g.output("refined", value);
    let device = Device::Cpu(Cpu::default());
    let mut session = block_on(device.prepare(&g, &w, &Policy::default())).expect("prepares");
    let refined = block_on(session.run(&[("caption", &cap)])).expect("runs").remove(0);
    let (x, t) = (squeezed(io.tensor("a.x"), 1), io.tensor("a.t"));
    compare(
        "denoiser",
        &w,
        &[("latent", &x), ("t", &t), ("refined", &refined)],
        |g, v| Ok(one("out", z_image::denoiser(g, &w, &cfg, v[0], v[1], v[2], 21)?)),
        |name| (name == "out").then(|| io.tensor("a.out")),
    );
}

#[test]
fn rotary_angles_equal_diffusers() {
    let io = Fixture::open("dit_zimage/io.safetensors");
    let (_, ids) = io.ids("rope.ids");
    let positions: Vec<_> = ids
        .chunks_exact(3)
        .map(|p| [p[0] as usize, p[1] as usize, p[2] as usize])
        .collect();
    let (cos, sin) = rotary_table(&positions, &[4, 6, 6], 256.0);
    for (got, want) in [(cos, io.tensor("rope.cos")), (sin, io.tensor("rope.sin"))] {
        assert_eq!(got.ty, want.ty);
        let worst = got
            .data
            .iter()
            .zip(&want.data)
            .map(|(g, w)| (g - w).abs())
            .fold(0.0, f32::max);
        assert!(worst <= 1.2e-7, "{worst}");
    }
}

fn autoencoder(name: &str) -> (Weights, autoencoder_kl::Config) {
    let w = weights(name);
    let Ok(Model::AutoencoderKl(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    (w, cfg)
}

#[test]
fn autoencoder_equals_diffusers() {
    let (w, cfg) = autoencoder("vae_flux1");
    let io = Fixture::open("vae_flux1/io.safetensors");
    let find = |side: &'static str| {
        let io = &io;
        move |name: &str| {
            let names = [format!("{side}.{name}"), format!("{side}.tap.{name}")];
            names.iter().find(|n| io.has(n)).map(|n| io.tensor(n))
        }
    };
    let latents = io.tensor("decode.latents");
    compare(
        "vae_flux1 decode",
        &w,
        &[("latents", &latents)],
        |g, v| {
            let x = autoencoder_kl::unscale(g, &w, &cfg, v[0])?;
            let image = autoencoder_kl::decoder(g, &w, &cfg, x)?;
            Ok(vec![("vae_in".into(), x), ("image".into(), image)])
        },
        find("decode"),
    );
    let image = io.tensor("encode.image");
    compare(
        "vae_flux1 encode",
        &w,
        &[("image", &image)],
        |g, v| encode(g, &w, &cfg, v[0]),
        find("encode"),
    );
}

fn encode(g: &mut Graph, w: &Weights, cfg: &autoencoder_kl::Config, image: Value) -> Result<Vec<(String, Value)>> {
    let (mean, logvar) = autoencoder_kl::encoder(g, w, cfg, image)?;
    let latents = autoencoder_kl::rescale(g, w, cfg, mean)?;
    Ok(vec![
        ("mean".into(), mean),
        ("logvar".into(), logvar),
        ("latents".into(), latents),
    ])
}

#[test]
fn autoencoder_equals_diffusers_at_odd_sizes() {
    let (w, cfg) = autoencoder("vae_flux1/original.safetensors");
    let io = Fixture::open("vae_flux1/io_tiled.safetensors");
    compare(
        "vae_flux1 decode 13x11",
        &w,
        &[("latent", &io.tensor("decode.vae_in"))],
        |g, v| Ok(one("image", autoencoder_kl::decoder(g, &w, &cfg, v[0])?)),
        |name| (name == "image").then(|| io.tensor("decode.image_full")),
    );
    compare(
        "vae_flux1 encode 104x88",
        &w,
        &[("image", &io.tensor("encode.image"))],
        |g, v| encode(g, &w, &cfg, v[0]),
        |name| (name == "mean").then(|| io.tensor("encode.mean_full")),
    );
}

#[test]
fn scenes_tiny_equals_diffusers() {
    let (text, dit) = (part("text_encoder"), part("transformer"));
    let Ok(Model::Qwen3(text_cfg)) = Model::read(text.checkpoint()) else {
        panic!("not detected")
    };
    let Ok(Model::ZImage(dit_cfg)) = Model::read(dit.checkpoint()) else {
        panic!("not detected")
    };
    for run in ["run_a", "run_b", "run_c"] {
        let io = Fixture::open(&format!("scenes-tiny/{run}.safetensors"));
        let (shape, ids) = io.ids("input_ids");
        let ids = Tensor::ids(shape, &ids);
        compare(
            &format!("{run} text"),
            &text,
            &[("ids", &ids)],
            |g, v| Ok(one("prompt_embeds", qwen3::encoder(g, &text, &text_cfg, v[0])?)),
            |name| (name == "prompt_embeds").then(|| io.tensor(name)),
        );
        // Times of noise level 1 are 0.
        let t = Tensor::new([1], vec![(1000.0 - io.tensor("timesteps").data[0]) / 1000.0]);
        let x = squeezed(io.tensor("latents_init"), 0);
        compare_z_image(
            &format!("{run} transformer"),
            &dit,
            &dit_cfg,
            [x, t, io.tensor("prompt_embeds")],
            |name| (name == "out").then(|| io.tensor("model_out.0")),
        );
    }
}

#[test]
fn scenes_tiny_autoencoder_equals_diffusers() {
    let w = part("vae");
    let Ok(Model::AutoencoderKl(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let io = Fixture::open("scenes-tiny/vae.safetensors");
    let half = |name: &str, i: usize| {
        let all = io.tensor(name);
        let size = all.data.len() / 2;
        let mut shape = all.ty.shape.to_vec();
        shape[0] = 1;
        Tensor::new(shape, all.data[i * size..][..size].to_vec())
    };
    for i in 0..2 {
        compare(
            &format!("scenes-tiny encode {i}"),
            &w,
            &[("image", &half("image", i))],
            |g, v| encode(g, &w, &cfg, v[0]),
            |name| matches!(name, "mean" | "logvar").then(|| half(name, i)),
        );
        compare(
            &format!("scenes-tiny decode {i}"),
            &w,
            &[("latent", &half("mean", i))],
            |g, v| Ok(one("decoded", autoencoder_kl::decoder(g, &w, &cfg, v[0])?)),
            |name| (name == "decoded").then(|| half(name, i)),
        );
    }
}

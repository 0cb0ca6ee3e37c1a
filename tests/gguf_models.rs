//! Whole models on packed weights from GGUF files, on the CPU and on the GPU.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/gguf.rs"]
mod written;

use fixtures::{Fixture, weights};
use pollster::block_on;
use rotile::backend::Device;
use rotile::checkpoint::{Checkpoint, Layout, Weights};
use rotile::cpu::Cpu;
use rotile::engine::{Inspection, Target};
use rotile::graph::{Graph, Value};
use rotile::models::{Model, qwen3, z_image};
use rotile::plan::{Plan, Policy};
use rotile::tensor::{DType, Tensor, TensorType};
use std::sync::Arc;
use support::relative_rms;
use written::File;

/// Largest relative RMS error of an output: the packed values are the same, so only the order of sums differs.
const CPU: f64 = 2e-5;
const GPU: f64 = 2e-4;
const GPU_F16: f64 = 5e-3;

/// Runs a graph with one output on every device and in every type of activations; calls `check` with a label, the limit and the result.
fn run(
    w: &Weights,
    inputs: &[(&str, &Tensor)],
    build: impl Fn(&mut Graph, &[Value]) -> Value,
    mut check: impl FnMut(&str, f64, &Tensor),
) {
    let mut runs = vec![(Device::Cpu(Cpu::default()), DType::F32, CPU)];
    if let Some(gpu) = support::gpu() {
        let device = Device::Gpu(gpu.clone());
        let limit = |dtype| if dtype == DType::F16 { GPU_F16 } else { GPU };
        runs.extend(device.dtypes().iter().map(|&d| (device.clone(), d, limit(d))));
    }
    for (device, dtype, limit) in runs {
        let mut g = Graph::new(dtype);
        let values: Vec<_> = inputs.iter().map(|(name, t)| g.input(name, t.ty.clone())).collect();
        let output = build(&mut g, &values);
        g.output("out", output);
        let mut session = block_on(device.prepare(&g, w, &Policy::default())).unwrap_or_else(|e| panic!("{e}"));
        let result = block_on(session.run(inputs)).unwrap_or_else(|e| panic!("{e}"));
        check(&format!("{dtype} on {}", device.name()), limit, &result[0]);
    }
}

#[test]
fn z_image_equals_diffusers_with_decoded_weights() {
    let w = weights("gguf/zimage_tiny.gguf");
    let checkpoint = w.checkpoint();
    assert_eq!(checkpoint.layout(), Layout::ZImage);
    assert_eq!(checkpoint.metadata().and_then(|m| m.architecture()), Some("lumina2"));
    let Ok(Model::ZImage(cfg)) = Model::read(checkpoint) else {
        panic!("not detected")
    };
    let io = Fixture::open("gguf/zimage_tiny_io.safetensors");
    let mut x = io.tensor("x");
    x.ty.shape = vec![16, 8, 12].into();
    let (t, caption, want) = (io.tensor("t"), io.tensor("cap_feats"), io.tensor("out"));
    let apart = relative_rms(&io.tensor("out_unquantized").data, &want.data);
    run(
        &w,
        &[("latent", &x), ("t", &t), ("caption", &caption)],
        |g, v| z_image::transformer(g, &w, &cfg, v[0], v[1], v[2]).unwrap_or_else(|e| panic!("{e}")),
        |label, limit, got| {
            let error = relative_rms(&got.data, &want.data);
            println!("{label}: relative RMS {error:.1e}; the weights before they were quantised are {apart:.1e} away");
            assert!(error <= limit && limit < apart / 9.0, "{label}: {error}");
        },
    );
}

/// llama.cpp's names for the tensors of a Qwen3, from transformers'.
fn llama_name(name: &str) -> String {
    let words = [
        ("embed_tokens.", "token_embd."),
        ("layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let name = words
        .iter()
        .fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    match name.strip_prefix("norm.") {
        Some(rest) => format!("output_norm.{rest}"),
        None => name,
    }
}

/// The fixture's Qwen3 as llama.cpp would write it, with matrices of the types that `pick` says.
fn llama_file(pick: impl Fn(&str, &[usize]) -> DType) -> File {
    let checkpoint = weights("text_qwen3").checkpoint().clone();
    let number = |n: u32| n.to_le_bytes();
    let mut file = File::new()
        .with_text("general.architecture", "qwen3")
        .with("qwen3.block_count", 4, number(4))
        .with("qwen3.embedding_length", 4, number(64))
        .with("qwen3.feed_forward_length", 4, number(256))
        .with("qwen3.attention.head_count", 4, number(8))
        .with("qwen3.attention.head_count_kv", 4, number(2))
        .with("qwen3.attention.key_length", 4, number(16))
        .with("qwen3.attention.layer_norm_rms_epsilon", 6, 1e-6f32.to_le_bytes())
        .with("qwen3.rope.freq_base", 6, 1e6f32.to_le_bytes());
    for info in checkpoint.tensors() {
        let values = checkpoint.load(&info.name, DType::F32).expect("values").data;
        let dtype = if info.shape.len() == 1 {
            DType::F32
        } else {
            pick(&info.name, &info.shape)
        };
        file = file.values(&llama_name(&info.name), dtype, &info.shape, &values);
    }
    file
}

fn opened(file: &File) -> (Weights, qwen3::Config) {
    let checkpoint = Checkpoint::from_bytes("qwen3.gguf", file.bytes().into()).unwrap_or_else(|e| panic!("{e}"));
    let w = Weights::new(Arc::new(checkpoint));
    let Ok(Model::Qwen3(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    (w, cfg)
}

fn encoder(w: &Weights, cfg: &qwen3::Config, g: &mut Graph, ids: Value) -> Value {
    qwen3::encoder(g, w, cfg, ids).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn names_of_llama_cpp_are_those_of_transformers() {
    let (w, cfg) = opened(&llama_file(|_, _| DType::BF16));
    assert_eq!(w.checkpoint().layout(), Layout::Llama);
    let io = Fixture::open("text_qwen3/io.safetensors");
    let want = io.tensor("zimage_prompt_embeds.0");
    let tokens = want.ty.shape[0];
    let ids = Tensor::ids([tokens], &io.ids("input_ids").1[..tokens]);
    run(
        &w,
        &[("ids", &ids)],
        |g, v| encoder(&w, &cfg, g, v[0]),
        |label, limit, got| {
            let error = relative_rms(&got.data, &want.data);
            println!("{label}: relative RMS {error:.1e}");
            assert!(error <= limit, "{label}: {error}");
        },
    );
}

/// Every type of blocks in one model, against the same model with what they decode to.
#[test]
fn packed_and_decoded_models_agree() {
    const WIDE: [DType; 5] = [DType::Q2K, DType::Q3K, DType::Q4K, DType::Q5K, DType::Q6K];
    const NARROW: [DType; 5] = [DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0];
    let pick = |name: &str, shape: &[usize]| {
        let number = name.bytes().map(usize::from).sum::<usize>() % 5;
        if shape[1].is_multiple_of(256) {
            WIDE[number]
        } else {
            NARROW[number]
        }
    };
    let packed = llama_file(pick);
    let mut decoded = packed.clone();
    for tensor in &mut decoded.tensors {
        if let Some(dtype) = DType::BLOCKS.into_iter().find(|&d| written::number(d) == tensor.number) {
            let values = rotile::quant::decode(dtype, &tensor.bytes);
            tensor.bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            tensor.number = 0;
        }
    }
    let [(w, cfg), (plain, _)] = [&packed, &decoded].map(opened);
    let ids = Tensor::ids([9], &[0, 3, 504, 17, 200, 201, 202, 7, 7]);
    let mut want = Vec::new();
    run(
        &plain,
        &[("ids", &ids)],
        |g, v| encoder(&plain, &cfg, g, v[0]),
        |_, _, t| want.push(t.clone()),
    );
    let mut results = want.into_iter();
    run(
        &w,
        &[("ids", &ids)],
        |g, v| encoder(&w, &cfg, g, v[0]),
        |label, limit, got| {
            let error = relative_rms(&got.data, &results.next().expect("as many").data);
            println!("{label}: relative RMS {error:.1e}");
            assert!(error <= limit, "{label}: {error}");
        },
    );
}

/// A table of 150,000 words is never decoded: what the plans and the devices hold for it are its blocks.
#[test]
fn tables_and_matrices_stay_packed() {
    let file = llama_file(|name, shape| match (name, shape[1] % 256) {
        ("embed_tokens.weight", _) => DType::Q5_0,
        (_, 0) => DType::Q6K,
        _ => DType::Q4_0,
    });
    let (w, cfg) = opened(&file);
    let mut g = Graph::new(DType::F32);
    let ids = g.input("ids", TensorType::new(DType::U32, [5]));
    let output = encoder(&w, &cfg, &mut g, ids);
    g.output("out", output);
    let plan = Plan::cpu(&g);
    let used = |name: &str| plan.weights.iter().any(|n| n.name == name);
    let words = |bytes: usize| bytes.next_multiple_of(4) as u64;
    let stored = w.checkpoint().tensors().filter(|info| used(&info.name));
    let want: u64 = stored.map(|info| words(info.byte_len())).sum();
    let table = plan
        .weights
        .iter()
        .find(|n| n.name == "embed_tokens.weight")
        .expect("used");
    assert_eq!(table.ty, TensorType::new(DType::Q5_0, [505, 64]));

    let mut devices = vec![Device::Cpu(Cpu::default())];
    devices.extend(support::gpu().map(|gpu| Device::Gpu(gpu.clone())));
    for device in devices {
        let session = block_on(device.prepare(&g, &w, &Policy::default())).expect("prepares");
        let (planned, held) = (session.planned().weights, session.allocated().weights);
        assert_eq!(planned, held, "{}", device.name());
        println!("{}: {held} bytes of weights, {want} in the file", device.name());
        // Blocks may be padded to whole words.
        assert_eq!(held, want, "{}", device.name());
    }
}

#[test]
fn inspection_shows_types_and_packed_bytes() {
    let checkpoint = weights("gguf/zimage_tiny.gguf").checkpoint().clone();
    let target = |gpu| Target {
        width: 64,
        height: 64,
        dtype: DType::F32,
        gpu,
        policy: Policy::default(),
        vae: rotile::diffusion::vae::VaeOptions::default(),
    };
    let baseline = rotile::gpu::Caps::baseline();
    for gpu in [None, Some(baseline)] {
        let cpu = gpu.is_none();
        let seen = Inspection::of(&checkpoint, &target(gpu)).expect("a Z-Image");
        let dtype = |name: &str| seen.tensors.iter().find(|t| t.name == name).map(|t| t.dtype.as_str());
        assert_eq!(dtype("layers.0.attention.to_q.weight"), Some("Q8_0"));
        assert_eq!(dtype("layers.0.feed_forward.w2.weight"), Some("Q4_K"));
        assert_eq!(dtype("layers.0.attention_norm1.weight"), Some("F32"));
        // The CPU widens F16 and BF16, the GPU nothing.
        let most = if cpu { seen.file_bytes * 3 / 2 } else { seen.file_bytes };
        assert!(
            seen.plans[0].weights <= most,
            "{}, {}",
            seen.plans[0].weights,
            seen.file_bytes
        );
    }
}

/// stable-diffusion.cpp keeps the prefix of whole models and writes no metadata; llama-quantize drops outer extents of 1.
#[test]
fn files_of_other_tools_hold_the_same() {
    let checkpoint = weights("gguf/zimage_tiny.gguf").checkpoint().clone();
    let mut file = File::new();
    for (name, shape) in checkpoint.tensors().map(|info| (&info.name, &info.shape)) {
        let (dtype, bytes) = checkpoint.raw(name).expect("there");
        let shape = if name.ends_with("pad_token") {
            &shape[1..]
        } else {
            &shape[..]
        };
        // The fused rows are made of the split ones.
        let stored = name
            .replace(".norm_q.", ".q_norm.")
            .replace(".norm_k.", ".k_norm.")
            .replace(".to_out.0.", ".out.")
            .replace("all_x_embedder.2-1.", "x_embedder.")
            .replace("all_final_layer.2-1.", "final_layer.");
        let stored = format!("model.diffusion_model.{stored}");
        let number = written::number(dtype);
        if let Some(block) = stored.strip_suffix(".to_q.weight") {
            let rest = ["to_k", "to_v"].map(|part| name.replace("to_q", part));
            let rest = rest.map(|name| checkpoint.raw(&name).expect("there").1.into_owned());
            let shape = [3 * shape[0], shape[1]];
            file = file.tensor(
                &format!("{block}.qkv.weight"),
                number,
                &shape,
                [&bytes[..], &rest.concat()].concat(),
            );
        } else if !stored.ends_with(".to_k.weight") && !stored.ends_with(".to_v.weight") {
            file = file.tensor(&stored, number, shape, bytes.into_owned());
        }
    }
    let other = Checkpoint::from_bytes("sd.gguf", file.bytes().into()).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(
        (other.layout(), other.tensors().len()),
        (Layout::ZImage, checkpoint.tensors().len())
    );
    for info in checkpoint.tensors() {
        let same = other.info(&info.name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((same.dtype, &same.shape), (info.dtype, &info.shape), "{}", info.name);
        assert!(other.raw(&info.name).expect("there") == checkpoint.raw(&info.name).expect("there"));
    }
}

/// A `config.json` beside the file counts more than its metadata; metadata that contradicts the tensors is refused.
#[test]
fn configs_are_those_of_the_folder_or_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut file = llama_file(|_, _| DType::F16);
    let write = |file: &File| std::fs::write(folder.path().join("any.gguf"), file.bytes()).expect("written");
    let read = || Model::read(&Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{e}")));
    let theta = || match read() {
        Ok(Model::Qwen3(cfg)) => cfg.rope_theta,
        other => panic!("{other:?}"),
    };
    let key = |file: &File, name: &str| file.metadata.iter().position(|(key, ..)| key == name).expect("there");
    let at = key(&file, "qwen3.rope.freq_base");
    file.metadata[at].2 = 5e5f32.to_le_bytes().to_vec();
    write(&file);
    assert_eq!(theta(), 5e5);
    let config = folder.path().join("config.json");
    std::fs::write(&config, r#"{"rope_theta": 10000.0}"#).expect("written");
    assert_eq!(theta(), 1e4);
    std::fs::remove_file(config).expect("removed");
    let at = key(&file, "qwen3.attention.head_count");
    file.metadata[at].2 = 7u32.to_le_bytes().to_vec();
    write(&file);
    let error = read().expect_err("seven heads in a matrix for eight");
    println!("{error}");
    assert!(error.to_string().contains("num_attention_heads"), "{error}");
}

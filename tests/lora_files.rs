//! Adapter files as trainers write them: names, fused layers, errors, and what the engine and the program say of them.

#![cfg(feature = "scenes-tiny")]

#[path = "support/adapted.rs"]
mod adapted;
#[path = "support/adapters.rs"]
mod adapters;
#[path = "support/fixtures.rs"]
mod fixtures;
#[path = "support/model.rs"]
mod model;
mod support;

use adapted::{LIMIT, decode, denoise, devices, packed, random, refused, run, single, values, with, worst};
use adapters::{Kind, Made, adapter, file_of, from_tensors};
use fixtures::path;
use rotile::adapter::{Adapter, Apply, Status};
use rotile::checkpoint::Checkpoint;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Request, Source};
use rotile::error::AdapterError;
use rotile::models::{Role, Vae};
use rotile::ops::{Act, Epilogue};
use rotile::tensor::DType;
use std::process::Command;
use std::sync::Arc;

/// Where weights, or differences, are rounded to half precision: a few times the 2^-11 of one value.
const HALF: f64 = 2e-3;
const LORA: Kind = Kind::Lora { rank: 4, alpha: None };

/// The two matrices of a LoRA under these names.
fn pair(made: &Made, down: &str, up: &str) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let named = |name: &str, i: usize| (name.to_owned(), made.fields[i].1.clone(), made.fields[i].2.clone());
    vec![named(down, 0), named(up, 1)]
}

#[test]
fn every_naming_scheme_finds_its_layer() {
    let transformer = single("transformer", &[]);
    let text = single("text_encoder", &[]);
    let vae = single("vae", &[]);
    let parts = || {
        [
            (Role::Transformer, transformer.clone()),
            (Role::TextEncoder, text.clone()),
            (Role::Autoencoder, vae.clone()),
        ]
    };
    const TO_Q: &str = "layers.0.attention.to_q.weight";
    const TO_OUT: &str = "layers.0.attention.to_out.0.weight";
    const UP: &str = "layers.1.mlp.up_proj.weight";
    let table = [
        (
            "lora_unet_layers_0_attention_to_q.lora_down.weight",
            "lora_unet_layers_0_attention_to_q.lora_up.weight",
            TO_Q,
        ),
        (
            "lora_unet_layers_0_attention_to_out_0.lora_down.weight",
            "lora_unet_layers_0_attention_to_out_0.lora_up.weight",
            TO_OUT,
        ),
        (
            "lora_unet_layers_0_attention_out.lora_down.weight",
            "lora_unet_layers_0_attention_out.lora_up.weight",
            TO_OUT,
        ),
        (
            "lora_te_model_layers_1_mlp_up_proj.lora_down.weight",
            "lora_te_model_layers_1_mlp_up_proj.lora_up.weight",
            UP,
        ),
        (
            "lora_te1_layers_1_mlp_up_proj.lora_down.weight",
            "lora_te1_layers_1_mlp_up_proj.lora_up.weight",
            UP,
        ),
        (
            "transformer.layers.0.attention.to_q.lora_A.weight",
            "transformer.layers.0.attention.to_q.lora_B.weight",
            TO_Q,
        ),
        (
            "transformer.layers.0.attention.to_q.lora_A.default.weight",
            "transformer.layers.0.attention.to_q.lora_B.default.weight",
            TO_Q,
        ),
        (
            "base_model.model.layers.0.attention.to_q.lora_A.weight",
            "base_model.model.layers.0.attention.to_q.lora_B.weight",
            TO_Q,
        ),
        (
            "text_encoder.layers.1.mlp.up_proj.lora_A.weight",
            "text_encoder.layers.1.mlp.up_proj.lora_B.weight",
            UP,
        ),
        (
            "text_encoder.model.layers.1.mlp.up_proj.lora_linear_layer.down.weight",
            "text_encoder.model.layers.1.mlp.up_proj.lora_linear_layer.up.weight",
            UP,
        ),
        (
            "transformer.layers.0.attention.to_q.lora_linear_layer.down.weight",
            "transformer.layers.0.attention.to_q.lora_linear_layer.up.weight",
            TO_Q,
        ),
        (
            "unet.layers.0.attention.to_q.lora.down.weight",
            "unet.layers.0.attention.to_q.lora.up.weight",
            TO_Q,
        ),
        (
            "transformer.layers.0.attention.processor.to_q_lora.down.weight",
            "transformer.layers.0.attention.processor.to_q_lora.up.weight",
            TO_Q,
        ),
        (
            "transformer.layers.0.attention.processor.to_out_lora.down.weight",
            "transformer.layers.0.attention.processor.to_out_lora.up.weight",
            TO_OUT,
        ),
        (
            "diffusion_model.layers.0.attention.to_q.lora_A.weight",
            "diffusion_model.layers.0.attention.to_q.lora_B.weight",
            TO_Q,
        ),
        (
            "model.diffusion_model.layers.0.attention.out.lora_A.weight",
            "model.diffusion_model.layers.0.attention.out.lora_B.weight",
            TO_OUT,
        ),
        (
            "layers.0.attention.to_q.lora_A.weight",
            "layers.0.attention.to_q.lora_B.weight",
            TO_Q,
        ),
        (
            "model.layers.1.mlp.up_proj.lora_A.weight",
            "model.layers.1.mlp.up_proj.lora_B.weight",
            UP,
        ),
    ];
    for (down, up, target) in table {
        let checkpoint = if target == UP { &text } else { &transformer };
        let shape = values(checkpoint, target).ty.shape;
        let made = Made::new(LORA, &shape, target);
        let file = from_tensors("lora", pair(&made, down, up), 1.0);
        let mut parts = parts();
        let report = rotile::adapter::apply(&mut parts, &[file], Apply::Immediately, &packed);
        let report = report.unwrap_or_else(|e| panic!("{down}: {e}"));
        assert_eq!(report.files[0].lines.len(), 1, "{down}");
        assert_eq!(report.files[0].lines[0].targets, [target], "{down}");
        let changed = if target == UP { &parts[1].1 } else { &parts[0].1 };
        let own = values(checkpoint, target);
        let want: Vec<f32> = made
            .change(&own.data, 1.0)
            .iter()
            .zip(&own.data)
            .map(|(c, &v)| (f64::from(v) + c) as f32)
            .collect();
        assert!(worst(&values(changed, target).data, &want) < 1e-6, "{down}");
    }
}

/// One LoRA on queries, keys and values together, whose rows the model keeps apart.
#[test]
fn fused_layers_are_cut_by_rows() {
    let open = |name: &str| {
        let folder = path("dit_zimage");
        let config = std::fs::read(folder.join("config.json")).expect("the config");
        let bytes = std::fs::read(folder.join(name)).expect("the file");
        let checkpoint = Checkpoint::from_bytes(name, bytes.into()).expect("a checkpoint");
        Arc::new(checkpoint.with_config(Some(serde_json::from_slice(&config).expect("JSON"))))
    };
    let files = [
        open("diffusion_pytorch_model.safetensors"),
        open("original.safetensors"),
    ];
    let width = values(&files[0], "layers.0.attention.to_q.weight").ty.shape[1];
    let kinds = [
        (LORA, LIMIT),
        (Kind::Dora { rank: 2, rows: true }, LIMIT),
        // The difference itself is kept in the weights' half precision, also on the CPU.
        (Kind::Dora { rank: 2, rows: false }, 2.0f64.powi(-11)),
        (Kind::Lokr, LIMIT),
        (Kind::Diff, 2.0f64.powi(-11)),
    ];
    for (kind, limit) in kinds {
        let made = Made::new(kind, &[3 * width, width], "qkv");
        let lora = adapter("lora", &[("diffusion_model.layers.0.attention.qkv", &made)], 1.0);
        let parts = ["to_q", "to_k", "to_v"].map(|part| format!("layers.0.attention.{part}.weight"));
        for base in &files {
            let (new, report) = with(base, Role::Transformer, std::slice::from_ref(&lora), Apply::Immediately);
            assert_eq!(report.files[0].lines[0].targets, parts);
            let own: Vec<f32> = parts.iter().flat_map(|part| values(base, part).data).collect();
            let got: Vec<f32> = parts.iter().flat_map(|part| values(&new, part).data).collect();
            let change = made.change(&own, 1.0);
            let want: Vec<f32> = own
                .iter()
                .zip(change)
                .map(|(&v, c)| (f64::from(v) + c) as f32)
                .collect();
            assert!(worst(&got, &want) < 1e-6, "{kind:?}");
            for device in devices() {
                // On the GPU merged weights are rounded to the type of the file; the CPU keeps them whole.
                let limit = if device.caps().is_some() { HALF } else { limit };
                let merged = denoise(&device, &new);
                assert!(worst(&denoise(&device, base), &merged) > 1e-3, "{kind:?}");
                let (runtime, _) = with(base, Role::Transformer, std::slice::from_ref(&lora), Apply::Runtime);
                let error = worst(&denoise(&device, &runtime), &merged);
                eprintln!("{kind:?}, {}: {error:.1e}", device.name());
                assert!(error < limit, "{kind:?}: {error:.1e}");
            }
        }
    }
}

/// Convolutions without a bias, and those whose weights have an axis of time, of which one slice is used.
#[test]
fn other_autoencoders() {
    for (fixture, module) in [
        ("vae_taesd", "decoder.layers.6"),
        ("vae_qwenimage", "decoder.up_blocks.0.resnets.0.conv1"),
    ] {
        let base = Arc::new(Checkpoint::open(path(fixture)).unwrap_or_else(|e| panic!("{e}")));
        let weight = format!("{module}.weight");
        let own = values(&base, &weight);
        // The definitions know windows of any shape.
        let made = Made::new(Kind::Diff, &own.ty.shape, module);
        let lora = adapter("lora", &[(&format!("vae.{module}"), &made)], 1.0);
        for device in devices() {
            let plain = decode(&device, &base);
            let mut pictures = Vec::new();
            for how in [Apply::Immediately, Apply::Runtime] {
                let (new, _) = with(&base, Role::Autoencoder, std::slice::from_ref(&lora), how);
                if how == Apply::Immediately {
                    let change = made.change(&own.data, 1.0);
                    let want: Vec<f32> = own.data.iter().zip(change).map(|(&v, c)| v + c as f32).collect();
                    assert_eq!(values(&new, &weight).data, want);
                }
                pictures.push(decode(&device, &new));
            }
            assert!(worst(&plain, &pictures[0]) > 1e-3, "{fixture}");
            let limit = if device.caps().is_some() { HALF } else { LIMIT };
            assert!(worst(&pictures[1], &pictures[0]) < limit, "{fixture}");
        }
    }
}

/// Beside half-precision weights a dense difference is kept in half precision too, by rows of any size.
#[test]
fn dense_differences_in_half_precision() {
    let base = Arc::new(Checkpoint::open(fixtures::scenes("transformer")).unwrap_or_else(|e| panic!("{e}")));
    let mut made = Made::new(Kind::Diff, &[256, 256], "diff");
    // Far below and above what F16 holds as such.
    made.fields[0].2[..256].iter_mut().for_each(|v| *v *= 1e-7);
    made.fields[0].2[256..512].iter_mut().for_each(|v| *v *= 1e7);
    made.fields[0].2[512..768].fill(0.0);
    let lora = adapter("lora", &[("layers.0.attention.to_q", &made)], 1.0);
    let (new, _) = with(&base, Role::Transformer, &[lora], Apply::Runtime);
    let x = random("x", &[3, 256]);
    let own = values(&base, "layers.0.attention.to_q.weight").data;
    let weight: Vec<f64> = own
        .iter()
        .zip(made.change(&own, 1.0))
        .map(|(&v, c)| f64::from(v) + c)
        .collect();
    for device in devices() {
        let got = run(&device, &new, &[("x", &x)], |g, w, v| {
            let w = w.at("layers.0.attention.to_q");
            rotile::models::blocks::linear(g, &w, v[0], 256, Default::default())
        });
        for j in 0..256 {
            let column = |i: usize| -> f64 {
                (0..256)
                    .map(|k| f64::from(x.data[i * 256 + k]) * weight[j * 256 + k])
                    .sum()
            };
            let want: Vec<f32> = (0..3).map(|i| column(i) as f32).collect();
            let got: Vec<f32> = (0..3).map(|i| got[i * 256 + j]).collect();
            assert!(worst(&got, &want) < 2e-3, "row {j}: {got:?} {want:?}");
        }
    }
}

/// All that may follow a sum, after the adapters' part of it, in both types of activations.
#[test]
fn activations_gates_and_residuals_come_last() {
    const NAME: &str = "layers.0.adaLN_modulation.0";
    const N: usize = 1024;
    let base = single("transformer", &[]);
    let own = values(&base, &format!("{NAME}.weight")).data;
    let bias = values(&base, &format!("{NAME}.bias")).data;
    let (x, residual, gate) = (
        random("x", &[3, 256]),
        random("residual", &[3, N]),
        random("gate", &[N]),
    );
    let inputs = [("x", &x), ("residual", &residual), ("gate", &gate)];
    for kind in [LORA, Kind::Dora { rank: 2, rows: true }, Kind::LokrLow { rank: 2 }] {
        let made = Made::new(kind, &[N, 256], "x");
        let (new, _) = with(
            &base,
            Role::Transformer,
            &[adapter("lora", &[(NAME, &made)], 1.0)],
            Apply::Runtime,
        );
        let change = made.change(&own, 1.0);
        let want = (0..3 * N).map(|at| {
            let (i, j) = (at / N, at % N);
            let weight = |k: usize| f64::from(own[j * 256 + k]) + change[j * 256 + k];
            let sum: f64 = (0..256).map(|k| f64::from(x.data[i * 256 + k]) * weight(k)).sum();
            let v = sum + f64::from(bias[j]);
            (f64::from(residual.data[at]) + f64::from(gate.data[j]) * v / (1.0 + (-v).exp())) as f32
        });
        let want: Vec<f32> = want.collect();
        for device in devices() {
            for &dtype in device.dtypes() {
                let got = run(&device, &new, &inputs, |g, w, v| {
                    let v = v.iter().map(|&v| g.cast(v, dtype)).collect::<Result<Vec<_>, _>>()?;
                    let epilogue = Epilogue::default().act(Act::Silu).residual(v[1]).gate(v[2]);
                    let y = rotile::models::blocks::linear_bias(g, &w.at(NAME), v[0], N, epilogue)?;
                    Ok(g.cast(y, DType::F32)?)
                });
                let limit = if dtype == DType::F16 { 5e-3 } else { LIMIT };
                let error = worst(&got, &want);
                eprintln!("{kind:?}, {dtype} on {}: {error:.1e}", device.name());
                assert!(error <= limit, "{kind:?}, {dtype} on {}: {error:.1e}", device.name());
            }
        }
    }
}

/// PEFT's own files have no alphas: its settings lie beside them.
#[test]
fn alphas_of_peft() {
    let base = single("transformer", &[]);
    let folder = tempfile::tempdir().expect("a folder");
    let made = Made::new(LORA, &[256, 256], "peft");
    let name = "base_model.model.layers.0.attention.to_q";
    let tensors = pair(
        &made,
        &format!("{name}.lora_A.weight"),
        &format!("{name}.lora_B.weight"),
    );
    let file = folder.path().join("adapter_model.safetensors");
    std::fs::write(&file, file_of(tensors)).expect("written");
    let own = values(&base, "layers.0.attention.to_q.weight").data;
    let change = |config: Option<&str>| {
        if let Some(config) = config {
            std::fs::write(folder.path().join("adapter_config.json"), config).expect("written");
        }
        let adapter = Adapter::open(&file, 1.0).unwrap_or_else(|e| panic!("{e}"));
        let (new, _) = with(&base, Role::Transformer, &[adapter], Apply::Immediately);
        let new = values(&new, "layers.0.attention.to_q.weight").data;
        new.iter().zip(&own).map(|(n, o)| n - o).collect::<Vec<_>>()
    };
    let want = |scale: f64| made.change(&own, scale).iter().map(|&v| v as f32).collect::<Vec<_>>();
    assert!(worst(&change(None), &want(1.0)) < 1e-5);
    assert!(worst(&change(Some(r#"{"r": 4, "lora_alpha": 2}"#)), &want(0.5)) < 1e-5);
    assert!(
        worst(
            &change(Some(r#"{"r": 4, "lora_alpha": 6, "use_rslora": true}"#)),
            &want(3.0)
        ) < 1e-5
    );
}

/// A whole model on blocks of a GGUF file: `auto` adds to the output of layers what the same weights in `f32` have merged.
#[test]
fn packed_models_take_adapters_at_run_time() {
    let packed = Arc::new(Checkpoint::open(path("gguf/zimage_tiny.gguf")).unwrap_or_else(|e| panic!("{e}")));
    let decoded = |changes: &[(String, Vec<f64>)]| {
        let tensors = packed.tensors().map(|info| {
            let mut data = values(&packed, &info.name).data;
            for (_, change) in changes.iter().filter(|(name, _)| *name == info.name) {
                data.iter_mut()
                    .zip(change)
                    .for_each(|(v, c)| *v = (f64::from(*v) + c) as f32);
            }
            (info.name.clone(), info.shape.to_vec(), data)
        });
        let file = file_of(tensors.collect());
        let checkpoint = Checkpoint::from_bytes("decoded", file.into()).expect("a checkpoint");
        Arc::new(checkpoint.with_config(packed.config().cloned()))
    };
    const MODULES: [&str; 2] = ["layers.0.attention.to_k", "layers.0.feed_forward.w2"];
    for (kind, limit) in [
        (LORA, LIMIT),
        (Kind::Dora { rank: 2, rows: true }, LIMIT),
        (Kind::Loha { rank: 2 }, LIMIT),
        (Kind::LokrLow { rank: 2 }, LIMIT),
        // Kept in half precision beside quantised weights.
        (Kind::Diff, 2.0f64.powi(-11)),
        (Kind::Dora { rank: 2, rows: false }, 2.0f64.powi(-11)),
    ] {
        let made = MODULES.map(|module| {
            let weight = values(&packed, &format!("{module}.weight"));
            (module, Made::new(kind, &weight.ty.shape, module), weight.data)
        });
        let change = made
            .iter()
            .map(|(module, made, own)| (format!("{module}.weight"), made.change(own, 1.0)));
        let want = decoded(&change.collect::<Vec<_>>());
        let modules: Vec<_> = made.iter().map(|(module, made, _)| (*module, made)).collect();
        let lora = adapter("lora", &modules, 1.0);
        let (new, report) = with(&packed, Role::Transformer, std::slice::from_ref(&lora), Apply::Auto);
        assert_eq!(report.files[0].count(Status::Runtime), 2, "{kind:?}");
        for device in devices() {
            let want = denoise(&device, &want);
            let effect = worst(&denoise(&device, &packed), &want);
            let error = worst(&denoise(&device, &new), &want);
            eprintln!("{kind:?} on {}: {error:.1e}, effect {effect:.1e}", device.name());
            assert!(
                effect > 1e-2 && error < limit,
                "{kind:?} on {}: {error:.1e}, effect {effect:.1e}",
                device.name()
            );
        }
        let (_, report) = with(&packed, Role::Transformer, &[lora], Apply::Immediately);
        assert_eq!(report.files[0].count(Status::Skipped), 2, "{kind:?}");
        assert_eq!(report.how(), "skipped");
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let base = single("transformer", &[]);
    let module = "layers.0.attention.to_q";
    let tensor = |name: &str, shape: &[usize]| (format!("{module}.{name}"), shape.to_vec(), random(name, shape).data);
    let lora = |down: &[usize], up: &[usize]| vec![tensor("lora_down.weight", down), tensor("lora_up.weight", up)];
    let cases = [
        (lora(&[4, 255], &[256, 4]), "lora_down.weight` has shape [4, 255]"),
        (lora(&[4, 256], &[128, 4]), "lora_up.weight` has shape [128, 4]"),
        (lora(&[4, 256], &[256, 3]), "lora_down.weight` has shape [4, 256]"),
        (vec![tensor("diff", &[256, 255])], "diff` has shape [256, 255]"),
        (vec![tensor("diff_b", &[255])], "diff_b` has shape [255]"),
        (
            vec![tensor("lokr_w1", &[16, 16]), tensor("lokr_w2", &[16, 15])],
            "lokr_w2` has shape [16, 15]",
        ),
        (
            vec![tensor("lokr_w1", &[15, 16]), tensor("lokr_w2", &[17, 16])],
            "lokr_w2` has shape [17, 16]",
        ),
        (
            vec![
                tensor("hada_w1_a", &[256, 4]),
                tensor("hada_w1_b", &[4, 256]),
                tensor("hada_w2_a", &[256, 4]),
                tensor("hada_w2_b", &[4, 200]),
            ],
            "hada_w2_b` has shape [4, 200]",
        ),
        (
            [lora(&[4, 256], &[256, 4]), vec![tensor("dora_scale", &[7])]].concat(),
            "dora_scale` has shape [7]",
        ),
        (
            [lora(&[4, 256], &[256, 4]), vec![tensor("alpha", &[2])]].concat(),
            "alpha` has shape [2]",
        ),
    ];
    for (tensors, message) in cases {
        let error = refused(
            &base,
            Role::Transformer,
            from_tensors("style.safetensors", tensors, 1.0),
        );
        assert!(matches!(error, AdapterError::Shape { .. }), "{error}");
        let text = error.to_string();
        for part in ["style.safetensors", message, module, "[256, 256]"] {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
    let half = from_tensors("half", vec![tensor("lora_up.weight", &[256, 4])], 1.0);
    let error = refused(&base, Role::Transformer, half).to_string();
    assert!(error.contains("lacks its part Down"), "{error}");
    let mut poisoned = lora(&[4, 256], &[256, 4]);
    poisoned[0].2[77] = f32::NAN;
    let error = refused(&base, Role::Transformer, from_tensors("bad", poisoned, 1.0)).to_string();
    assert!(error.contains("NaN or infinity at element 77"), "{error}");
    let weight = Adapter::from_bytes("x", file_of(lora(&[4, 256], &[256, 4])).into(), f32::NAN);
    assert!(matches!(weight, Err(AdapterError::Weight { .. })));
}

#[test]
fn what_has_no_place_is_listed_and_nothing_at_all_is_an_error() {
    let base = single("transformer", &[]);
    let made = Made::new(LORA, &[256, 256], "x");
    let mut tensors = pair(
        &made,
        "transformer.layers.0.attention.to_q.lora_A.weight",
        "transformer.layers.0.attention.to_q.lora_B.weight",
    );
    tensors.extend(pair(
        &made,
        "transformer.layers.99.attention.to_q.lora_A.weight",
        "transformer.layers.99.attention.to_q.lora_B.weight",
    ));
    // Second text encoders are of other pipelines.
    tensors.extend(pair(
        &made,
        "text_encoder_2.layers.0.attention.to_q.lora_A.weight",
        "text_encoder_2.layers.0.attention.to_q.lora_B.weight",
    ));
    tensors.push(("some.other.tensor".into(), vec![1], vec![1.0]));
    let (_, report) = with(
        &base,
        Role::Transformer,
        &[from_tensors("mixed", tensors.clone(), 1.0)],
        Apply::Auto,
    );
    let file = &report.files[0];
    assert_eq!(
        (file.lines.len(), file.matched(), file.count(Status::Unmatched)),
        (4, 1, 3)
    );
    let note = file.note();
    for part in [
        "1 of 4 modules matched",
        "3 without a place",
        "transformer.layers.99.attention.to_q",
        "some.other.tensor",
    ] {
        assert!(note.contains(part), "`{part}` is not in: {note}");
    }
    let error = refused(
        &base,
        Role::Transformer,
        from_tensors("none", tensors[2..].to_vec(), 1.0),
    );
    assert!(
        matches!(error, AdapterError::NothingMatched { count: 3, .. }),
        "{error}"
    );
    let error = refused(
        &base,
        Role::Transformer,
        from_tensors("model", vec![tensors[6].clone()], 1.0),
    );
    assert!(
        error.to_string().contains("it is no adapter, or one for another model"),
        "{error}"
    );
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: 400, failure_persistence: None, ..Default::default() })]

    /// Files of any tensors are applied or refused, and what is applied can be loaded.
    #[test]
    fn any_file_is_applied_or_refused(
        tensors in proptest::collection::vec((0usize..22, 0usize..3, proptest::collection::vec(0usize..5, 0..5)), 1..5),
        runtime: bool,
    ) {
        const FIELDS: [&str; 22] = [
            "lora_down.weight", "lora_up.weight", "lora_mid.weight", "alpha", "dora_scale", "diff", "diff_b", "lokr_w1",
            "lokr_w1_a", "lokr_w1_b", "lokr_w2", "lokr_w2_a", "lokr_w2_b", "lokr_t2", "hada_w1_a", "hada_w1_b",
            "hada_w2_a", "hada_w2_b", "hada_t1", "hada_t2", "lora_A.x.weight", "w_norm",
        ];
        let named = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec(), random(name, shape).data);
        let base = [named("a.weight", &[4, 3]), named("a.bias", &[4]), named("b.weight", &[4, 3, 2, 2]), named("c", &[4])];
        let base = Arc::new(Checkpoint::from_bytes("base", file_of(base.to_vec()).into()).expect("a checkpoint"));
        let mut file: Vec<_> = tensors
            .iter()
            .map(|(field, module, shape)| named(&format!("{}.{}", ["a", "b", "c"][*module], FIELDS[*field]), shape))
            .collect();
        file.sort_by(|a, b| a.0.cmp(&b.0));
        file.dedup_by(|a, b| a.0 == b.0);
        let adapter = from_tensors("fuzz", file, 0.5);
        let how = if runtime { Apply::Runtime } else { Apply::Immediately };
        let mut parts = [(Role::Transformer, base)];
        if rotile::adapter::apply(&mut parts, &[adapter], how, &packed).is_ok() {
            for info in parts[0].1.tensors() {
                values(&parts[0].1, &info.name);
            }
        }
    }
}

fn style() -> Vec<u8> {
    let made = Made::new(LORA, &[256, 256], "style");
    let names = ["layers.0.attention.to_v", "layers.1.attention.to_out.0"];
    let tensors = names.iter().flat_map(|name| {
        let name = format!("transformer.{name}");
        pair(
            &made,
            &format!("{name}.lora_A.weight"),
            &format!("{name}.lora_B.weight"),
        )
    });
    file_of(tensors.collect())
}

#[test]
fn pictures_say_which_adapters_made_them() {
    let options = Options {
        device: DeviceChoice::Cpu,
        ..Options::default()
    };
    let picture = |weight: Option<f32>, how| {
        let open = |weight| Adapter::from_bytes("folder/style.safetensors", style().into(), weight).expect("opens");
        let source = Source::embedded().expect("the model");
        let source = source.with_adapters(weight.map(open).into_iter().collect(), how);
        let mut engine = pollster::block_on(Engine::new(source, &options)).unwrap_or_else(|e| panic!("{e}"));
        let mut notes = Vec::new();
        let note = |event| {
            if let Event::Note(note) = event {
                notes.push(note);
            }
        };
        let request = Request::new("a red boat").steps(1).size(64, 64);
        let mut pictures = engine
            .generate_blocking(&request, note, &Cancel::new())
            .expect("a picture");
        (pictures.remove(0), notes)
    };
    let (plain, _) = picture(None, Apply::Auto);
    let (zero, _) = picture(Some(0.0), Apply::Auto);
    assert!(plain.image == zero.image, "a weight of 0 changes nothing");
    let (merged, notes) = picture(Some(0.8), Apply::Auto);
    assert!(plain.image != merged.image);
    let of = |list: &[(String, String)], key: &str| list.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
    assert_eq!(of(&merged.settings, "lora").as_deref(), Some("style.safetensors:0.8"));
    assert_eq!(of(&merged.settings, "lora_apply").as_deref(), Some("merged"));
    assert_eq!(of(&plain.settings, "lora"), None);
    let note = notes
        .iter()
        .filter(|n| n.contains("2 of 2 modules matched, 2 merged"))
        .count();
    assert_eq!(note, 1, "{notes:?}");
    let (runtime, _) = picture(Some(0.8), Apply::Runtime);
    assert_eq!(of(&runtime.settings, "lora_apply").as_deref(), Some("runtime"));
    assert!(worst(&runtime.latent.data, &merged.latent.data) < LIMIT);
}

#[test]
fn the_program_takes_paths_with_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("my style: new.safetensors");
    std::fs::write(&file, style()).expect("written");
    let out = folder.path().join("out.png");
    let rotile = |lora: &str, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rotile"));
        command.args([
            "generate", "a boat", "--device", "cpu", "--steps", "1", "-W", "64", "-H", "64", "--json",
        ]);
        command.arg("--out").arg(&out).args(["--lora", lora]).args(more);
        command.output().expect("the binary runs")
    };
    let path = file.to_string_lossy().into_owned();
    for (lora, weight) in [
        (path.clone(), 1.0),
        (format!("{path}:0.5"), 0.5),
        (format!("{path}:-1"), -1.0),
    ] {
        let output = rotile(&lora, &["--lora-apply", "runtime"]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(json["adapters"][0]["weight"], weight);
        assert_eq!(json["adapters"][0]["lines"][0]["status"], "runtime");
    }
    for (lora, code, message) in [
        ("missing.safetensors:0.5", 1, "missing.safetensors: "),
        (r"C:\styles\missing.safetensors", 1, r"C:\styles\missing.safetensors: "),
        (":0.5", 2, "wanted PATH or PATH:WEIGHT"),
    ] {
        let output = rotile(lora, &[]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(message), "{text}");
    }
    let output = rotile(&path, &["--lora-apply", "later"]);
    assert_eq!(output.status.code(), Some(2));
}

/// A tensor of the model is never given away half changed: parts and rows of a changed weight are those of the whole.
#[test]
fn rows_and_parts_of_a_changed_weight() {
    let base = Arc::new(Checkpoint::open(path("vae_qwenimage")).unwrap_or_else(|e| panic!("{e}")));
    let name = "decoder.up_blocks.0.resnets.0.conv1.weight";
    let shape = values(&base, name).ty.shape;
    let made = Made::new(Kind::Diff, &shape, name);
    let lora = adapter("lora", &[("decoder.up_blocks.0.resnets.0.conv1", &made)], 1.0);
    let (new, _) = with(&base, Role::Autoencoder, &[lora], Apply::Immediately);
    let whole = values(&new, name);
    let row = whole.data.len() / shape[0];
    let f32s = |bytes: &[u8]| rotile::tensor::decode(DType::F32, bytes);
    assert_eq!(
        f32s(&new.rows(name, DType::F32, 3..7).expect("rows")),
        whole.data[3 * row..7 * row]
    );
    let last = shape[2] - 1;
    let part = format!("{name}[2:{last}..{}]", shape[2]);
    let plane = shape[3] * shape[4];
    let want: Vec<f32> = whole
        .data
        .chunks_exact(plane)
        .skip(last)
        .step_by(shape[2])
        .flatten()
        .copied()
        .collect();
    assert_eq!(values(&new, &part).data, want);
    let rows = want.len() / shape[0];
    assert_eq!(
        f32s(&new.rows(&part, DType::F32, 2..5).expect("rows")),
        want[2 * rows..5 * rows]
    );
    assert!(new.rows(name, DType::Q8_0, 0..1).is_err());
    let vae = Vae::read(&new).expect("a VAE");
    assert!(vae.has_decoder());
}

/// A merged weight is checked once more when it is rounded to half precision.
#[test]
fn merged_weights_beyond_half_precision_are_named() {
    let base = single("transformer", &[]);
    let module = "layers.0.attention.to_q";
    let name = format!("{module}.weight");
    let made = Made::new(Kind::Diff, &values(&base, &name).ty.shape, &name);
    // Far beyond 65504.
    let lora = adapter("large", &[(module, &made)], 1e9);
    let (new, _) = with(&base, Role::Transformer, &[lora], Apply::Immediately);
    let error = new
        .rows(&name, DType::F16, 0..1)
        .map(drop)
        .expect_err("too large for f16");
    assert!(error.to_string().contains(&name), "{error}");
    assert!(new.rows(&name, DType::F32, 0..1).is_ok());
}

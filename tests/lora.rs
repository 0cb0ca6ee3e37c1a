//! Adapters of every kind and naming, merged and at run time, against weights changed in `f64`.

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

use adapted::{LIMIT, decode, denoise, devices, encode, random, run, single, values, with, worst};
use adapters::{Kind, Made, adapter, file_of, from_tensors};
use fixtures::Fixture;
use rotile::adapter::{Apply, Status};
use rotile::backend::Device;
use rotile::checkpoint::Checkpoint;
use rotile::models::{Role, blocks};
use rotile::ops::Epilogue;
use rotile::tensor::Tensor;
use std::sync::Arc;

type Run = fn(&Device, &Arc<Checkpoint>) -> Vec<f32>;

/// Merged and at run time, on every device, an adapter of these modules gives what changed weights give.
fn agrees(what: &str, part: &str, role: Role, run: Run, modules: &[(&str, Made)], strength: f32) {
    let prefix = if part == "text_encoder" { "model." } else { "" };
    let base = single(part, &[]);
    let names: Vec<_> = modules
        .iter()
        .map(|(module, _)| format!("{prefix}{module}.weight"))
        .collect();
    let changed = modules.iter().zip(&names).map(|((module, made), name)| {
        let own = values(&base, &format!("{module}.weight")).data;
        (name.as_str(), made.change(&own, f64::from(strength)))
    });
    let want = single(part, &changed.collect::<Vec<_>>());
    let modules: Vec<_> = modules.iter().map(|(module, made)| (*module, made)).collect();
    let file = adapter("adapter", &modules, strength);
    for device in devices() {
        let (plain, want) = (run(&device, &base), run(&device, &want));
        let effect = worst(&plain, &want);
        assert!(effect > 1e-3, "{what}: an effect of {effect:.1e} proves nothing");
        for (how, status) in [(Apply::Immediately, Status::Merged), (Apply::Runtime, Status::Runtime)] {
            let (new, report) = with(&base, role, std::slice::from_ref(&file), how);
            assert_eq!(
                report.files[0].count(status),
                modules.len(),
                "{what}: {:?}",
                report.files[0].lines
            );
            let got = run(&device, &new);
            let error = worst(&got, &want);
            eprintln!("{what}, {how:?} on {}: {error:.1e}, effect {effect:.1e}", device.name());
            assert!(error <= LIMIT, "{what}, {how:?} on {}: {error:.1e}", device.name());
        }
    }
}

const LINEAR: [Kind; 10] = [
    Kind::Lora { rank: 4, alpha: None },
    Kind::Lora {
        rank: 3,
        alpha: Some(8.0),
    },
    Kind::Dora { rank: 2, rows: true },
    Kind::Dora { rank: 2, rows: false },
    Kind::Loha { rank: 2 },
    // Too many pairs of ranks for a product to be smaller.
    Kind::Loha { rank: 14 },
    Kind::Lokr,
    Kind::LokrLow { rank: 3 },
    Kind::Diff,
    Kind::Lora {
        rank: 1,
        alpha: Some(0.5),
    },
];

/// Layers without a bias, with one, and with an activation behind.
#[test]
fn kinds_on_linear_layers() {
    const MODULES: [(&str, [usize; 2]); 4] = [
        ("layers.0.attention.to_q", [256, 256]),
        ("layers.1.feed_forward.w2", [256, 682]),
        ("layers.0.adaLN_modulation.0", [1024, 256]),
        ("t_embedder.mlp.0", [256, 256]),
    ];
    let shapes = single("transformer", &[]);
    for kind in LINEAR {
        let made = |&(module, _): &(&'static str, [usize; 2])| {
            let shape = values(&shapes, &format!("{module}.weight")).ty.shape;
            (module, Made::new(kind, &shape, module))
        };
        let modules: Vec<_> = MODULES.iter().map(made).collect();
        agrees(
            &format!("{kind:?}"),
            "transformer",
            Role::Transformer,
            denoise,
            &modules,
            0.7,
        );
    }
}

/// A residual is fused into these layers.
#[test]
fn text_encoder_with_residuals() {
    for kind in [LINEAR[1], LINEAR[2], LINEAR[7]] {
        let made = |module, shape: [usize; 2]| (module, Made::new(kind, &shape, module));
        let modules = [
            made("layers.0.mlp.down_proj", [256, 512]),
            made("layers.1.self_attn.o_proj", [256, 256]),
            made("layers.1.mlp.gate_proj", [512, 256]),
        ];
        agrees(
            &format!("text {kind:?}"),
            "text_encoder",
            Role::TextEncoder,
            encode,
            &modules,
            1.0,
        );
    }
}

#[test]
fn kinds_on_convolutions() {
    const KINDS: [Kind; 10] = [
        Kind::Lora {
            rank: 4,
            alpha: Some(2.0),
        },
        Kind::Locon { rank: 2 },
        Kind::Dora { rank: 2, rows: true },
        Kind::Dora { rank: 2, rows: false },
        Kind::Loha { rank: 2 },
        Kind::LohaCore { rank: 2 },
        Kind::Lokr,
        Kind::LokrLow { rank: 2 },
        Kind::LokrCore { rank: 2 },
        Kind::Diff,
    ];
    let base = single("vae", &[]);
    for kind in KINDS {
        let made = |module: &'static str| {
            let shape = values(&base, &format!("{module}.weight")).ty.shape;
            (module, Made::new(kind, &shape, module))
        };
        let modules = [
            made("decoder.conv_in"),
            made("decoder.up_blocks.1.resnets.0.conv2"),
            made("decoder.up_blocks.2.upsamplers.0.conv"),
        ];
        agrees(
            &format!("conv {kind:?}"),
            "vae",
            Role::Autoencoder,
            decode,
            &modules,
            0.5,
        );
    }
}

#[test]
fn several_adapters_add_up() {
    let base = single("transformer", &[]);
    const MODULE: &str = "layers.1.attention.to_v";
    let kinds = [LINEAR[1], LINEAR[2], LINEAR[6], LINEAR[8]];
    let strengths = [0.5, 1.25, -0.75, 0.0];
    let own = values(&base, &format!("{MODULE}.weight")).data;
    let mut sum = vec![0.0; own.len()];
    let mut files = Vec::new();
    for (i, (kind, strength)) in kinds.into_iter().zip(strengths).enumerate() {
        let made = Made::new(kind, &[256, 256], &format!("adapter {i}"));
        let change = made.change(&own, f64::from(strength));
        sum.iter_mut().zip(change).for_each(|(s, c)| *s += c);
        files.push(adapter(&format!("{i}.safetensors"), &[(MODULE, &made)], strength));
    }
    let want = single("transformer", &[(&format!("{MODULE}.weight"), sum)]);
    for device in devices() {
        let want = denoise(&device, &want);
        assert!(worst(&denoise(&device, &base), &want) > 1e-3);
        for how in [Apply::Auto, Apply::Runtime] {
            let (new, report) = with(&base, Role::Transformer, &files, how);
            let error = worst(&denoise(&device, &new), &want);
            assert!(error <= LIMIT, "{how:?}: {error:.1e}");
            assert_eq!(
                report.summary(),
                "0.safetensors:0.5 1.safetensors:1.25 2.safetensors:-0.75 3.safetensors:0"
            );
        }
    }
}

/// Biases with and without one of their own, norms and learned tokens.
#[test]
fn biases_norms_and_tables() {
    let base = single("transformer", &[]);
    let field = |name: &str, shape: &[usize]| {
        let data = random(name, shape).data.iter().map(|v| v * 0.2).collect::<Vec<_>>();
        (name.to_owned(), shape.to_vec(), data)
    };
    let tensors = [
        field("diffusion_model.layers.0.adaLN_modulation.0.diff_b", &[1024]),
        field("diffusion_model.layers.0.attention.to_k.diff_b", &[256]),
        field("diffusion_model.layers.0.attention.norm_q.diff", &[64]),
        field("diffusion_model.layers.1.ffn_norm1.w_norm", &[256]),
        field("diffusion_model.x_pad_token.diff", &[1, 256]),
    ];
    let scaled = |i: usize| tensors[i].2.iter().map(|v| f64::from(v * 0.5)).collect::<Vec<_>>();
    let want = single(
        "transformer",
        &[
            ("layers.0.adaLN_modulation.0.bias", scaled(0)),
            ("layers.0.attention.norm_q.weight", scaled(2)),
            ("layers.1.ffn_norm1.weight", scaled(3)),
            ("x_pad_token", scaled(4)),
        ],
    );
    // No layer of the transformer has a bias on its keys: there it is a file of its own.
    let keys = from_tensors("keys", vec![tensors[1].clone()], 0.5);
    let without = from_tensors("rest", [0, 2, 3, 4].map(|i| tensors[i].clone()).to_vec(), 0.5);
    for device in devices() {
        let (plain, want) = (denoise(&device, &base), denoise(&device, &want));
        assert!(worst(&plain, &want) > 1e-3);
        let mut results = Vec::new();
        for how in [Apply::Immediately, Apply::Runtime] {
            let (new, _) = with(&base, Role::Transformer, std::slice::from_ref(&without), how);
            let error = worst(&denoise(&device, &new), &want);
            assert!(error <= LIMIT, "{how:?}: {error:.1e}");
            let (new, report) = with(&base, Role::Transformer, std::slice::from_ref(&keys), how);
            assert_eq!(report.files[0].matched(), 1);
            results.push(denoise(&device, &new));
        }
        assert!(worst(&plain, &results[0]) > 1e-4, "a new bias does something");
        assert_eq!(results[0], results[1]);
    }
}

/// `y = x W^T + b` and all that comfy-kitchen's vectors add to it, in the true basis of the weights.
#[test]
fn the_oracle_of_quantised_layers() {
    let io = Fixture::open("convrot/lora.safetensors");
    let of = |name: &str| io.tensor(name);
    let named = |name: &str, t: Tensor| (name.to_owned(), t.ty.shape.to_vec(), t.data);
    let base = file_of(vec![
        named("layer.weight", of("ck.qt_dequantize")),
        named("layer.bias", of("in.bias_f32")),
    ]);
    let base = Arc::new(Checkpoint::from_bytes("base", base.into()).expect("a checkpoint"));
    // Alpha 2 of rank 4, weight 0.75, as the vectors' script has it.
    let lora = from_tensors(
        "lora",
        vec![
            named("layer.lora_down.weight", of("in.lora_down")),
            named("layer.lora_up.weight", of("in.lora_up")),
            ("layer.alpha".into(), vec![], vec![2.0]),
        ],
        0.75,
    );
    assert_eq!(of("in.alpha_over_rank_times_mult").data, [0.375]);
    let diff = vec![
        named("layer.diff", of("in.diff")),
        named("layer.diff_b", of("in.diff_b")),
    ];
    let adapters = [lora, from_tensors("diff", diff, 1.0)];
    let want = io.doubles("ref64.correct_total");
    let wrong = io.doubles("ref64.WRONG_merge_rotated_basis");
    let x = of("in.x_f32");
    for device in devices() {
        for how in [Apply::Auto, Apply::Runtime] {
            let (new, _) = with(&base, Role::Transformer, &adapters, how);
            let got = run(&device, &new, &[("x", &x)], |g, w, v| {
                blocks::linear_bias(g, &w.at("layer"), v[0], 37, Epilogue::default())
            });
            let error = worst(&got, &want);
            eprintln!("oracle, {how:?} on {}: {error:.1e}", device.name());
            assert!(error <= 1e-6, "{how:?}: {error:.1e}");
            assert!(worst(&got, &wrong) > 1e-2);
        }
    }
}

/// Weights that stay packed: what is left of each way to apply an adapter.
#[test]
fn packed_weights_are_never_changed() {
    let codes: Vec<u8> = (0..64 * 64).map(|i| (i * 7 % 255) as u8).collect();
    let floats = vec![0u8; 64 * 64 * 4];
    let scales = 0.01f32.to_le_bytes().repeat(64);
    let marker = br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":64}"#;
    let view = |dtype, shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).expect("bytes fill the shape")
    };
    let views = [
        ("a.weight", view(safetensors::Dtype::I8, &[64, 64], &codes)),
        ("a.weight_scale", view(safetensors::Dtype::F32, &[64, 1], &scales)),
        ("a.comfy_quant", view(safetensors::Dtype::U8, &[marker.len()], marker)),
        ("b.weight", view(safetensors::Dtype::F32, &[64, 64], &floats)),
    ];
    let bytes = safetensors::serialize(views, None).expect("a file");
    let base = Arc::new(Checkpoint::from_bytes("base", bytes.into()).expect("a checkpoint"));
    let made = Made::new(LINEAR[0], &[64, 64], "a");
    let file = adapter("lora", &[("a", &made), ("b", &made)], 1.0);
    let fates = |how| {
        let (new, report) = with(&base, Role::Transformer, std::slice::from_ref(&file), how);
        let own = new.raw("a.weight").expect("bytes").1.into_owned();
        assert!(own == codes, "the codes are as they were");
        report.files[0].lines.iter().map(|line| line.status).collect::<Vec<_>>()
    };
    assert_eq!(fates(Apply::Auto), [Status::Runtime, Status::Runtime]);
    assert_eq!(fates(Apply::Runtime), [Status::Runtime, Status::Runtime]);
    assert_eq!(fates(Apply::Immediately), [Status::Skipped, Status::Merged]);
    let (_, report) = with(
        &base,
        Role::Transformer,
        std::slice::from_ref(&file),
        Apply::Immediately,
    );
    let notes: Vec<_> = report.notes().collect();
    assert_eq!(notes.len(), 1);
    assert!(
        notes[0].contains("1 skipped, since their weights are packed"),
        "{notes:?}"
    );
}

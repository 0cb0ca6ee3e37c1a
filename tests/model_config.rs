//! Detection of models from shapes, and what their configurations refuse.

#[path = "support/fixtures.rs"]
mod fixtures;

use fixtures::{part, path, weights};
use rotile::checkpoint::{Checkpoint, CheckpointError, Weights};
use rotile::graph::{Graph, Source};
use rotile::models::{Model, autoencoder_kl, qwen3, z_image};
use rotile::tensor::{DType, TensorType};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names of the weights that a graph reads.
fn used(g: &Graph) -> BTreeSet<String> {
    g.values()
        .filter_map(|v| match g.source(v) {
            Source::Weight(name) => Some(name.clone()),
            _ => None,
        })
        .collect()
}

/// Tensors of a checkpoint that a graph does not read.
fn unused(g: &Graph, w: &Weights) -> Vec<String> {
    let used = used(g);
    let names = w.checkpoint().tensors().map(|info| info.name.clone());
    names.filter(|name| !used.contains(name)).collect()
}

#[test]
fn published_models_are_read_from_descriptions() {
    let w = weights("manifests/z_image_turbo_transformer.json");
    let Ok(Model::ZImage(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    assert_eq!(
        (cfg.dim, cfg.heads, cfg.layers, cfg.noise_refiners, cfg.context_refiners),
        (3840, 30, 30, 2, 2)
    );
    assert_eq!(
        (cfg.modulation_dim, cfg.timestep_hidden, cfg.axes_dims),
        (256, 1024, [32, 48, 48])
    );
    let mut g = Graph::new(DType::F32);
    let latent = g.input("latent", TensorType::new(DType::F32, [16, 128, 128]));
    let t = g.input("t", TensorType::new(DType::F32, [1]));
    let caption = g.input("caption", TensorType::new(DType::F32, [77, 2560]));
    let out = z_image::transformer(&mut g, &w, &cfg, latent, t, caption).expect("builds");
    assert_eq!(&g.shape(out)[..], [16, 128, 128]);
    // 4096 picture tokens need no padding.
    assert_eq!(unused(&g, &w), ["x_pad_token"]);

    let w = weights("manifests/qwen3_4b_text_encoder.json");
    let Ok(Model::Qwen3(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    assert_eq!(
        (cfg.hidden, cfg.layers, cfg.heads, cfg.kv_heads, cfg.head_dim),
        (2560, 36, 32, 8, 128)
    );
    let mut g = Graph::new(DType::F32);
    let ids = g.input("ids", TensorType::new(DType::U32, [77]));
    let out = qwen3::encoder(&mut g, &w, &cfg, ids).expect("builds");
    assert_eq!(&g.shape(out)[..], [77, 2560]);
    // The last layer and the final norm come after what the pipeline takes.
    let rest = unused(&g, &w);
    assert!(
        rest.iter()
            .all(|n| n.starts_with("layers.35.") || n == "norm.weight" || n == "lm_head.weight"),
        "{rest:?}"
    );

    let w = weights("manifests/flux1_vae.json");
    let Ok(Model::AutoencoderKl(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let half = cfg.decoder.clone().expect("there");
    assert_eq!(
        (half.channels, half.blocks, half.attention, half.quant),
        (vec![128, 256, 512, 512], 3, true, false)
    );
    assert_eq!(
        (cfg.groups, cfg.scaling, cfg.shift, cfg.factor()),
        (32, 0.3611, 0.1159, 8)
    );
    let mut g = Graph::new(DType::F32);
    let latent = g.input("latent", TensorType::new(DType::F32, [1, 16, 128, 128]));
    let image = autoencoder_kl::decoder(&mut g, &w, &cfg, latent).expect("builds");
    assert_eq!(&g.shape(image)[..], [1, 3, 1024, 1024]);
    let (mean, _) = autoencoder_kl::encoder(&mut g, &w, &cfg, image).expect("builds");
    assert_eq!(&g.shape(mean)[..], [1, 16, 128, 128]);
    assert_eq!(unused(&g, &w), [""; 0]);
}

#[test]
fn shapes_alone_give_the_published_settings() {
    for name in ["z_image_turbo_transformer", "qwen3_4b_text_encoder", "flux1_vae"] {
        let with = Checkpoint::open(path(&format!("manifests/{name}.json"))).expect("there");
        let bare = Checkpoint::open(path(&format!("manifests/{name}.json")))
            .expect("there")
            .with_config(None);
        let (mut with, bare) = (Model::read(&with).expect("known"), Model::read(&bare).expect("known"));
        if let Model::ZImage(cfg) = &mut with {
            // The description has the class default, which is smaller than the published one.
            assert_eq!(cfg.axes_lens, [1024, 512, 512]);
            cfg.axes_lens = [1536, 512, 512];
        }
        assert_eq!(with, bare);
    }
}

#[test]
fn contradictions_between_config_and_tensors_are_errors() {
    let cases = [
        ("dit_zimage", json!({ "dim": 96 }), "`dim`"),
        ("dit_zimage", json!({ "n_refiner_layers": 1 }), "n_refiner_layers"),
        ("dit_zimage", json!({ "axes_dims": [4, 4, 4] }), "axes_dims"),
        ("dit_zimage", json!({ "axes_dims": [16] }), "axes_dims"),
        ("dit_zimage", json!({ "rope_theta": "x" }), "rope_theta"),
        ("text_qwen3", json!({ "num_hidden_layers": 3 }), "num_hidden_layers"),
        ("text_qwen3", json!({ "hidden_act": "gelu" }), "hidden_act"),
        (
            "text_qwen3",
            json!({ "rope_scaling": { "type": "yarn" } }),
            "rope_scaling",
        ),
        ("text_qwen3", json!({ "rms_norm_eps": -1 }), "rms_norm_eps"),
        (
            "vae_flux1",
            json!({ "block_out_channels": [8, 16, 32, 64] }),
            "block_out_channels",
        ),
        ("vae_flux1", json!({ "norm_num_groups": 3 }), "groups"),
        ("vae_flux1", json!({}), "groups"),
        ("vae_flux1", json!({ "use_quant_conv": true }), "use_quant_conv"),
        ("vae_flux1", json!([]), "groups"),
        ("vae_flux2", json!({ "patch_size": [1, 2] }), "patch_size"),
        ("vae_flux2", json!({ "batch_norm_eps": -1 }), "batch_norm_eps"),
        ("vae_flux2", json!({ "_class_name": "AutoencoderKL" }), "_class_name"),
        (
            "vae_flux2",
            json!({ "decoder_block_out_channels": [8, 8, 8, 8] }),
            "decoder_block_out_channels",
        ),
        ("vae_cogview4", json!({ "mid_block_add_attention": true }), "attention"),
        ("vae_taesd", json!({ "latent_channels": 16 }), "latent_channels"),
        (
            "vae_taesd",
            json!({ "num_decoder_blocks": [3, 3, 3, 2] }),
            "num_decoder_blocks",
        ),
        ("vae_taesd", json!({ "upsampling_scaling_factor": 4 }), "upsampling"),
        ("vae_taesd", json!({ "act_fn": "silu" }), "act_fn"),
        ("vae_qwenimage", json!({ "z_dim": 8 }), "z_dim"),
        ("vae_qwenimage", json!({ "latents_mean": [0.5] }), "latents_mean"),
        ("vae_qwenimage", json!({ "latents_std": vec![0.0; 16] }), "latents_std"),
        (
            "vae_qwenimage",
            json!({ "base_dim": 4, "dim_mult": [1, 2, 4, 8] }),
            "dim_mult",
        ),
        ("vae_qwenimage", json!({ "is_residual": true }), "is_residual"),
        ("vae_qwenimage", json!({ "num_res_blocks": 3 }), "num_res_blocks"),
    ];
    for (file, config, word) in cases {
        let checkpoint = Checkpoint::open(path(file)).expect("there").with_config(Some(config));
        let error = Model::read(&checkpoint).expect_err("a contradiction");
        assert!(matches!(error, CheckpointError::Config { .. }), "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn the_file_of_a_whole_model_tells_how_latents_are_scaled() {
    let flux = std::fs::read_to_string(path("manifests/flux1_vae.json")).expect("there");
    let sdxl = std::fs::read_to_string(path("manifests/sdxl_vae.json")).expect("there");
    let scaling = |text: &str, beside: Option<&str>| {
        let mut json: serde_json::Value = serde_json::from_str(text).expect("valid");
        if let Some(name) = beside {
            json["tensors"][name] = json!(["F32", [1]]);
        }
        let described = Checkpoint::describe("vae.json", &json.to_string()).expect("valid");
        let bare = described.with_config(None);
        let Ok(Model::AutoencoderKl(cfg)) = Model::read(&bare) else {
            panic!("not detected")
        };
        (cfg.scaling, cfg.shift, cfg.scaling_is_a_guess(&bare))
    };
    assert_eq!(scaling(&flux, None), (0.3611, 0.1159, true));
    let sd3 = "model.diffusion_model.joint_blocks.0.x_block.attn.qkv.weight";
    assert_eq!(scaling(&flux, Some(sd3)), (1.5305, 0.0609, false));
    assert_eq!(scaling(&sdxl, None), (0.18215, 0.0, true));
    let clip = "cond_stage_model.transformer.text_model.final_layer_norm.weight";
    assert_eq!(scaling(&sdxl, Some(clip)), (0.18215, 0.0, false));
    let clips = "conditioner.embedders.0.transformer.text_model.final_layer_norm.weight";
    assert_eq!(scaling(&sdxl, Some(clips)), (0.13025, 0.0, false));
    let described = Checkpoint::open(path("manifests/sdxl_vae.json")).expect("there");
    let Ok(Model::AutoencoderKl(cfg)) = Model::read(&described) else {
        panic!("not detected")
    };
    assert_eq!((cfg.scaling, cfg.scaling_is_a_guess(&described)), (0.13025, false));
}

#[test]
fn other_files_are_unknown() {
    let io = Checkpoint::open(path("dit_zimage/io.safetensors")).expect("there");
    let error = Model::read(&io).expect_err("no model");
    assert!(matches!(error, CheckpointError::UnknownModel { .. }), "{error}");
}

#[test]
fn a_missing_or_wrong_tensor_is_named() {
    let text = std::fs::read_to_string(path("manifests/flux1_vae.json")).expect("there");
    let whole: serde_json::Value = serde_json::from_str(&text).expect("valid");
    let build = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut json = whole.clone();
        change(&mut json["tensors"]);
        let checkpoint = Checkpoint::describe("vae.json", &json.to_string()).expect("valid");
        let Ok(Model::AutoencoderKl(cfg)) = Model::read(&checkpoint) else {
            panic!("not detected")
        };
        let w = Weights::new(Arc::new(checkpoint));
        let mut g = Graph::new(DType::F32);
        let latent = g.input("latent", TensorType::new(DType::F32, [1, 16, 8, 8]));
        autoencoder_kl::decoder(&mut g, &w, &cfg, latent)
            .map(|_| ())
            .expect_err("not the model's tensors")
            .to_string()
    };
    let name = "decoder.up_blocks.1.resnets.2.norm2.bias";
    let missing = build(&|tensors| {
        tensors.as_object_mut().expect("names").shift_remove(name);
    });
    assert!(
        missing.starts_with(&format!("vae.json: no tensor `{name}`; the nearest is")),
        "{missing}"
    );
    let wrong = build(&|tensors| tensors[name] = json!(["BF16", [7]]));
    assert_eq!(
        wrong,
        format!("vae.json: `{name}` has shape [7], the model wants [512]")
    );
    let kind = build(&|tensors| tensors[name] = json!(["I8", [512]]));
    assert!(
        kind.starts_with(&format!(
            "vae.json: `{name}` is I8 codes without scales; wanted F32, F16, BF16 or "
        )),
        "{kind}"
    );
}

#[test]
fn sizes_beyond_the_positions_are_refused() {
    let w = weights("dit_zimage");
    let Ok(Model::ZImage(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    for (shape, tokens, word) in [
        ([16, 1026, 2], 32, "rows"),
        ([16, 2, 1026], 32, "columns"),
        ([16, 2, 2], 1535, "caption"),
    ] {
        let mut g = Graph::new(DType::F32);
        let latent = g.input("latent", TensorType::new(DType::F32, shape));
        let t = g.input("t", TensorType::new(DType::F32, [1]));
        let caption = g.input("caption", TensorType::new(DType::F32, [tokens, 64]));
        let error = z_image::transformer(&mut g, &w, &cfg, latent, t, caption).expect_err("too large");
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn unused_weights_of_the_embedded_model_are_those_after_the_embeddings() {
    let w = part("text_encoder");
    let Ok(Model::Qwen3(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let mut g = Graph::new(DType::F32);
    let ids = g.input("ids", TensorType::new(DType::U32, [8]));
    qwen3::encoder(&mut g, &w, &cfg, ids).expect("builds");
    let counts = unused(&g, &w).iter().fold(BTreeMap::new(), |mut counts, name| {
        *counts.entry(name.starts_with("layers.2.")).or_insert(0) += 1;
        counts
    });
    assert_eq!(counts, BTreeMap::from([(true, 11), (false, 1)]));
}

#[test]
fn half_precision_activations_stay_inside() {
    let mut g = Graph::new(DType::F16);
    let w = weights("manifests/z_image_turbo_transformer.json");
    let Ok(Model::ZImage(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let latent = g.input("latent", TensorType::new(DType::F32, [16, 12, 10]));
    let t = g.input("t", TensorType::new(DType::F32, [1]));
    let caption = g.input("caption", TensorType::new(DType::F32, [33, 2560]));
    let out = z_image::transformer(&mut g, &w, &cfg, latent, t, caption).expect("builds");
    assert_eq!(g.ty(out).dtype, DType::F32);
    let w = weights("manifests/qwen3_4b_text_encoder.json");
    let Ok(Model::Qwen3(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let ids = g.input("ids", TensorType::new(DType::U32, [5]));
    let out = qwen3::encoder(&mut g, &w, &cfg, ids).expect("builds");
    assert_eq!(g.ty(out).dtype, DType::F32);
    let w = weights("manifests/flux1_vae.json");
    let Ok(Model::AutoencoderKl(cfg)) = Model::read(w.checkpoint()) else {
        panic!("not detected")
    };
    let latent = g.input("vae", TensorType::new(DType::F32, [1, 16, 4, 4]));
    let image = autoencoder_kl::decoder(&mut g, &w, &cfg, latent).expect("builds");
    assert_eq!(g.ty(image).dtype, DType::F32);
    let (mean, logvar) = autoencoder_kl::encoder(&mut g, &w, &cfg, image).expect("builds");
    assert_eq!((g.ty(mean).dtype, g.ty(logvar).dtype), (DType::F32, DType::F32));
}

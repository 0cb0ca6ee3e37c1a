//! Names of adapter tensors, as the common trainers write them: which part of which kind, of which module, of which component.

use crate::models::Role;

/// What a tensor is to the layer that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Field {
    /// LoRA: `[r, k]`, or filters `[r, c, h, w]`.
    Down,
    /// LoRA: `[n, r]`.
    Up,
    /// LoCon's core `[r, r, h, w]`.
    Mid,
    /// Numerator of the scale.
    Alpha,
    /// DoRA's row or column norms.
    Magnitude,
    /// Added to the weight as it is.
    Diff,
    /// Added to the bias as it is.
    DiffBias,
    LokrW1,
    LokrW1A,
    LokrW1B,
    LokrW2,
    LokrW2A,
    LokrW2B,
    LokrT2,
    HadaW1A,
    HadaW1B,
    HadaW2A,
    HadaW2B,
    HadaT1,
    HadaT2,
}

const ENDINGS: [(&str, Field); 29] = [
    (".lora_down", Field::Down),
    (".lora_up", Field::Up),
    (".lora_mid", Field::Mid),
    (".lora_A", Field::Down),
    (".lora_B", Field::Up),
    // diffusers before PEFT, of three ages.
    (".lora_linear_layer.down", Field::Down),
    (".lora_linear_layer.up", Field::Up),
    (".lora.down", Field::Down),
    (".lora.up", Field::Up),
    ("_lora.down", Field::Down),
    ("_lora.up", Field::Up),
    (".alpha", Field::Alpha),
    (".dora_scale", Field::Magnitude),
    (".lora_magnitude_vector", Field::Magnitude),
    (".diff", Field::Diff),
    (".diff_b", Field::DiffBias),
    // LyCORIS, of norms.
    (".w_norm", Field::Diff),
    (".b_norm", Field::DiffBias),
    (".lokr_w1", Field::LokrW1),
    (".lokr_w1_a", Field::LokrW1A),
    (".lokr_w1_b", Field::LokrW1B),
    (".lokr_w2", Field::LokrW2),
    (".lokr_w2_a", Field::LokrW2A),
    (".lokr_w2_b", Field::LokrW2B),
    (".lokr_t2", Field::LokrT2),
    (".hada_w1_a", Field::HadaW1A),
    (".hada_w1_b", Field::HadaW1B),
    (".hada_w2_a", Field::HadaW2A),
    (".hada_w2_b", Field::HadaW2B),
];
const CORES: [(&str, Field); 2] = [(".hada_t1", Field::HadaT1), (".hada_t2", Field::HadaT2)];
/// PEFT may put the name of the adapter behind these: `lora_A.default.weight`.
const NAMED: [(&str, Field); 3] = [
    (".lora_A", Field::Down),
    (".lora_B", Field::Up),
    (".lora_magnitude_vector", Field::Magnitude),
];

/// The module's name and what the tensor is to it; `None` where it is nothing known.
pub(super) fn split(key: &str) -> Option<(&str, Field)> {
    let key = key.strip_suffix(".weight").unwrap_or(key);
    let ending = |text: &'static str, field| Some((key.strip_suffix(text)?, field));
    let plain = ENDINGS
        .iter()
        .chain(&CORES)
        .find_map(|&(text, field)| ending(text, field));
    plain.or_else(|| {
        let (head, name) = key.rsplit_once('.')?;
        let named = |&(text, field): &(&str, Field)| Some((head.strip_suffix(text)?, field));
        NAMED.iter().find_map(named).filter(|_| name != "bias")
    })
}

/// A module as an adapter names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// The components that it may belong to, in the order to try.
    pub(super) roles: &'static [Role],
    /// Its path in the component.
    pub(super) path: String,
    /// Whether underscores stand for dots, as kohya writes.
    pub(super) flat: bool,
}

const ANY: &[Role] = &[Role::Transformer, Role::TextEncoder, Role::Autoencoder];
const TRANSFORMER: &[Role] = &[Role::Transformer];
const TEXT: &[Role] = &[Role::TextEncoder];
const VAE: &[Role] = &[Role::Autoencoder];
/// A second text encoder, which no pipeline here has.
const NONE: &[Role] = &[];

const FLAT: [(&str, &[Role]); 9] = [
    ("lora_unet_", TRANSFORMER),
    ("lora_transformer_", TRANSFORMER),
    ("lora_te_", TEXT),
    ("lora_te1_", TEXT),
    ("lora_te2_", NONE),
    ("lora_te3_", NONE),
    ("lora_vae_", VAE),
    ("lycoris_te_", TEXT),
    ("lycoris_", ANY),
];
const DOTTED: [(&str, &[Role]); 13] = [
    ("model.diffusion_model.", TRANSFORMER),
    ("diffusion_model.", TRANSFORMER),
    ("transformer.", TRANSFORMER),
    ("unet.", TRANSFORMER),
    ("text_encoder_2.", NONE),
    ("text_encoder_3.", NONE),
    ("text_encoder.", TEXT),
    ("text_encoders.", TEXT),
    ("te.", TEXT),
    ("te1.", TEXT),
    ("vae.", VAE),
    ("first_stage_model.", VAE),
    ("", ANY),
];

/// Reads the name of a module.
pub(super) fn module(name: &str) -> Module {
    for (prefix, roles) in FLAT {
        if let Some(rest) = name.strip_prefix(prefix) {
            let path = rest.strip_prefix("model_").unwrap_or(rest).to_owned();
            return Module {
                roles,
                path,
                flat: true,
            };
        }
    }
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    let dotted = |(prefix, roles): &(&str, &'static [Role])| Some((name.strip_prefix(prefix)?, *roles));
    let (mut path, roles) = DOTTED.iter().find_map(dotted).unwrap_or((name, ANY));
    if let Some((_, rest)) = path
        .split_once("transformer.")
        .filter(|_| name.starts_with("text_encoders."))
    {
        path = rest;
    }
    let path = path.strip_prefix("model.").unwrap_or(path);
    // Attention processors held the layers: `attention.processor.to_out_lora` is `attention.to_out.0`.
    let path = match path.rsplit_once("processor.") {
        Some((block, "to_out")) => format!("{block}to_out.0"),
        Some((block, layer)) => format!("{block}{layer}"),
        None => path.to_owned(),
    };
    Module {
        roles,
        path,
        flat: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_trainers() {
        let table = [
            (
                "lora_unet_layers_0_attention_to_q.lora_down.weight",
                "layers_0_attention_to_q",
                Field::Down,
                TRANSFORMER,
            ),
            (
                "lora_te_model_layers_0_mlp_up_proj.alpha",
                "layers_0_mlp_up_proj",
                Field::Alpha,
                TEXT,
            ),
            (
                "lora_te2_text_model_layers_0.lora_up.weight",
                "text_model_layers_0",
                Field::Up,
                NONE,
            ),
            (
                "transformer.layers.0.attention.to_q.lora_A.weight",
                "layers.0.attention.to_q",
                Field::Down,
                TRANSFORMER,
            ),
            (
                "transformer.layers.0.attention.to_q.lora_B.default.weight",
                "layers.0.attention.to_q",
                Field::Up,
                TRANSFORMER,
            ),
            (
                "base_model.model.layers.0.attention.to_q.lora_A.weight",
                "layers.0.attention.to_q",
                Field::Down,
                ANY,
            ),
            ("base_model.model.x.lora_magnitude_vector", "x", Field::Magnitude, ANY),
            ("x.lora_magnitude_vector.default.weight", "x", Field::Magnitude, ANY),
            (
                "text_encoder.model.layers.1.mlp.up_proj.lora_linear_layer.up.weight",
                "layers.1.mlp.up_proj",
                Field::Up,
                TEXT,
            ),
            (
                "unet.layers.0.attention.processor.to_out_lora.down.weight",
                "layers.0.attention.to_out.0",
                Field::Down,
                TRANSFORMER,
            ),
            (
                "unet.layers.0.attention.processor.to_q_lora.up.weight",
                "layers.0.attention.to_q",
                Field::Up,
                TRANSFORMER,
            ),
            (
                "diffusion_model.layers.0.attention.qkv.lora_A.weight",
                "layers.0.attention.qkv",
                Field::Down,
                TRANSFORMER,
            ),
            (
                "text_encoders.qwen3_4b.transformer.model.layers.0.mlp.up_proj.lora_A.weight",
                "layers.0.mlp.up_proj",
                Field::Down,
                TEXT,
            ),
            (
                "lycoris_layers_0_attention_to_q.lokr_w2_a",
                "layers_0_attention_to_q",
                Field::LokrW2A,
                ANY,
            ),
            (
                "diffusion_model.layers.0.norm.diff",
                "layers.0.norm",
                Field::Diff,
                TRANSFORMER,
            ),
            (
                "diffusion_model.layers.0.adaLN_modulation.0.diff_b",
                "layers.0.adaLN_modulation.0",
                Field::DiffBias,
                TRANSFORMER,
            ),
            ("vae.decoder.conv_in.hada_t2", "decoder.conv_in", Field::HadaT2, VAE),
        ];
        for (key, path, field, roles) in table {
            let (name, found) = split(key).unwrap_or_else(|| panic!("{key}"));
            let got = module(name);
            assert_eq!((got.path.as_str(), found, got.roles), (path, field, roles), "{key}");
        }
        for key in ["x.weight", "x.lora_B.bias", "x.lora_embedding_A", "diff"] {
            assert_eq!(split(key), None, "{key}");
        }
    }
}

//! llama.cpp's names for the text encoders that it converts, in transformers' words, and what the metadata says of their sizes.

use super::{TensorInfo, Tensors};
use crate::checkpoint::gguf::{MetaValue, Metadata};
use serde_json::{Map, Value, json};

/// Outside the layers.
const STEMS: [(&str, &str); 3] = [
    ("token_embd.", "embed_tokens."),
    ("output_norm.", "norm."),
    ("output.", "lm_head."),
];
/// In a layer.
const WORDS: [(&str, &str); 11] = [
    ("attn_norm.", "input_layernorm."),
    ("attn_q_norm.", "self_attn.q_norm."),
    ("attn_k_norm.", "self_attn.k_norm."),
    ("attn_q.", "self_attn.q_proj."),
    ("attn_k.", "self_attn.k_proj."),
    ("attn_v.", "self_attn.v_proj."),
    ("attn_output.", "self_attn.o_proj."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("ffn_gate.", "mlp.gate_proj."),
    ("ffn_up.", "mlp.up_proj."),
    ("ffn_down.", "mlp.down_proj."),
];
/// Keys of metadata after the architecture's name, and those of transformers.
const KEYS: [(&str, &str); 8] = [
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("rope.freq_base", "rope_theta"),
];

pub(super) fn detect(tensors: &Tensors) -> bool {
    tensors.contains_key("token_embd.weight") && tensors.contains_key("blk.0.attn_q.weight")
}

pub(super) fn map(mut info: TensorInfo) -> TensorInfo {
    if let Some(name) = renamed(&info.name) {
        info.name = name;
    }
    info
}

fn renamed(name: &str) -> Option<String> {
    let swap = |words: &[(&str, &str)], name: &str| {
        let swapped = |(from, to): &(&str, &str)| Some(format!("{to}{}", name.strip_prefix(from)?));
        words.iter().find_map(swapped)
    };
    match name.strip_prefix("blk.") {
        Some(rest) => {
            let (number, rest) = rest.split_once('.')?;
            Some(format!("layers.{number}.{}", swap(&WORDS, rest)?))
        }
        None => swap(&STEMS, name),
    }
}

/// What a `config.json` beside the file would say.
pub(crate) fn config(metadata: &Metadata) -> Option<Value> {
    let architecture = metadata.architecture().filter(|&a| a == "qwen3")?;
    let mut config = Map::new();
    config.insert("model_type".into(), json!(architecture));
    for (from, to) in KEYS {
        let value = match metadata.get(&format!("{architecture}.{from}")) {
            Some(MetaValue::Float(v)) => json!(v),
            Some(value) => json!(value.count()?),
            None => continue,
        };
        config.insert(to.into(), value);
    }
    // Only positions as they are counted can be run.
    if let Some(scaling) = metadata
        .text(&format!("{architecture}.rope.scaling.type"))
        .filter(|&s| s != "none")
    {
        config.insert("rope_scaling".into(), json!(scaling));
    }
    Some(Value::Object(config))
}

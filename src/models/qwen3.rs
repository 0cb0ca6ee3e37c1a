//! Qwen3 as a text encoder: the hidden state before the last layer, as Z-Image takes it.

use super::blocks::{MAX_HEAD, embedding, heads, linear, merge, result, rms_norm, rotary_table};
use super::config::{Json, count};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::ops::{Attention, Epilogue, Rotary};
use serde_json::Value as JsonValue;

/// Sizes of a Qwen3.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the embedding table.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width inside the MLP.
    pub intermediate: usize,
    /// Layers in the file; one less is run.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Added to mean squares.
    pub eps: f32,
}

impl Config {
    /// Sizes from shapes, the rest as published.
    pub fn detect(c: &Checkpoint) -> Option<Self> {
        let &[vocabulary, hidden] = c.shape("embed_tokens.weight")? else {
            return None;
        };
        let &[head_dim] = c.shape("layers.0.self_attn.q_norm.weight")? else {
            return None;
        };
        let &[queries, _] = c.shape("layers.0.self_attn.q_proj.weight")? else {
            return None;
        };
        let &[keys, _] = c.shape("layers.0.self_attn.k_proj.weight")? else {
            return None;
        };
        let &[intermediate, _] = c.shape("layers.0.mlp.gate_proj.weight")? else {
            return None;
        };
        let (heads, kv_heads) = (queries.checked_div(head_dim)?, keys.checked_div(head_dim)?);
        (heads % kv_heads.max(1) == 0 && heads > 0 && kv_heads > 0 && head_dim <= MAX_HEAD).then_some(Self {
            vocabulary,
            hidden,
            intermediate,
            layers: count(c, "layers", "self_attn.q_proj.weight"),
            heads,
            kv_heads,
            head_dim,
            rope_theta: 1e6,
            eps: 1e-6,
        })
    }

    /// Takes what shapes cannot tell from a `config.json`.
    ///
    /// # Errors
    /// If it contradicts the shapes or asks for something unknown.
    pub fn from_json(json: &JsonValue, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut config = Self::detect(c).ok_or_else(|| super::not_this(c, "a Qwen3 text encoder"))?;
        let json = Json::new(json, c);
        json.agree("vocab_size", config.vocabulary)?;
        json.agree("hidden_size", config.hidden)?;
        json.agree("intermediate_size", config.intermediate)?;
        json.agree("num_hidden_layers", config.layers)?;
        json.agree("num_attention_heads", config.heads)?;
        json.agree("num_key_value_heads", config.kv_heads)?;
        json.agree("head_dim", config.head_dim)?;
        json.only("model_type", "qwen3")?;
        json.only("hidden_act", "silu")?;
        json.off("attention_bias")?;
        json.off("use_sliding_window")?;
        json.off("rope_scaling")?;
        if let Some(rope) = json.below("rope_parameters") {
            rope.only("rope_type", "default")?;
            config.rope_theta = rope.positive("rope_theta")?.unwrap_or(config.rope_theta);
        }
        config.rope_theta = json.positive("rope_theta")?.unwrap_or(config.rope_theta);
        config.eps = json.positive("rms_norm_eps")?.map_or(config.eps, |eps| eps as f32);
        Ok(config)
    }

    /// With the checkpoint's own `config.json`, where it has one.
    ///
    /// # Errors
    /// As [`Config::from_json`].
    pub fn with_file(self, c: &Checkpoint) -> Result<Self, CheckpointError> {
        c.config().map_or(Ok(self), |json| Self::from_json(json, c))
    }
}

/// Token ids `[t]` to embeddings `[t, hidden]` in `f32`: the input of the last layer, which is not run.
///
/// # Errors
/// If a tensor is missing or has another shape.
pub fn encoder(g: &mut Graph, w: &Weights, cfg: &Config, ids: Value) -> Result<Value> {
    let &[tokens] = &g.shape(ids)[..] else {
        return Err(Error::Request(format!(
            "token ids have shape {}, not one axis",
            g.shape(ids)
        )));
    };
    let positions: Vec<_> = (0..tokens).map(|i| [i]).collect();
    let (cos, sin) = rotary_table(&positions, &[cfg.head_dim], cfg.rope_theta);
    let angles = (g.constant(cos), g.constant(sin));
    let mut x = embedding(g, &w.at("embed_tokens"), ids, [cfg.vocabulary, cfg.hidden])?;
    g.tap("hidden_states.0", x);
    for i in 0..cfg.layers.saturating_sub(1) {
        x = layer(g, &w.at("layers").at(i), cfg, x, angles)?;
        g.tap(&format!("hidden_states.{}", i + 1), x);
    }
    Ok(result(g, x)?)
}

fn layer(g: &mut Graph, w: &Weights, cfg: &Config, x: Value, angles: (Value, Value)) -> Result<Value> {
    let h = rms_norm(g, &w.at("input_layernorm"), x, cfg.eps)?;
    let x = attention(g, &w.at("self_attn"), cfg, h, x, angles)?;
    let h = rms_norm(g, &w.at("post_attention_layernorm"), x, cfg.eps)?;
    let mlp = w.at("mlp");
    let gate = linear(g, &mlp.at("gate_proj"), h, cfg.intermediate, Epilogue::default())?;
    let up = linear(g, &mlp.at("up_proj"), h, cfg.intermediate, Epilogue::default())?;
    let h = g.swiglu(gate, up)?;
    linear(g, &mlp.at("down_proj"), h, cfg.hidden, Epilogue::default().residual(x))
}

fn attention(
    g: &mut Graph,
    w: &Weights,
    cfg: &Config,
    h: Value,
    residual: Value,
    (cos, sin): (Value, Value),
) -> Result<Value> {
    let (queries, keys) = (cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim);
    let q = linear(g, &w.at("q_proj"), h, queries, Epilogue::default())?;
    let k = linear(g, &w.at("k_proj"), h, keys, Epilogue::default())?;
    let v = linear(g, &w.at("v_proj"), h, keys, Epilogue::default())?;
    let q = heads(g, q, cfg.head_dim)?;
    let k = heads(g, k, cfg.head_dim)?;
    let v = heads(g, v, cfg.head_dim)?;
    let q = rms_norm(g, &w.at("q_norm"), q, cfg.eps)?;
    let k = rms_norm(g, &w.at("k_norm"), k, cfg.eps)?;
    g.enter(w);
    let q = g.rotary(q, cos, sin, Rotary::Halves)?;
    let k = g.rotary(k, cos, sin, Rotary::Halves)?;
    let attributes = Attention {
        mask: None,
        causal: true,
        scale: (cfg.head_dim as f32).sqrt().recip(),
    };
    let a = g.attention(q, k, v, attributes)?;
    let a = merge(g, a)?;
    linear(
        g,
        &w.at("o_proj"),
        a,
        cfg.hidden,
        Epilogue::default().residual(residual),
    )
}

//! Z-Image's S3-DiT: one stream of picture and caption tokens.

use super::blocks::{MAX_HEAD, activation, heads, linear, linear_bias, merge, result, rms_norm, rotary_table};
use super::config::{Json, count};
use crate::checkpoint::{Checkpoint, CheckpointError, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, Value};
use crate::ops::{Act, Attention, Epilogue, PatchOrder, Rotary, TimestepEmbedding, Unary};
use crate::tensor::Tensor;
use serde_json::Value as JsonValue;

/// Latent pixels per token along each side.
pub const PATCH: usize = 2;
/// Picture tokens and caption tokens are padded to multiples of this.
pub const TOKEN_MULTIPLE: usize = 32;

/// Sizes of a transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Channels of the latent.
    pub channels: usize,
    /// Width of the stream.
    pub dim: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width inside the MLP.
    pub intermediate: usize,
    /// Layers over picture and caption.
    pub layers: usize,
    /// Layers over the picture alone.
    pub noise_refiners: usize,
    /// Layers over the caption alone.
    pub context_refiners: usize,
    /// Width of the text encoder's embeddings.
    pub caption_dim: usize,
    /// Width of the timestep embedding that modulates the layers.
    pub modulation_dim: usize,
    /// Width inside the timestep MLP.
    pub timestep_hidden: usize,
    /// Sines and cosines of the timestep.
    pub frequencies: usize,
    /// Base of the rotary angles.
    pub rope_theta: f64,
    /// Factor on the model time before it is embedded.
    pub t_scale: f32,
    /// Added to mean squares.
    pub eps: f32,
    /// Width of a head for each position axis: sequence, row, column.
    pub axes_dims: [usize; 3],
    /// Positions per axis that the model knows.
    pub axes_lens: [usize; 3],
}

impl Config {
    /// Sizes from shapes, the rest as published.
    pub fn detect(c: &Checkpoint) -> Option<Self> {
        let &[dim, patch] = c.shape("all_x_embedder.2-1.weight")? else {
            return None;
        };
        let &[head_dim] = c.shape("layers.0.attention.norm_q.weight")? else {
            return None;
        };
        let &[intermediate, _] = c.shape("layers.0.feed_forward.w1.weight")? else {
            return None;
        };
        let &[_, caption_dim] = c.shape("cap_embedder.1.weight")? else {
            return None;
        };
        let &[timestep_hidden, frequencies] = c.shape("t_embedder.mlp.0.weight")? else {
            return None;
        };
        let &[modulation_dim, _] = c.shape("t_embedder.mlp.2.weight")? else {
            return None;
        };
        let fits = patch % (PATCH * PATCH) == 0 && dim % head_dim.max(1) == 0 && (1..=MAX_HEAD).contains(&head_dim);
        let block = "attention.to_q.weight";
        fits.then(|| Self {
            channels: patch / (PATCH * PATCH),
            dim,
            heads: dim / head_dim,
            head_dim,
            intermediate,
            layers: count(c, "layers", block),
            noise_refiners: count(c, "noise_refiner", block),
            context_refiners: count(c, "context_refiner", block),
            caption_dim,
            modulation_dim,
            timestep_hidden,
            frequencies,
            rope_theta: 256.0,
            t_scale: 1000.0,
            eps: 1e-5,
            axes_dims: [head_dim / 4, head_dim * 3 / 8, head_dim * 3 / 8],
            axes_lens: [1536, 512, 512],
        })
    }

    /// Takes what shapes cannot tell from a `config.json`.
    ///
    /// # Errors
    /// If it contradicts the shapes or asks for something unknown.
    pub fn from_json(json: &JsonValue, c: &Checkpoint) -> Result<Self, CheckpointError> {
        let mut config = Self::detect(c).ok_or_else(|| super::not_this(c, "a Z-Image transformer"))?;
        let json = Json::new(json, c);
        json.agree("in_channels", config.channels)?;
        json.agree("dim", config.dim)?;
        json.agree("n_heads", config.heads)?;
        json.agree("n_layers", config.layers)?;
        json.agree("n_refiner_layers", config.noise_refiners)?;
        json.agree("n_refiner_layers", config.context_refiners)?;
        json.agree("cap_feat_dim", config.caption_dim)?;
        json.agree_flag("qk_norm", true)?;
        json.only("_class_name", "ZImageTransformer2DModel")?;
        let three = |key: &str, sizes: Vec<usize>| {
            <[usize; 3]>::try_from(sizes).map_err(|sizes| json.error(format!("`{key}` is {sizes:?}, not three sizes")))
        };
        if let Some(dims) = json.sizes("axes_dims")? {
            config.axes_dims = three("axes_dims", dims)?;
        }
        if let Some(lens) = json.sizes("axes_lens")? {
            config.axes_lens = three("axes_lens", lens)?;
        }
        config.rope_theta = json.positive("rope_theta")?.unwrap_or(config.rope_theta);
        config.t_scale = json.positive("t_scale")?.map_or(config.t_scale, |v| v as f32);
        config.eps = json.positive("norm_eps")?.map_or(config.eps, |v| v as f32);
        let dims = config.axes_dims;
        let total = dims.iter().fold(0usize, |sum, &d| sum.saturating_add(d));
        if total != config.head_dim || dims.iter().any(|d| d % 2 != 0) {
            let head = config.head_dim;
            return Err(json.error(format!(
                "`axes_dims` is {dims:?}; it wants even sizes whose sum is the head's {head}"
            )));
        }
        Ok(config)
    }

    /// With the checkpoint's own `config.json`, where it has one.
    ///
    /// # Errors
    /// As [`Config::from_json`].
    pub fn with_file(self, c: &Checkpoint) -> Result<Self, CheckpointError> {
        c.config().map_or(Ok(self), |json| Self::from_json(json, c))
    }

    /// Checks that the model has positions for a latent of `h` by `w` and a caption of `tokens`.
    ///
    /// # Errors
    /// If it has too few.
    pub fn check_positions(&self, tokens: usize, h: usize, w: usize) -> Result<()> {
        let wanted = [tokens.next_multiple_of(TOKEN_MULTIPLE) + 2, h / PATCH, w / PATCH];
        let names = ["caption tokens", "rows", "columns"];
        for ((name, want), len) in names.iter().zip(wanted).zip(self.axes_lens) {
            if want > len {
                return Err(Error::Request(format!(
                    "this model has {len} positions for {name}, the request needs {want}"
                )));
            }
        }
        Ok(())
    }
}

/// Model output for a latent `[c, h, w]`, a model time `[1]` (1 - sigma) and caption embeddings `[tokens, caption_dim]`,
/// all `f32`: the whole transformer in one graph. The pipeline negates the result.
///
/// # Errors
/// If a tensor is missing or has another shape, or the model has too few positions.
pub fn transformer(g: &mut Graph, w: &Weights, cfg: &Config, latent: Value, t: Value, caption: Value) -> Result<Value> {
    let tokens = rows(g, caption)?;
    let refined = refined_caption(g, w, cfg, caption)?;
    denoiser(g, w, cfg, latent, t, refined, tokens)
}

/// Caption embeddings `[tokens, caption_dim]` to stream tokens `[padded, dim]`, in the graph's element type. They depend on the
/// prompt alone, so one run serves all steps.
///
/// # Errors
/// As [`transformer`].
pub fn refined_caption(g: &mut Graph, w: &Weights, cfg: &Config, caption: Value) -> Result<Value> {
    let tokens = rows(g, caption)?;
    let x = activation(g, caption)?;
    let embedder = w.at("cap_embedder");
    let x = rms_norm(g, &embedder.at(0), x, cfg.eps)?;
    let x = linear_bias(g, &embedder.at(1), x, cfg.dim, Epilogue::default())?;
    g.tap("cap_embedder", x);
    let mut x = padded(g, w, "cap_pad_token", x, cfg)?;
    let angles = angles(g, cfg, &caption_positions(tokens));
    for i in 0..cfg.context_refiners {
        x = block(g, &w.at("context_refiner").at(i), cfg, x, angles, None)?;
    }
    Ok(x)
}

fn rows(g: &Graph, caption: Value) -> Result<usize> {
    match g.shape(caption)[..] {
        [tokens, _] => Ok(tokens),
        _ => Err(Error::Request(format!(
            "caption embeddings have shape {}, not [tokens, width]",
            g.shape(caption)
        ))),
    }
}

/// The part that depends on the step: a latent `[c, h, w]`, a model time `[1]` and the [`refined_caption`] of a caption of `tokens`
/// tokens to the model output `[c, h, w]` in `f32`.
///
/// # Errors
/// As [`transformer`].
pub fn denoiser(
    g: &mut Graph,
    w: &Weights,
    cfg: &Config,
    latent: Value,
    t: Value,
    caption: Value,
    tokens: usize,
) -> Result<Value> {
    let &[channels, height, width] = &g.shape(latent)[..] else {
        return Err(Error::Request(format!(
            "a latent has shape {}, not [c, h, w]",
            g.shape(latent)
        )));
    };
    cfg.check_positions(tokens, height, width)?;
    let time = timestep(g, &w.at("t_embedder"), cfg, t)?;
    let caption = activation(g, caption)?;

    let x = activation(g, latent)?;
    let x = g.reshape(x, [1, channels, height, width])?;
    let x = g.patchify(x, PATCH, PatchOrder::ChannelsLast)?;
    let count = g.shape(x)[1];
    let x = g.reshape(x, [count, channels * PATCH * PATCH])?;
    let x = linear_bias(g, &w.at("all_x_embedder.2-1"), x, cfg.dim, Epilogue::default())?;
    g.tap("all_x_embedder.2-1", x);
    let mut x = padded(g, w, "x_pad_token", x, cfg)?;
    let mut positions = picture_positions(tokens, height / PATCH, width / PATCH);
    let picture = angles(g, cfg, &positions);
    for i in 0..cfg.noise_refiners {
        x = block(g, &w.at("noise_refiner").at(i), cfg, x, picture, Some(time))?;
    }

    x = g.concat(&[x, caption], 0)?;
    positions.extend(caption_positions(tokens));
    let both = angles(g, cfg, &positions);
    for i in 0..cfg.layers {
        x = block(g, &w.at("layers").at(i), cfg, x, both, Some(time))?;
    }

    let last = w.at("all_final_layer.2-1");
    let x = g.slice(x, 0, 0, count)?;
    let x = final_layer(g, &last, cfg, x, time)?;
    g.tap(last.path(), x);
    let x = g.reshape(x, [1, count, channels * PATCH * PATCH])?;
    let x = g.unpatchify(x, channels, height, width, PATCH, PatchOrder::ChannelsLast)?;
    let x = g.reshape(x, [channels, height, width])?;
    Ok(result(g, x)?)
}

/// `[1]` to `[1, modulation_dim]`.
fn timestep(g: &mut Graph, w: &Weights, cfg: &Config, t: Value) -> Result<Value> {
    g.enter(w);
    let attributes = TimestepEmbedding {
        dim: cfg.frequencies,
        max_period: 10_000.0,
        scale: cfg.t_scale,
        flip_sin_to_cos: true,
        shift: 0.0,
    };
    let x = g.timestep_embedding(t, attributes)?;
    let mlp = w.at("mlp");
    let x = linear_bias(
        g,
        &mlp.at(0),
        x,
        cfg.timestep_hidden,
        Epilogue::default().act(Act::Silu),
    )?;
    let x = linear_bias(g, &mlp.at(2), x, cfg.modulation_dim, Epilogue::default())?;
    g.tap(w.path(), x);
    Ok(x)
}

/// Rows up to the next multiple of [`TOKEN_MULTIPLE`], filled with a learned token.
fn padded(g: &mut Graph, w: &Weights, token: &str, x: Value, cfg: &Config) -> Result<Value> {
    let rows = g.shape(x)[0];
    let missing = rows.next_multiple_of(TOKEN_MULTIPLE) - rows;
    if missing == 0 {
        return Ok(x);
    }
    let token = g.weight(w, token, [1, cfg.dim])?;
    let first = g.constant(Tensor::ids([missing], &vec![0; missing]));
    let fill = g.embedding(token, first)?;
    Ok(g.concat(&[x, fill], 0)?)
}

/// Captions count from 1, padding included.
fn caption_positions(tokens: usize) -> Vec<[usize; 3]> {
    (1..=tokens.next_multiple_of(TOKEN_MULTIPLE))
        .map(|i| [i, 0, 0])
        .collect()
}

/// Pictures come after the padded caption, with row and column; their own padding sits at the origin.
fn picture_positions(tokens: usize, rows: usize, cols: usize) -> Vec<[usize; 3]> {
    let at = tokens.next_multiple_of(TOKEN_MULTIPLE) + 1;
    let mut positions: Vec<_> = (0..rows).flat_map(|y| (0..cols).map(move |x| [at, y, x])).collect();
    positions.resize(positions.len().next_multiple_of(TOKEN_MULTIPLE), [0; 3]);
    positions
}

fn angles(g: &mut Graph, cfg: &Config, positions: &[[usize; 3]]) -> (Value, Value) {
    let (cos, sin) = rotary_table(positions, &cfg.axes_dims, cfg.rope_theta);
    (g.constant(cos), g.constant(sin))
}

/// Scale and gate of the attention, scale and gate of the MLP.
struct Modulation {
    attention: (Value, Value),
    mlp: (Value, Value),
}

fn modulation(g: &mut Graph, w: &Weights, cfg: &Config, time: Value) -> Result<Modulation> {
    let all = linear_bias(g, &w.at("adaLN_modulation.0"), time, 4 * cfg.dim, Epilogue::default())?;
    let all = g.reshape(all, [4 * cfg.dim])?;
    let mut chunk = |i| g.slice(all, 0, i * cfg.dim, cfg.dim);
    let [scale_a, gate_a, scale_m, gate_m] = [chunk(0)?, chunk(1)?, chunk(2)?, chunk(3)?];
    Ok(Modulation {
        attention: (scale_a, g.unary(gate_a, Unary::Tanh)?),
        mlp: (scale_m, g.unary(gate_m, Unary::Tanh)?),
    })
}

fn block(
    g: &mut Graph,
    w: &Weights,
    cfg: &Config,
    x: Value,
    angles: (Value, Value),
    time: Option<Value>,
) -> Result<Value> {
    let modulation = time.map(|t| modulation(g, w, cfg, t)).transpose()?;
    let gates = modulation.as_ref();

    let h = norm_in(g, &w.at("attention_norm1"), cfg, x, gates.map(|m| m.attention.0))?;
    let h = attention(g, &w.at("attention"), cfg, h, angles)?;
    g.tap(w.at("attention").path(), h);
    let x = norm_out(g, &w.at("attention_norm2"), cfg, x, h, gates.map(|m| m.attention.1))?;

    let h = norm_in(g, &w.at("ffn_norm1"), cfg, x, gates.map(|m| m.mlp.0))?;
    let h = feed_forward(g, &w.at("feed_forward"), cfg, h)?;
    g.tap(w.at("feed_forward").path(), h);
    let x = norm_out(g, &w.at("ffn_norm2"), cfg, x, h, gates.map(|m| m.mlp.1))?;
    g.tap(w.path(), x);
    Ok(x)
}

/// `norm(x) * (1 + scale)`.
fn norm_in(g: &mut Graph, w: &Weights, cfg: &Config, x: Value, scale: Option<Value>) -> Result<Value> {
    let h = rms_norm(g, w, x, cfg.eps)?;
    Ok(match scale {
        Some(scale) => g.modulate(h, scale, None)?,
        None => h,
    })
}

/// `x + gate * norm(h)`.
fn norm_out(g: &mut Graph, w: &Weights, cfg: &Config, x: Value, h: Value, gate: Option<Value>) -> Result<Value> {
    let h = rms_norm(g, w, h, cfg.eps)?;
    Ok(match gate {
        Some(gate) => g.gated_add(x, gate, h)?,
        None => g.add(x, h)?,
    })
}

fn attention(g: &mut Graph, w: &Weights, cfg: &Config, h: Value, (cos, sin): (Value, Value)) -> Result<Value> {
    // The norms of queries and keys keep this value whatever the model's own is.
    const EPS: f32 = 1e-5;
    let project = |g: &mut Graph, name: &str| -> Result<Value> {
        let y = linear(g, &w.at(name), h, cfg.dim, Epilogue::default())?;
        Ok(heads(g, y, cfg.head_dim)?)
    };
    let q = project(g, "to_q")?;
    let k = project(g, "to_k")?;
    let v = project(g, "to_v")?;
    let q = rms_norm(g, &w.at("norm_q"), q, EPS)?;
    let k = rms_norm(g, &w.at("norm_k"), k, EPS)?;
    g.enter(w);
    let q = g.rotary(q, cos, sin, Rotary::Interleaved)?;
    let k = g.rotary(k, cos, sin, Rotary::Interleaved)?;
    let attributes = Attention {
        mask: None,
        causal: false,
        scale: (cfg.head_dim as f32).sqrt().recip(),
    };
    let a = g.attention(q, k, v, attributes)?;
    let a = merge(g, a)?;
    linear(g, &w.at("to_out.0"), a, cfg.dim, Epilogue::default())
}

fn feed_forward(g: &mut Graph, w: &Weights, cfg: &Config, h: Value) -> Result<Value> {
    let gate = linear(g, &w.at("w1"), h, cfg.intermediate, Epilogue::default())?;
    let up = linear(g, &w.at("w3"), h, cfg.intermediate, Epilogue::default())?;
    let h = g.swiglu(gate, up)?;
    linear(g, &w.at("w2"), h, cfg.dim, Epilogue::default())
}

fn final_layer(g: &mut Graph, w: &Weights, cfg: &Config, x: Value, time: Value) -> Result<Value> {
    let scale = g.unary(time, Unary::Silu)?;
    let scale = linear_bias(g, &w.at("adaLN_modulation.1"), scale, cfg.dim, Epilogue::default())?;
    let scale = g.reshape(scale, [cfg.dim])?;
    let x = g.layer_norm(x, None, None, 1e-6)?;
    let x = g.modulate(x, scale, None)?;
    linear_bias(g, &w.at("linear"), x, cfg.channels * PATCH * PATCH, Epilogue::default())
}

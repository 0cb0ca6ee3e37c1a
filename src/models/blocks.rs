//! Layers that models share.

use crate::adapter::{Layer, adapted};
use crate::checkpoint::Weights;
use crate::error::{Result, ShapeError};
use crate::graph::{Graph, Value};
use crate::ops::{Act, Attention, Conv2d, Epilogue};
use crate::tensor::{DType, Tensor};

pub use super::linear::{Guard, embedding, linear, linear_bias, linear_guarded};

/// Widest head that attention takes. Tables of angles are made before it sees one.
pub(super) const MAX_HEAD: usize = 512;

/// RMS norm over the last axis, with the `weight` below `w`.
pub(super) fn rms_norm(g: &mut Graph, w: &Weights, x: Value, eps: f32) -> Result<Value> {
    let weight = g.vector(w, "weight", g.shape(x).last())?;
    Ok(g.rms_norm(x, Some(weight), eps)?)
}

/// Group norm with the `weight` and `bias` below `w`.
pub(super) fn group_norm(g: &mut Graph, w: &Weights, x: Value, groups: usize, act: Act) -> Result<Value> {
    const EPS: f32 = 1e-6;
    let channels = channels(g, x);
    let weight = g.vector(w, "weight", channels)?;
    let bias = g.vector(w, "bias", channels)?;
    Ok(g.group_norm(x, weight, bias, groups, EPS, act)?)
}

/// A square convolution to `out` channels with the `weight` and `bias` below `w`.
pub(super) fn conv(
    g: &mut Graph,
    w: &Weights,
    x: Value,
    (out, kernel): (usize, usize),
    attributes: Conv2d,
    epilogue: Epilogue,
) -> Result<Value> {
    let bias = g.vector(w, "bias", out)?;
    bare_conv(g, w, x, (out, kernel), attributes, epilogue.bias(bias))
}

/// As [`conv`], without a bias.
pub(super) fn bare_conv(
    g: &mut Graph,
    w: &Weights,
    x: Value,
    (out, kernel): (usize, usize),
    attributes: Conv2d,
    epilogue: Epilogue,
) -> Result<Value> {
    adapted(g, w, (x, Layer::Conv(attributes)), out, epilogue, |g, epilogue| {
        let weight = g.weight(w, "weight", [out, channels(g, x), kernel, kernel])?;
        Ok(g.conv2d(x, weight, attributes, epilogue)?)
    })
}

/// A 3x3 convolution that keeps the size.
pub(super) fn conv3(g: &mut Graph, w: &Weights, x: Value, out: usize, epilogue: Epilogue) -> Result<Value> {
    conv(g, w, x, (out, 3), Conv2d::padded(1), epilogue)
}

/// A 1x1 convolution.
pub(super) fn conv1(g: &mut Graph, w: &Weights, x: Value, out: usize, epilogue: Epilogue) -> Result<Value> {
    conv(g, w, x, (out, 1), Conv2d::padded(0), epilogue)
}

/// Channels of `[n, c, ..]`; 0, which no weight has, where there is no such axis.
pub(super) fn channels(g: &Graph, x: Value) -> usize {
    g.shape(x).get(1).copied().unwrap_or(0)
}

/// `[t, h * d]` as the `[1, t, h, d]` that attention takes.
pub(super) fn heads(g: &mut Graph, x: Value, head_dim: usize) -> Result<Value, ShapeError> {
    let (tokens, width) = (g.shape(x)[0], g.shape(x).last());
    g.reshape(x, [1, tokens, width / head_dim, head_dim])
}

/// `[1, t, h, d]` back to `[t, h * d]`.
pub(super) fn merge(g: &mut Graph, x: Value) -> Result<Value, ShapeError> {
    let [_, tokens, heads, head_dim] = g.shape(x)[..] else {
        return Err(ShapeError::new("merge", &[g.ty(x).clone()], "wants [1, t, h, d]"));
    };
    g.reshape(x, [tokens, heads * head_dim])
}

/// `x` plus one head of attention over all pixels of `h`, `[1, c, height, width]` both; `out` names the last projection.
pub(super) fn attend_pixels(g: &mut Graph, w: &Weights, x: Value, h: Value, out: &str) -> Result<Value> {
    let shape = g.shape(x).clone();
    let (c, pixels) = (channels(g, x), shape.iter().skip(2).product());
    let h = g.reshape(h, [c, pixels])?;
    let h = g.permute(h, &[1, 0])?;
    let project = |g: &mut Graph, name: &str| -> Result<Value> {
        let y = linear_bias(g, &w.at(name), h, c, Epilogue::default())?;
        Ok(g.reshape(y, [1, pixels, 1, c])?)
    };
    let q = project(g, "to_q")?;
    let k = project(g, "to_k")?;
    let v = project(g, "to_v")?;
    g.enter(w);
    let attributes = Attention {
        mask: None,
        causal: false,
        scale: (c as f32).sqrt().recip(),
    };
    let a = g.attention(q, k, v, attributes)?;
    let a = merge(g, a)?;
    let a = linear_bias(g, &w.at(out), a, c, Epilogue::default())?;
    let a = g.permute(a, &[1, 0])?;
    let a = g.reshape(a, shape)?;
    let y = g.add(x, a)?;
    g.tap(w.path(), y);
    Ok(y)
}

/// A value from the host, in the element type of the graph's activations.
pub(super) fn activation(g: &mut Graph, x: Value) -> Result<Value, ShapeError> {
    g.cast(x, g.dtype())
}

/// A result for the host.
pub(super) fn result(g: &mut Graph, x: Value) -> Result<Value, ShapeError> {
    g.cast(x, DType::F32)
}

/// `x * gain + offset` with a gain and an offset for each channel of `[n, c, h, w]`.
pub(super) fn affine(g: &mut Graph, x: Value, gain: Vec<f64>, offset: Vec<f64>) -> Result<Value, ShapeError> {
    let mut constant = |values: Vec<f64>| {
        let shape = [1, values.len(), 1, 1];
        g.constant(Tensor::new(shape, values.iter().map(|&v| v as f32).collect()))
    };
    let (gain, offset) = (constant(gain), constant(offset));
    let x = g.mul(x, gain)?;
    g.add(x, offset)
}

/// Cosines and sines of rotary angles, `[t, d / 2]` each: pair `i` of axis `a` turns by `position[a] * theta^(-2i / dims[a])`.
///
/// A position has one entry per axis; the axes' pairs follow one another. Angles are rounded to `f32`, as PyTorch's are.
pub fn rotary_table<const AXES: usize>(
    positions: &[[usize; AXES]],
    dims: &[usize; AXES],
    theta: f64,
) -> (Tensor, Tensor) {
    let frequencies: Vec<Vec<f64>> = dims
        .iter()
        .map(|&dim| (0..dim / 2).map(|i| theta.powf(-2.0 * i as f64 / dim as f64)).collect())
        .collect();
    let angles = || {
        positions.iter().flat_map(|position| {
            position
                .iter()
                .zip(&frequencies)
                .flat_map(|(&p, axis)| axis.iter().map(move |f| f64::from((p as f64 * f) as f32)))
        })
    };
    let shape = [positions.len(), frequencies.iter().map(Vec::len).sum()];
    (
        Tensor::new(shape, angles().map(|a| a.cos() as f32).collect()),
        Tensor::new(shape, angles().map(|a| a.sin() as f32).collect()),
    )
}

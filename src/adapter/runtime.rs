//! Adapters that are added to a layer's output: the weight stays as it is, packed or in whatever basis.

use super::Extras;
use super::patch::{Change, Factor, Patch, each_rows};
use crate::checkpoint::{Checkpoint, Weights};
use crate::error::{AdapterError, Result};
use crate::graph::{Graph, Value};
use crate::ops::{Act, Conv2d, Epilogue, Unary};
use crate::tensor::{DType, Shape, Tensor};

/// Something that is added to a layer's output, by names of tensors beside the checkpoint's own.
#[derive(Clone, Debug)]
enum Step {
    /// `up (down x)`
    Product { down: String, up: String, rank: usize },
    /// `y[l, p] = sum_mq w1[l, m] w2[p, q] x[m, q]`, of which the outputs from `first` on are the layer's.
    Kronecker {
        w1: String,
        w2: String,
        sizes: [usize; 4],
        first: usize,
    },
    /// `gain * (weight x)`
    Dense { weight: String, gain: Option<String> },
}

/// What is added to the output of one layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Site {
    steps: Vec<Step>,
    /// DoRA's factors on the layer's own product.
    factor: Option<String>,
    /// A bias that the layer has not of its own.
    pub(crate) bias: Option<String>,
}

/// A layer as the hook sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Layer {
    /// `x w^T`
    Linear,
    /// Filters.
    Conv(Conv2d),
}

/// Whether layers of this weight ask for what is added to their output: matrices of linear layers, and filters of pictures.
pub(super) fn reaches(weight: &str, shape: &[usize]) -> bool {
    let linear = shape.len() == 2 && !weight.ends_with("embed_tokens.weight");
    weight.ends_with(".weight") && (linear || shape.len() == 4)
}

/// Prepares what is added at run time: tensors go to `extras`.
pub(super) fn site(
    checkpoint: &Checkpoint,
    weight: &str,
    patch: &Patch,
    extras: &mut Extras,
) -> std::result::Result<Site, AdapterError> {
    let shape = checkpoint.info(weight)?.shape.clone();
    let mut site = Site::default();
    // The factors of several adapters on the layer's own product: 1 + sum w (f - 1).
    let mut own: Option<Vec<f32>> = None;
    for (i, change) in patch.changes.iter().enumerate() {
        let name = |what: &str| format!("@adapter.{weight}.{i}.{what}");
        if let Some(Factor::Rows(factors)) = &change.factor {
            let own = own.get_or_insert_with(|| vec![1.0; shape[0]]);
            let part = factors.iter().skip(change.first);
            own.iter_mut()
                .zip(part)
                .for_each(|(v, f)| *v += change.weight * (f - 1.0));
        }
        let step = match product(change, &shape, name, extras) {
            Some(step) => step,
            None => match kronecker(change, &shape, name, extras) {
                Some(step) => step,
                None => dense(checkpoint, weight, change, &shape, name, extras)?,
            },
        };
        site.steps.push(step);
    }
    if let Some(own) = own {
        let name = format!("@adapter.{weight}.factor");
        extras.add(&name, Tensor::new([own.len()], own));
        site.factor = Some(name);
    }
    Ok(site)
}

/// Row `i` of a change is multiplied by this, once its product is there.
fn row_gain(change: &Change, i: usize) -> Option<f32> {
    match &change.factor {
        None => Some(change.weight),
        Some(Factor::Rows(factors)) => Some(change.weight * factors[change.first + i]),
        Some(Factor::Columns(_)) => None,
    }
}

fn product(change: &Change, shape: &Shape, name: impl Fn(&str) -> String, extras: &mut Extras) -> Option<Step> {
    row_gain(change, 0)?;
    let product = change.delta.product()?;
    let (n, rank) = (shape[0], product.rank);
    let mut up = product.up[change.first * rank..(change.first + n) * rank].to_vec();
    for (i, row) in up.chunks_exact_mut(rank).enumerate() {
        let gain = row_gain(change, i)? * change.delta.scale;
        row.iter_mut().for_each(|v| *v *= gain);
    }
    let (mut wide, mut tall) = (shape.to_vec(), vec![n, rank]);
    wide[0] = rank;
    tall.resize(shape.len(), 1);
    let step = Step::Product {
        down: name("down"),
        up: name("up"),
        rank,
    };
    extras.add(&name("down"), Tensor::new(wide, product.down));
    extras.add(&name("up"), Tensor::new(tall, up));
    Some(step)
}

fn kronecker(change: &Change, shape: &Shape, name: impl Fn(&str) -> String, extras: &mut Extras) -> Option<Step> {
    let super::delta::Form::Kronecker { w1, w2, a2, b2 } = &change.delta.form else {
        return None;
    };
    if change.factor.is_some() || shape.len() != 2 {
        return None;
    }
    let gain = change.weight * change.delta.scale;
    let sizes = [w1.len() / a2, *a2, w2.len() / b2, *b2];
    let [a1, a2, b1, b2] = sizes;
    let step = Step::Kronecker {
        w1: name("w1"),
        w2: name("w2"),
        sizes,
        first: change.first,
    };
    let scaled = w1.iter().map(|v| v * gain).collect();
    extras.add(&name("w1"), Tensor::new([a1, a2], scaled));
    extras.add(&name("w2"), Tensor::new([b1, b2], w2.clone()));
    Some(step)
}

/// The difference itself. Beside a weight of half precision or less it is kept in F16, each row by its largest value.
fn dense(
    checkpoint: &Checkpoint,
    weight: &str,
    change: &Change,
    shape: &Shape,
    name: impl Fn(&str) -> String,
    extras: &mut Extras,
) -> std::result::Result<Step, AdapterError> {
    let (n, k) = (shape[0], change.delta.k);
    let half = shape.len() == 2 && checkpoint.info(weight)?.weight()? != DType::F32;
    let (mut values, mut gains) = (Vec::with_capacity(n * k), Vec::with_capacity(n));
    let patch = Patch {
        changes: vec![change.clone()],
    };
    let columns = matches!(change.factor, Some(Factor::Columns(_)));
    let mut push = |rows: std::ops::Range<usize>, mut delta: Vec<f32>| {
        for (i, row) in delta.chunks_exact_mut(k).enumerate() {
            if let Some(gain) = row_gain(change, rows.start + i) {
                row.iter_mut().for_each(|v| *v *= gain);
            }
            if half {
                let largest = row.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let gain = if largest > 0.0 { largest } else { 1.0 };
                row.iter_mut().for_each(|v| *v /= gain);
                gains.push(gain);
            }
        }
        values.append(&mut delta);
        Ok::<_, AdapterError>(())
    };
    if columns {
        // What the columns' factors do to the weight itself is part of the difference.
        each_rows(checkpoint, weight, (n, k), |rows, own| {
            let mut new = own.clone();
            patch.apply(rows.clone(), &mut new)?;
            new.iter_mut().zip(own).for_each(|(v, o)| *v -= o);
            push(rows, new)
        })?;
    } else {
        const ROWS: usize = 256;
        for start in (0..n).step_by(ROWS) {
            let rows = start..n.min(start + ROWS);
            push(
                rows.clone(),
                change.delta.rows(change.first + rows.start..change.first + rows.end)?,
            )?;
        }
    }
    let tensor = Tensor::new(shape.clone(), values);
    let tensor = if half { tensor.to_dtype(DType::F16) } else { tensor };
    extras.add(&name("diff"), tensor);
    if half {
        extras.add(&name("gain"), Tensor::new([n], gains));
    }
    Ok(Step::Dense {
        weight: name("diff"),
        gain: half.then(|| name("gain")),
    })
}

impl Step {
    /// Adds the step's output to `sum`.
    fn run(
        &self,
        g: &mut Graph,
        all: &Weights,
        (x, layer): (Value, Layer),
        out: usize,
        sum: Option<Value>,
    ) -> Result<Value> {
        let epilogue = Epilogue {
            residual: sum,
            ..Epilogue::default()
        };
        let input = g.shape(x).clone();
        let filter = |rows: usize, name: &str| match layer {
            Layer::Linear => vec![rows, input.last()],
            // The window is that of the tensor; channels are checked.
            Layer::Conv(_) => {
                let window = all.shape(name).map_or(&[][..], |s| s.get(2..).unwrap_or_default());
                [&[rows, input.get(1).copied().unwrap_or(0)], window].concat()
            }
        };
        let apply = |g: &mut Graph, x, weight, conv: Conv2d, epilogue| match layer {
            Layer::Linear => g.matmul(x, weight, epilogue),
            Layer::Conv(_) => g.conv2d(x, weight, conv, epilogue),
        };
        let own = match layer {
            Layer::Linear => Conv2d::padded(0),
            Layer::Conv(conv) => conv,
        };
        match self {
            Self::Product { down, up, rank } => {
                let wide = g.weight(all, down, filter(*rank, down))?;
                let h = apply(g, x, wide, own, Epilogue::default())?;
                let tall = match layer {
                    Layer::Linear => vec![out, *rank],
                    Layer::Conv(_) => vec![out, *rank, 1, 1],
                };
                let tall = g.weight(all, up, tall)?;
                Ok(apply(g, h, tall, Conv2d::padded(0), epilogue)?)
            }
            Self::Dense { weight, gain } => {
                let filter = g.weight(all, weight, filter(out, weight))?;
                let gain = gain.as_ref().map(|name| g.vector(all, name, out)).transpose()?;
                Ok(apply(
                    g,
                    x,
                    filter,
                    own,
                    Epilogue {
                        scale: gain,
                        ..epilogue
                    },
                )?)
            }
            Self::Kronecker { w1, w2, sizes, first } => {
                let [a1, a2, b1, b2] = *sizes;
                let rows = input.count() / input.last().max(1);
                let w1 = g.weight(all, w1, [a1, a2])?;
                let w2 = g.weight(all, w2, [b1, b2])?;
                let h = g.reshape(x, [rows * a2, b2])?;
                let h = g.matmul(h, w2, Epilogue::default())?;
                let h = g.reshape(h, [rows, a2, b1])?;
                let h = g.permute(h, &[0, 2, 1])?;
                let h = g.matmul(h, w1, Epilogue::default())?;
                let h = g.permute(h, &[0, 2, 1])?;
                let mut shape = input.to_vec();
                if let Some(last) = shape.last_mut() {
                    *last = a1 * b1;
                }
                let axis = shape.len().saturating_sub(1);
                let mut h = g.reshape(h, shape)?;
                // Rows of a fused layer need not begin at a block.
                if a1 * b1 != out {
                    h = g.slice(h, axis, *first, out)?;
                }
                Ok(match sum {
                    Some(sum) => g.add(sum, h)?,
                    None => h,
                })
            }
        }
    }
}

/// A layer with what its adapters add: `own` is the layer itself, of input `x` and weights below `w`, with an epilogue.
///
/// # Errors
/// As `own`, or if an adapter's tensor does not fit.
pub(crate) fn adapted(
    g: &mut Graph,
    w: &Weights,
    (x, layer): (Value, Layer),
    out: usize,
    mut epilogue: Epilogue,
    own: impl FnOnce(&mut Graph, Epilogue) -> Result<Value>,
) -> Result<Value> {
    let Some(site) = w.checkpoint().site(w.path()).cloned() else {
        return own(g, epilogue);
    };
    g.reach(w.path());
    g.enter(w);
    let all = Weights::new(w.checkpoint().clone());
    if let (None, Some(bias)) = (epilogue.bias, &site.bias) {
        epilogue.bias = Some(g.vector(&all, bias, out)?);
    }
    // Where nothing but a residual follows the sum, the adapters' part is the residual.
    let plain = site.factor.is_none();
    let fused = plain && epilogue.act == Act::None && epilogue.gate.is_none();
    let mut sum = epilogue.residual.filter(|_| fused);
    for step in &site.steps {
        sum = Some(step.run(g, &all, (x, layer), out, sum)?);
    }
    g.enter(w);
    if fused {
        return own(
            g,
            Epilogue {
                residual: sum,
                ..epilogue
            },
        );
    }
    let inner = Epilogue {
        bias: epilogue.bias.filter(|_| plain),
        act: Act::None,
        residual: sum.filter(|_| plain),
        gate: None,
        scale: epilogue.scale,
    };
    let mut y = own(g, inner)?;
    g.enter(w);
    if let Some(factor) = &site.factor {
        let factor = g.vector(&all, factor, out)?;
        g.enter(w);
        let factor = along_channels(g, factor, y, layer)?;
        y = g.mul(y, factor)?;
        if let Some(bias) = epilogue.bias {
            let bias = along_channels(g, bias, y, layer)?;
            y = g.add(y, bias)?;
        }
        if let Some(sum) = sum {
            y = g.add(y, sum)?;
        }
    }
    finish(g, y, layer, &epilogue)
}

/// What follows the sum: activation, gate and residual, one by one.
fn finish(g: &mut Graph, y: Value, layer: Layer, epilogue: &Epilogue) -> Result<Value> {
    let y = match epilogue.act {
        Act::None => y,
        Act::Relu => g.unary(y, Unary::Relu)?,
        Act::Silu => g.unary(y, Unary::Silu)?,
        Act::Gelu => g.unary(y, Unary::Gelu)?,
        Act::GeluTanh => g.unary(y, Unary::GeluTanh)?,
    };
    Ok(match (epilogue.residual, epilogue.gate) {
        (Some(residual), Some(gate)) => {
            let gate = along_channels(g, gate, y, layer)?;
            g.gated_add(residual, gate, y)?
        }
        (Some(residual), None) => g.add(residual, y)?,
        (None, _) => y,
    })
}

/// A vector of channels, so that it broadcasts over the output `y`.
fn along_channels(g: &mut Graph, vector: Value, y: Value, layer: Layer) -> Result<Value> {
    let vector = g.cast(vector, g.ty(y).dtype)?;
    Ok(match layer {
        Layer::Linear => vector,
        Layer::Conv(_) => {
            let channels = g.shape(vector).count();
            g.reshape(vector, [1, channels, 1, 1])?
        }
    })
}

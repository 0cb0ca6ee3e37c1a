//! `attention`: scaled dot-product attention with grouped heads, an additive mask and causality.

use super::is_activation;
use crate::cpu::attention::{Heads, attention};
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Launch, Op, Operand, Way, random_tensor};
use crate::tensor::{DType, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// How queries attend to keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// `f32`, added to the scores: `[1 or b, 1 or hq, 1 or tq, tk]`. A score of -1e38 or less, as from a mask of -infinity, has no
    /// weight.
    pub mask: Option<Value>,
    /// Whether query `i` sees only the keys up to `i + tk - tq`.
    pub causal: bool,
    /// Factor on the dot products, mostly `1 / sqrt(d)`.
    pub scale: f32,
}

/// [`Attention`] as an op.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Whether there is a mask.
    pub mask: bool,
    /// Whether query `i` sees only the keys up to `i + tk - tq`.
    pub causal: bool,
    /// Factor on the dot products.
    pub scale: f32,
}

/// Scores from here down have no weight: a finite stand-in for -infinity, which WGSL need not support.
pub(crate) const MASKED: f32 = -1e38;

/// Most bytes of scores that a way may keep.
const MAX_SCORES: u64 = 256 << 20;

/// Largest head.
const MAX_D: usize = 512;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    batches: u32,
    tq: u32,
    tk: u32,
    hq: u32,
    hk: u32,
    d: u32,
    mask_b: u32,
    mask_h: u32,
    mask_i: u32,
    scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RowParams {
    rows: u32,
    keys: u32,
}

impl Graph {
    /// `softmax(scale * q k^T + mask) v` for each head: `q` of `[b, tq, hq, d]`, `k` and `v` of `[b, tk, hk, d]` give
    /// `[b, tq, hq, d]`. Heads of `q` share those of `k` and `v` in groups of `hq / hk`. A query that sees no key gets zeros.
    ///
    /// # Errors
    /// If the operands are no activations of one type, their sizes do not fit, or `d` is over 512.
    pub fn attention(&mut self, q: Value, k: Value, v: Value, how: Attention) -> Result<Value, ShapeError> {
        let op = Attend {
            mask: how.mask.is_some(),
            causal: how.causal,
            scale: how.scale,
        };
        let inputs: Vec<_> = [q, k, v].into_iter().chain(how.mask).collect();
        self.push(op, &inputs)
    }
}

impl Attend {
    /// Sizes and strides of checked inputs.
    fn heads(&self, q: &TensorType, k: &TensorType, mask: Option<&TensorType>) -> Heads {
        let axes = mask.map_or([1; 4], |m| [m.shape[0], m.shape[1], m.shape[2], m.shape[3]]);
        let stride = |axis: usize| match axes[axis] {
            1 => 0,
            _ => axes[axis + 1..].iter().product(),
        };
        Heads {
            batches: q.shape[0],
            tq: q.shape[1],
            tk: k.shape[1],
            hq: q.shape[2],
            hk: k.shape[2],
            d: q.shape[3],
            mask: [stride(0), stride(1), stride(2)],
            causal: self.causal,
            scale: self.scale,
        }
    }

    /// For software adapters: three launches that keep the scores in scratch, none if those are too many.
    fn lanes(&self, inputs: &[TensorType], heads: &Heads, caps: &Caps) -> Option<Way> {
        let Heads {
            batches, tq, tk, hq, d, ..
        } = *heads;
        let rows = batches * hq * tq;
        let bytes = rows as u64 * (tk as u64 + 1) * 4;
        if !caps.lanes() || bytes > caps.max_binding.min(MAX_SCORES) {
            return None;
        }
        let causal = u32::from(self.causal);
        let params = self.params(heads);
        let tiles = |columns: usize| caps.grid(batches * hq * tq.div_ceil(16) * columns.div_ceil(32));
        let kernel = KernelSpec::new(wgsl!("ops/attention_scores"))
            .elem(inputs[0].dtype)
            .slot("mask", self.mask_slot())
            .set("CAUSAL", causal);
        let mut scores = Launch::new(kernel, &params, tiles(tk)).writes_scratch(0).inputs(2);
        if self.mask {
            scores = scores.read(5, Operand::Input(3));
        }
        let row_params = RowParams {
            rows: rows as u32,
            keys: tk as u32,
        };
        let kernel = KernelSpec::new(wgsl!("ops/attention_weights"));
        let weights = Launch::new(kernel, &row_params, caps.grid(rows)).writes_scratch(0);
        let kernel = KernelSpec::new(wgsl!("ops/attention_values"))
            .elem(inputs[0].dtype)
            .set("CAUSAL", causal);
        let values = Launch::new(kernel, &params, tiles(d))
            .read(2, Operand::Scratch(0))
            .read(4, Operand::Input(2));
        Some(Way {
            name: "lanes",
            launches: vec![scores, weights, values],
            scratch: vec![bytes],
        })
    }

    fn baseline(&self, inputs: &[TensorType], heads: &Heads, caps: &Caps) -> Way {
        // Wide heads leave registers for fewer queries.
        let (lx, ly) = if heads.d > 128 { (32, 8) } else { (16, 16) };
        let kernel = KernelSpec::new(wgsl!("ops/attention"))
            .elem(inputs[0].dtype)
            .slot("mask", self.mask_slot())
            .set("LX", lx)
            .set("LY", ly)
            .set("CT", heads.d.div_ceil(lx as usize) as u32)
            .set("CAUSAL", u32::from(self.causal));
        let groups = heads.tq.div_ceil(4 * ly as usize) * heads.hq * heads.batches;
        let launch = Launch::new(kernel, &self.params(heads), caps.grid(groups));
        Way::baseline(launch.inputs(inputs.len()))
    }

    fn mask_slot(&self) -> &'static str {
        if self.mask { "tensor" } else { "none" }
    }

    fn params(&self, heads: &Heads) -> Params {
        let [mask_b, mask_h, mask_i] = heads.mask.map(|stride| stride as u32);
        Params {
            batches: heads.batches as u32,
            tq: heads.tq as u32,
            tk: heads.tk as u32,
            hq: heads.hq as u32,
            hk: heads.hk as u32,
            d: heads.d as u32,
            mask_b,
            mask_h,
            mask_i,
            scale: self.scale,
        }
    }
}

impl Op for Attend {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let refuse = |rule: &str| Err(ShapeError::new("attention", inputs, rule));
        let (q, k, v, mask) = match inputs {
            [q, k, v] if !self.mask => (q, k, v, None),
            [q, k, v, mask] if self.mask => (q, k, v, Some(mask)),
            _ => return refuse("wants q, k, v and, if it has one, the mask"),
        };
        if !is_activation(q) || k.dtype != q.dtype || v.dtype != q.dtype {
            return refuse("q, k and v must be activations of one type");
        }
        let ([b, tq, hq, d], [kb, tk, hk, kd]) = (&*q.shape, &*k.shape) else {
            return refuse("wants q [b, tq, hq, d] and k [b, tk, hk, d]");
        };
        if k != v || (b, d) != (kb, kd) {
            return refuse("k and v must be equal in shape, and equal to q in b and d");
        }
        if q.count() == 0 || k.count() == 0 || hq % hk != 0 {
            return refuse("no size may be zero, and hq must be a multiple of hk");
        }
        if *d > MAX_D {
            return refuse("d must be at most 512");
        }
        if let Some(mask) = mask {
            let fits = |axis: usize, size: usize| mask.shape[axis] == 1 || mask.shape[axis] == size;
            let rank = mask.dtype == DType::F32 && mask.shape.len() == 4;
            if !rank || !fits(0, *b) || !fits(1, *hq) || !fits(2, *tq) || mask.shape[3] != *tk {
                return refuse("the mask must be f32 [1 or b, 1 or hq, 1 or tq, tk]");
            }
        }
        Ok(q.clone())
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let heads = self.heads(&inputs[0], &inputs[1], inputs.get(3));
        let lanes = self.lanes(inputs, &heads, caps);
        lanes.into_iter().chain([self.baseline(inputs, &heads, caps)]).collect()
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [q, k, v, mask @ ..] = inputs else {
            return Vec::new();
        };
        let mask = mask.first();
        let heads = self.heads(q.ty, k.ty, mask.map(|m| m.ty));
        let Heads {
            batches,
            tq,
            tk,
            hq,
            hk,
            d,
            ..
        } = heads;
        let mut y = vec![0.0; q.data.len()];
        for (b, i, h) in (0..batches).flat_map(|b| (0..tq).flat_map(move |i| (0..hq).map(move |h| (b, i, h)))) {
            let kv_row = |j: usize| ((b * tk + j) * hk + h / (hq / hk)) * d;
            let at = ((b * tq + i) * hq + h) * d;
            // What is hidden has no part in it, even a NaN.
            let visible = (0..tk).filter_map(|j| {
                let pairs = q.data[at..at + d].iter().zip(&k.data[kv_row(j)..]);
                let dot: f64 = pairs.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                let [mb, mh, mi] = heads.mask;
                let bias = mask.map_or(0.0, |m| f64::from(m.data[b * mb + h * mh + i * mi + j]));
                let score = f64::from(self.scale) * dot + bias;
                let hidden = score <= f64::from(MASKED) || (self.causal && j + tq > i + tk);
                (!hidden).then_some((kv_row(j), score))
            });
            let scores: Vec<(usize, f64)> = visible.collect();
            if scores.is_empty() {
                continue;
            }
            let high = scores.iter().fold(f64::NEG_INFINITY, |m, (_, s)| m.max(*s));
            let weights: Vec<_> = scores.iter().map(|(row, s)| (row, (s - high).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, w)| w).sum();
            for c in 0..d {
                let products = weights.iter().map(|(row, w)| w * f64::from(v.data[*row + c]));
                y[at + c] = (products.sum::<f64>() / sum) as f32;
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [q, k, v, mask @ ..] = inputs else { return false };
        let heads = self.heads(q.ty, k.ty, mask.first().map(|m| m.ty));
        attention(&heads, q.data, k.data, v.data, mask.first().map(|m| m.data), output);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        // Two products of d multiply-adds per pair of a query and a key; half the pairs if causal.
        let keys = inputs[1].shape[1] as f64 * if self.causal { 0.5 } else { 1.0 };
        Cost::streaming(inputs, output, 4.0 * keys)
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let mut tensors: Vec<_> = inputs.iter().map(|ty| random_tensor(ty, uniform)).collect();
        if let Some(mask) = tensors.get_mut(3) {
            let row = mask.ty.shape[3];
            for (at, value) in mask.data.iter_mut().enumerate() {
                // A third of the keys is hidden; where rows differ, the second sees nothing at all.
                if *value < -0.3 || (at / row == 1 && mask.ty.shape[2] > 1) {
                    *value = f32::NEG_INFINITY;
                }
            }
        }
        tensors
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, [b, tq, tk, hq, hk, d]: [usize; 6], mask: Option<[usize; 3]>, causal, scale| {
            let kv = TensorType::new(dtype, [b, tk, hk, d]);
            let mut inputs = vec![TensorType::new(dtype, [b, tq, hq, d]), kv.clone(), kv];
            inputs.extend(mask.map(|[b, h, i]| TensorType::new(DType::F32, [b, h, i, tk])));
            let op = Self {
                mask: mask.is_some(),
                causal,
                scale,
            };
            Case { op, inputs }
        };
        use DType::{F16, F32};
        vec![
            case(F32, [1, 1, 1, 1, 1, 1], None, false, 1.0),
            case(F32, [2, 5, 77, 3, 3, 33], None, false, 0.2),
            case(F32, [1, 70, 45, 4, 2, 16], None, true, 0.25),
            case(F32, [2, 33, 100, 4, 1, 24], None, true, 2.0),
            case(F32, [2, 19, 40, 3, 1, 20], Some([2, 1, 1]), false, 0.25),
            case(F32, [2, 21, 66, 2, 2, 40], Some([1, 2, 21]), false, 0.15),
            case(F32, [1, 40, 40, 4, 2, 8], Some([1, 1, 40]), true, 0.3),
            case(F16, [1, 35, 50, 2, 2, 64], None, false, 0.125),
            case(F16, [1, 20, 20, 4, 2, 32], Some([1, 1, 20]), true, 0.2),
            case(F32, [1, 18, 34, 1, 1, 130], None, false, 0.1),
            case(F32, [1, 33, 35, 1, 1, 512], None, true, 0.05),
            case(F16, [1, 9, 40, 1, 1, 300], None, false, 0.06),
            case(F32, [1, 10, 600, 2, 2, 16], None, false, 3.0),
            case(F32, [1, 70, 300, 2, 1, 12], Some([1, 1, 70]), true, 0.3),
            case(F32, [1, 96, 96, 4, 4, 64], None, false, 0.125),
            case(F32, [1, 64, 64, 8, 2, 32], None, true, 0.18),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_reaches_exactly_the_queries_that_see_it() {
        let op = Attend {
            mask: false,
            causal: true,
            scale: 1.0,
        };
        let ones = |shape| Tensor::new(shape, vec![1.0; 12]);
        let (q, mut k, v) = (ones([1, 6, 1, 2]), ones([1, 6, 1, 2]), ones([1, 6, 1, 2]));
        k.data[6] = f32::NAN;
        let inputs = [q.view(), k.view(), v.view()];
        let mut y = vec![0.0; 12];
        assert!(op.compute(&inputs, &mut y));
        for got in [y, op.reference(&inputs)] {
            let nan: Vec<_> = got.iter().map(|v| v.is_nan()).collect();
            assert_eq!(nan, (0..12).map(|i| i / 2 >= 3).collect::<Vec<_>>());
        }
    }
}

//! Adapter files made from seeds, and what they do to a weight, computed in `f64` from the definitions.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::support::uniform;
use rotile::adapter::Adapter;
use safetensors::tensor::{Dtype, TensorView};

/// A tensor of an adapter: its ending, extents and values.
pub(crate) struct Field(pub(crate) &'static str, pub(crate) Vec<usize>, pub(crate) Vec<f32>);

/// The kinds of adapters, with what varies within each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Lora {
        rank: usize,
        alpha: Option<f32>,
    },
    /// LoRA with norms of rows, or of columns.
    Dora {
        rank: usize,
        rows: bool,
    },
    Loha {
        rank: usize,
    },
    /// Whole factors.
    Lokr,
    /// Both factors are products.
    LokrLow {
        rank: usize,
    },
    Diff,
    /// LoCon, LoHa, LoKr with a core.
    Locon {
        rank: usize,
    },
    LohaCore {
        rank: usize,
    },
    LokrCore {
        rank: usize,
    },
}

/// An adapter of one weight.
pub(crate) struct Made {
    pub(crate) fields: Vec<Field>,
    kind: Kind,
    shape: Vec<usize>,
}

fn values(name: &str, shape: &[usize], scale: f32) -> Vec<f32> {
    let mut next = uniform(name);
    (0..shape.iter().product()).map(|_| next() * scale).collect()
}

/// Two factors of a size, the smaller first.
fn halves(n: usize) -> [usize; 2] {
    let a = (1..=n.isqrt()).rev().find(|a| n.is_multiple_of(*a)).unwrap_or(1);
    [a, n / a]
}

impl Made {
    /// For a weight of this shape, `[n, k]` or `[n, c, h, w]`.
    pub(crate) fn new(kind: Kind, shape: &[usize], seed: &str) -> Self {
        let (n, c) = (shape[0], shape[1]);
        let window = &shape[2..];
        let wide = |rows: usize| [&[rows, c], window].concat();
        let tall = |rank: usize| [&[n, rank][..], &vec![1; window.len()]].concat();
        let core = |rank: usize| [&[rank, rank], window].concat();
        let field = |name: &'static str, shape: Vec<usize>, scale: f32| {
            let data = values(&format!("{seed} {name}"), &shape, scale);
            Field(name, shape, data)
        };
        let alpha = |v: f32| Field("alpha", vec![], vec![v]);
        let [a1, b1] = halves(n);
        let [a2, b2] = halves(c);
        let fields = match kind {
            Kind::Lora { rank, alpha: a } => {
                let mut fields = vec![
                    field("lora_down.weight", wide(rank), 0.2),
                    field("lora_up.weight", tall(rank), 0.2),
                ];
                fields.extend(a.map(alpha));
                fields
            }
            Kind::Dora { rank, rows } => {
                let norms = if rows {
                    vec![n, 1]
                } else {
                    [&[1, c][..], &vec![1; window.len()]].concat()
                };
                let mut norms = field("dora_scale", norms, 1.0);
                norms.2.iter_mut().for_each(|v| *v = 1.0 + 0.3 * *v);
                vec![
                    field("lora_down.weight", wide(rank), 0.2),
                    field("lora_up.weight", tall(rank), 0.2),
                    alpha(1.5),
                    norms,
                ]
            }
            Kind::Loha { rank } => {
                let k: usize = shape[1..].iter().product();
                vec![
                    field("hada_w1_a", vec![n, rank], 0.5),
                    field("hada_w1_b", vec![rank, k], 0.5),
                    field("hada_w2_a", vec![n, rank], 0.5),
                    field("hada_w2_b", vec![rank, k], 0.5),
                    alpha(1.0),
                ]
            }
            Kind::Lokr => vec![
                field("lokr_w1", vec![a1, a2], 0.5),
                field("lokr_w2", [&[b1, b2], window].concat(), 0.1),
                // Without a rank there is no scale.
                alpha(77.0),
            ],
            Kind::LokrLow { rank } => vec![
                field("lokr_w1_a", vec![a1, rank], 0.5),
                field("lokr_w1_b", vec![rank, a2], 0.5),
                field("lokr_w2_a", vec![b1, rank], 0.3),
                field("lokr_w2_b", vec![rank, b2 * window.iter().product::<usize>()], 0.3),
                alpha(3.0),
            ],
            Kind::Diff => vec![field("diff", shape.to_vec(), 0.05)],
            Kind::Locon { rank } => vec![
                field(
                    "lora_down.weight",
                    [&[rank, c][..], &vec![1; window.len()]].concat(),
                    0.3,
                ),
                field("lora_up.weight", tall(rank), 0.3),
                field("lora_mid.weight", core(rank), 0.5),
                alpha(2.0),
            ],
            Kind::LohaCore { rank } => vec![
                field("hada_w1_a", vec![rank, n], 0.5),
                field("hada_w1_b", vec![rank, c], 0.5),
                field("hada_t1", core(rank), 0.7),
                field("hada_w2_a", vec![rank, n], 0.5),
                field("hada_w2_b", vec![rank, c], 0.5),
                field("hada_t2", core(rank), 0.7),
                alpha(2.0),
            ],
            Kind::LokrCore { rank } => vec![
                field("lokr_w1", vec![a1, a2], 0.5),
                field("lokr_w2_a", vec![rank, b1], 0.4),
                field("lokr_w2_b", vec![rank, b2], 0.4),
                field("lokr_t2", core(rank), 0.7),
                alpha(1.0),
            ],
        };
        Self {
            fields,
            kind,
            shape: shape.to_vec(),
        }
    }

    fn get(&self, name: &str) -> impl Fn(usize) -> f64 {
        let field = self.fields.iter().find(|f| f.0 == name).expect("the field");
        move |i| f64::from(field.2[i])
    }

    /// The difference of every element: textbook sums over the definition's indices.
    fn delta(&self) -> Vec<f64> {
        let (n, c) = (self.shape[0], self.shape[1]);
        let window: usize = self.shape[2..].iter().product();
        let ([_, b1], [a2, b2]) = (halves(n), halves(c));
        let alpha = |default: f64| match self.fields.iter().find(|f| f.0 == "alpha") {
            Some(f) => f64::from(f.2[0]),
            None => default,
        };
        let element = |f: &dyn Fn(usize, usize, usize) -> f64| -> Vec<f64> {
            let index = |i: usize| f(i / (c * window), i / window % c, i % window);
            (0..n * c * window).map(index).collect()
        };
        match self.kind {
            Kind::Diff => element(&|i, j, t| self.get("diff")((i * c + j) * window + t)),
            Kind::Lora { rank, .. } | Kind::Dora { rank, .. } => {
                let (up, down) = (self.get("lora_up.weight"), self.get("lora_down.weight"));
                let scale = alpha(rank as f64) / rank as f64;
                let sum = |i: usize, j: usize, t: usize| -> f64 {
                    (0..rank)
                        .map(|r| up(i * rank + r) * down((r * c + j) * window + t))
                        .sum()
                };
                element(&|i, j, t| scale * sum(i, j, t))
            }
            Kind::Loha { rank } => {
                let names = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"].map(|name| self.get(name));
                let [a1, b1, a2, b2] = names;
                let half = |a: &dyn Fn(usize) -> f64, b: &dyn Fn(usize) -> f64, i: usize, q: usize| -> f64 {
                    (0..rank).map(|r| a(i * rank + r) * b(r * c * window + q)).sum()
                };
                element(&|i, j, t| {
                    let q = j * window + t;
                    alpha(1.0) / rank as f64 * half(&a1, &b1, i, q) * half(&a2, &b2, i, q)
                })
            }
            Kind::Lokr => {
                let (w1, w2) = (self.get("lokr_w1"), self.get("lokr_w2"));
                element(&|i, j, t| w1(i / b1 * a2 + j / b2) * w2((i % b1 * b2 + j % b2) * window + t))
            }
            Kind::LokrLow { rank } => {
                let names = ["lokr_w1_a", "lokr_w1_b", "lokr_w2_a", "lokr_w2_b"].map(|name| self.get(name));
                let [p, q, r, s] = names;
                element(&|i, j, t| {
                    let left: f64 = (0..rank).map(|m| p(i / b1 * rank + m) * q(m * a2 + j / b2)).sum();
                    let right = |m: usize| r(i % b1 * rank + m) * s((m * b2 + j % b2) * window + t);
                    alpha(1.0) / rank as f64 * left * (0..rank).map(right).sum::<f64>()
                })
            }
            Kind::Locon { rank } => {
                let (up, down) = (self.get("lora_up.weight"), self.get("lora_down.weight"));
                let mid = self.get("lora_mid.weight");
                let pairs = || (0..rank).flat_map(|a| (0..rank).map(move |b| (a, b)));
                element(&|i, j, t| {
                    let term = |(a, b)| up(i * rank + a) * mid((a * rank + b) * window + t) * down(b * c + j);
                    alpha(1.0) / rank as f64 * pairs().map(term).sum::<f64>()
                })
            }
            Kind::LohaCore { rank } => {
                let pairs = || (0..rank).flat_map(|a| (0..rank).map(move |b| (a, b)));
                let half =
                    |a: &'static str, b: &'static str, core: &'static str, i: usize, j: usize, t: usize| -> f64 {
                        let (wa, wb, core) = (self.get(a), self.get(b), self.get(core));
                        let term = |(p, q)| core((p * rank + q) * window + t) * wa(p * n + i) * wb(q * c + j);
                        pairs().map(term).sum()
                    };
                element(&|i, j, t| {
                    let left = half("hada_w1_a", "hada_w1_b", "hada_t1", i, j, t);
                    alpha(1.0) / rank as f64 * left * half("hada_w2_a", "hada_w2_b", "hada_t2", i, j, t)
                })
            }
            Kind::LokrCore { rank } => {
                let pairs = || (0..rank).flat_map(|a| (0..rank).map(move |b| (a, b)));
                let (w1, wa, wb) = (self.get("lokr_w1"), self.get("lokr_w2_a"), self.get("lokr_w2_b"));
                let core = self.get("lokr_t2");
                element(&|i, j, t| {
                    let term = |(p, q)| core((p * rank + q) * window + t) * wa(p * b1 + i % b1) * wb(q * b2 + j % b2);
                    let right: f64 = pairs().map(term).sum();
                    alpha(1.0) / rank as f64 * w1(i / b1 * a2 + j / b2) * right
                })
            }
        }
    }

    /// What the weight differs by, with the adapter at `strength`: for DoRA, from the weight itself.
    pub(crate) fn change(&self, weight: &[f32], strength: f64) -> Vec<f64> {
        let delta = self.delta();
        let Kind::Dora { rows, .. } = self.kind else {
            return delta.iter().map(|d| strength * d).collect();
        };
        let (n, c) = (self.shape[0], self.shape[1]);
        let window: usize = self.shape[2..].iter().product();
        let row = c * window;
        let sum: Vec<f64> = weight.iter().zip(&delta).map(|(&w, d)| f64::from(w) + d).collect();
        let group = |i: usize| if rows { i / row } else { i % row / window };
        let mut norms = vec![0.0; if rows { n } else { c }];
        for (i, v) in sum.iter().enumerate() {
            norms[group(i)] += v * v;
        }
        let wanted = self.get("dora_scale");
        let new = |i: usize| wanted(group(i)) / norms[group(i)].sqrt() * sum[i];
        (0..sum.len())
            .map(|i| strength * (new(i) - f64::from(weight[i])))
            .collect()
    }
}

/// A file of `(module, adapter)`.
pub(crate) fn adapter(file: &str, modules: &[(&str, &Made)], weight: f32) -> Adapter {
    let fields = modules.iter().flat_map(|(module, made)| {
        let name = move |f: &Field| (format!("{module}.{}", f.0), f.1.clone(), f.2.clone());
        made.fields.iter().map(name)
    });
    from_tensors(file, fields.collect(), weight)
}

/// A file of these tensors.
pub(crate) fn from_tensors(file: &str, tensors: Vec<(String, Vec<usize>, Vec<f32>)>, weight: f32) -> Adapter {
    Adapter::from_bytes(file, file_of(tensors).into(), weight).unwrap_or_else(|e| panic!("{e}"))
}

/// The bytes of a file of these tensors.
pub(crate) fn file_of(tensors: Vec<(String, Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let stored: Vec<_> = tensors
        .into_iter()
        .map(|(name, shape, data)| {
            let bytes: Vec<u8> = data.iter().flat_map(|v| v.to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).expect("bytes fill the shape");
        (name, view)
    });
    safetensors::serialize(views, None).expect("a safetensors file")
}

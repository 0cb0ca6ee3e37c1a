//! What an adapter adds to a weight, in the forms that it is stored in.
//!
//! A weight of `n` rows is seen as a matrix `[n, k]`: `k` has input channels and the window of a filter. Formulas are those of
//! LyCORIS (`lycoris/modules/{locon,loha,lokr}.py`) and, for plain LoRA, of PEFT (`peft/tuners/lora/layer.py`).

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::cpu::gemm::{Mat, Threads, gemm};
use crate::tensor::DType;
use std::ops::Range;
use std::sync::Arc;

/// `up down`: `up` is `[n, rank]`, `down` is `[rank, k]`.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    pub(crate) up: Vec<f32>,
    pub(crate) down: Vec<f32>,
    pub(crate) rank: usize,
}

impl Product {
    /// Rows of the product, `k` values each.
    pub(super) fn rows(&self, rows: Range<usize>) -> Vec<f32> {
        let (m, k) = (rows.len(), self.down.len() / self.rank.max(1));
        let mut values = vec![0.0; m * k];
        let up = Mat::rows(&self.up[rows.start * self.rank..rows.end * self.rank], self.rank);
        let down = Mat::rows(&self.down, k);
        gemm([m, k, self.rank], up, down, &mut values, k, 1.0, 0.0, Threads::All);
        values
    }
}

/// The forms.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    /// LoRA, and LoCon on filters.
    Product(Product),
    /// LoHa: element by element.
    Hadamard(Product, Product),
    /// LoKr: row `l * b1 + p` and column `m * b2 + q` is `w1[l, m] * w2[p, q]`.
    Kronecker {
        /// `[a1, a2]`
        w1: Vec<f32>,
        /// `[b1, b2]`
        w2: Vec<f32>,
        a2: usize,
        b2: usize,
    },
    /// The difference itself, read when it is needed.
    Dense { file: Arc<Checkpoint>, name: String },
}

/// What an adapter adds to the weights of a module, before its weight in the mix.
#[derive(Clone, Debug)]
pub(crate) struct Delta {
    pub(crate) form: Form,
    /// `alpha / rank`
    pub(crate) scale: f32,
    /// Rows, over all weights of a fused module.
    pub(crate) n: usize,
    /// Elements of a row.
    pub(crate) k: usize,
}

impl Delta {
    /// Values as they are: those of a bias.
    pub(super) fn constant(values: Vec<f32>) -> Self {
        let n = values.len();
        let (up, down, rank) = (values, vec![1.0], 1);
        Self {
            form: Form::Product(Product { up, down, rank }),
            scale: 1.0,
            n,
            k: 1,
        }
    }

    /// Rows of the difference, scaled, `k` values each.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Result<Vec<f32>, CheckpointError> {
        let mut values = match &self.form {
            Form::Product(product) => product.rows(rows),
            Form::Hadamard(a, b) => {
                let mut values = a.rows(rows.clone());
                values.iter_mut().zip(b.rows(rows)).for_each(|(v, w)| *v *= w);
                values
            }
            Form::Kronecker { w1, w2, a2, b2 } => {
                let b1 = w2.len() / (*b2).max(1);
                let row = |i: usize| {
                    let (left, right) = (&w1[i / b1 * a2..][..*a2], &w2[i % b1 * b2..][..*b2]);
                    left.iter().flat_map(move |&l| right.iter().map(move |&r| l * r))
                };
                rows.flat_map(row).collect()
            }
            Form::Dense { file, name } => {
                let mut bytes = file.rows(name, DType::F32, rows.clone())?.into_owned();
                bytes.truncate(rows.len() * self.k * 4);
                crate::tensor::decode(DType::F32, &bytes)
            }
        };
        if self.scale != 1.0 {
            values.iter_mut().for_each(|v| *v *= self.scale);
        }
        Ok(values)
    }

    /// The same as a product of two matrices, where that is smaller than the difference itself.
    pub(crate) fn product(&self) -> Option<Product> {
        let small = |rank: usize| rank * (self.n + self.k) < self.n * self.k;
        match &self.form {
            Form::Product(product) => Some(product.clone()),
            // (a b) * (c d), element by element, is a product whose rank is that of both: one term for each pair of terms.
            Form::Hadamard(a, b) if small(a.rank * b.rank) => Some(Product {
                up: pairs(&a.up, &b.up, self.n, a.rank, b.rank),
                down: transposed_pairs(a, b, self.k),
                rank: a.rank * b.rank,
            }),
            _ => None,
        }
    }
}

/// `[n, ra * rb]`: products of every pair within a row.
fn pairs(a: &[f32], b: &[f32], n: usize, ra: usize, rb: usize) -> Vec<f32> {
    let row = |i: usize| {
        let (left, right) = (&a[i * ra..][..ra], &b[i * rb..][..rb]);
        left.iter().flat_map(move |&l| right.iter().map(move |&r| l * r))
    };
    (0..n).flat_map(row).collect()
}

/// `[ra * rb, k]`: products of every pair within a column.
fn transposed_pairs(a: &Product, b: &Product, k: usize) -> Vec<f32> {
    let pair = |i: usize| {
        let (left, right) = (&a.down[i / b.rank * k..][..k], &b.down[i % b.rank * k..][..k]);
        left.iter().zip(right).map(|(l, r)| l * r)
    };
    (0..a.rank * b.rank).flat_map(pair).collect()
}

/// Tucker's core with one side folded in: `[i, c, window]` is `sum_j core[i, j, window] * side[j, c]`, a `down` for the other side.
pub(super) fn tucker(core: &[f32], side: &[f32], [i, j, c, window]: [usize; 4]) -> Vec<f32> {
    let mut down = vec![0.0; i * c * window];
    for a in 0..i {
        for b in 0..j {
            let core = &core[(a * j + b) * window..][..window];
            for (channel, &s) in side[b * c..][..c].iter().enumerate() {
                let at = (a * c + channel) * window;
                down[at..at + window]
                    .iter_mut()
                    .zip(core)
                    .for_each(|(d, v)| *d += s * v);
            }
        }
    }
    down
}

/// `[cols, rows]` from `[rows, cols]`.
pub(super) fn transposed(values: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..cols)
        .flat_map(|c| (0..rows).map(move |r| values[r * cols + c]))
        .collect()
}

//! From the tensors of a module to its [`Delta`]: shapes checked, scales computed.

use super::delta::{Delta, Form, Product, transposed, tucker};
use super::names::Field;
use super::settings::Alpha;
use crate::checkpoint::{Checkpoint, TensorInfo};
use crate::error::AdapterError;
use crate::tensor::{DType, Shape};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The tensors of one module of an adapter.
pub(super) type Fields = BTreeMap<Field, TensorInfo>;

/// Word for the kind of an adapter.
pub(super) fn kind(fields: &Fields) -> &'static str {
    let has = |field| fields.contains_key(&field);
    match () {
        () if has(Field::Magnitude) => "DoRA",
        () if has(Field::Down) || has(Field::Up) => "LoRA",
        () if has(Field::HadaW1A) => "LoHa",
        () if has(Field::LokrW1) || has(Field::LokrW1A) => "LoKr",
        () if has(Field::Diff) => "diff",
        () if has(Field::DiffBias) => "diff_b",
        () => "parts without a whole",
    }
}

/// Reads the tensors of one module.
pub(super) struct Reader<'a> {
    pub(super) file: &'a Arc<Checkpoint>,
    pub(super) fields: &'a Fields,
    /// Where no tensor is the alpha.
    pub(super) alpha: Option<Alpha>,
    /// Path in the model, for messages.
    pub(super) target: &'a str,
    /// Extents of the weight; of a fused module, with the rows of all parts.
    pub(super) shape: Shape,
}

/// Values and extents of a tensor.
struct Values {
    name: String,
    shape: Shape,
    data: Vec<f32>,
}

impl Values {
    fn extent(&self, axis: usize) -> usize {
        self.shape.get(axis).copied().unwrap_or(1)
    }

    /// Elements of a row.
    fn row(&self) -> usize {
        self.shape.iter().skip(1).fold(1, |n, &d| n.saturating_mul(d))
    }
}

type Result<T> = std::result::Result<T, AdapterError>;

impl Reader<'_> {
    fn n(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    fn k(&self) -> usize {
        self.shape.iter().skip(1).product()
    }

    /// Input channels: a row without the window of a filter.
    fn channels(&self) -> usize {
        self.shape.get(1).copied().unwrap_or(1)
    }

    fn load(&self, field: Field) -> Result<Option<Values>> {
        let Some(info) = self.fields.get(&field) else {
            return Ok(None);
        };
        // So that no extent is larger than the number of values, whatever the other one is.
        if info.shape.count() == 0 {
            return Err(self.misfit(&info.stored, &info.shape, "no empty tensor"));
        }
        let tensor = self.file.load(&info.name, DType::F32)?;
        Ok(Some(Values {
            name: info.stored.clone(),
            shape: tensor.ty.shape,
            data: tensor.data,
        }))
    }

    fn need(&self, field: Field) -> Result<Values> {
        self.load(field)?.ok_or_else(|| AdapterError::Incomplete {
            file: self.file.name().to_owned(),
            module: self.target.to_owned(),
            missing: format!("{field:?}"),
        })
    }

    fn misfit(&self, name: &str, found: &Shape, wanted: impl Into<String>) -> AdapterError {
        AdapterError::Shape {
            file: self.file.name().to_owned(),
            name: name.to_owned(),
            found: found.clone(),
            wanted: format!("{}, since `{}` has shape {}", wanted.into(), self.target, self.shape),
        }
    }

    fn check(&self, values: &Values, fits: bool, wanted: impl Into<String>) -> Result<()> {
        if fits {
            Ok(())
        } else {
            Err(self.misfit(&values.name, &values.shape, wanted))
        }
    }

    /// `alpha / rank`; 1 where there is no alpha, as diffusers and kohya's tools take it.
    fn scale(&self, rank: usize) -> Result<f32> {
        let Some(alpha) = self.load(Field::Alpha)? else {
            return Ok(self.alpha.map_or(1.0, |alpha| alpha.scale(rank)));
        };
        self.check(&alpha, alpha.data.len() == 1, "one value")?;
        Ok(alpha.data[0] / rank.max(1) as f32)
    }

    /// What the adapter adds to the weight, if it adds anything.
    pub(super) fn delta(&self) -> Result<Option<Delta>> {
        let has = |field| self.fields.contains_key(&field);
        let (form, scale) = if has(Field::Down) || has(Field::Up) {
            let product = self.lora()?;
            let scale = self.scale(product.rank)?;
            (Form::Product(product), scale)
        } else if has(Field::HadaW1A) {
            let (a, rank) = self.hada(Field::HadaW1A, Field::HadaW1B, Field::HadaT1)?;
            let (b, _) = self.hada(Field::HadaW2A, Field::HadaW2B, Field::HadaT2)?;
            (Form::Hadamard(a, b), self.scale(rank)?)
        } else if has(Field::LokrW1) || has(Field::LokrW1A) {
            self.lokr()?
        } else if let Some(info) = self.fields.get(&Field::Diff) {
            self.dense(info)?
        } else {
            return Ok(None);
        };
        Ok(Some(Delta {
            form,
            scale,
            n: self.n(),
            k: self.k(),
        }))
    }

    fn lora(&self) -> Result<Product> {
        let (up, down) = (self.need(Field::Up)?, self.need(Field::Down)?);
        let (n, k, rank) = (self.n(), self.k(), up.row());
        self.check(&up, up.extent(0) == n && rank > 0, format!("[{n}, rank]"))?;
        if let Some(mid) = self.load(Field::Mid)? {
            let (c, inner) = (self.channels(), down.extent(0));
            let window = k / c.max(1);
            self.check(&down, down.data.len() == inner * c, format!("[rank, {c}]"))?;
            let fits = mid.extent(0) == rank && mid.data.len() == rank * inner * window;
            self.check(&mid, fits, format!("[{rank}, {inner}] and a window of {window}"))?;
            let down = tucker(&mid.data, &down.data, [rank, inner, c, window]);
            return Ok(Product {
                up: up.data,
                down,
                rank,
            });
        }
        let fits = down.extent(0) == rank && down.data.len() == rank * k && self.window_fits(&down);
        self.check(&down, fits, format!("[{rank}, {k}] in all"))?;
        Ok(Product {
            up: up.data,
            down: down.data,
            rank,
        })
    }

    /// Whether filters have the window of the weight's, in its order.
    fn window_fits(&self, down: &Values) -> bool {
        let windows = down.shape.len() > 2 && self.shape.len() > 2;
        !windows || down.shape[1..] == self.shape[1..]
    }

    /// One factor of LoHa, and its rank.
    fn hada(&self, a: Field, b: Field, core: Field) -> Result<(Product, usize)> {
        let (up, down) = (self.need(a)?, self.need(b)?);
        let (n, k, rank) = (self.n(), self.k(), down.extent(0));
        let Some(core) = self.load(core)? else {
            self.check(
                &up,
                up.data.len() == n * rank && up.extent(0) == n,
                format!("[{n}, {rank}]"),
            )?;
            self.check(&down, down.data.len() == rank * k, format!("[{rank}, {k}] in all"))?;
            let product = Product {
                up: up.data,
                down: down.data,
                rank,
            };
            return Ok((product, rank));
        };
        let c = self.channels();
        let (outer, window) = (up.extent(0), k / c.max(1));
        self.check(&up, up.data.len() == outer * n, format!("[rank, {n}]"))?;
        self.check(&down, down.data.len() == rank * c, format!("[rank, {c}]"))?;
        let fits = core.extent(0) == outer && core.data.len() == outer * rank * window;
        self.check(&core, fits, format!("[{outer}, {rank}] and a window of {window}"))?;
        let product = Product {
            up: transposed(&up.data, outer, n),
            down: tucker(&core.data, &down.data, [outer, rank, c, window]),
            rank: outer,
        };
        Ok((product, rank))
    }

    fn lokr(&self) -> Result<(Form, f32)> {
        let mut rank = None;
        let (w1, [a1, a2]) = match self.load(Field::LokrW1)? {
            Some(w1) => {
                let sizes = [w1.extent(0), w1.row()];
                self.check(&w1, true, "")?;
                (w1.data, sizes)
            }
            None => self.factors(Field::LokrW1A, Field::LokrW1B, &mut rank)?,
        };
        // Checked by division: the left factor decides what the right one must be.
        let (n, k, c) = (self.n(), self.k(), self.channels());
        let (b1, b2) = (n / a1.max(1), k / a2.max(1));
        let window = k / c.max(1);
        let whole = a1 * b1 == n && a2 > 0 && c % a2 == 0;
        let (w2, found, name) = if let Some(w2) = self.load(Field::LokrW2)? {
            let sizes = [w2.extent(0), w2.row()];
            (w2.data.clone(), sizes, w2)
        } else if let Some(core) = self.load(Field::LokrT2)? {
            let (up, down) = (self.need(Field::LokrW2A)?, self.need(Field::LokrW2B)?);
            let (outer, inner) = (up.extent(0), down.extent(0));
            let fits = core.extent(0) == outer && core.data.len() == outer * inner * window;
            self.check(&core, fits, format!("[{outer}, {inner}] and a window of {window}"))?;
            rank = Some(inner);
            let [rows, cols] = [up.row(), down.row()];
            let product = Product {
                up: transposed(&up.data, outer, rows),
                down: tucker(&core.data, &down.data, [outer, inner, cols, window]),
                rank: outer,
            };
            (product.rows(0..rows), [rows, cols * window], up)
        } else {
            let (w2, sizes) = self.factors(Field::LokrW2A, Field::LokrW2B, &mut rank)?;
            (w2, sizes, self.need(Field::LokrW2A)?)
        };
        let fits = whole && found == [b1, b2];
        self.check(
            &name,
            fits,
            format!("a right factor [{b1}, {b2}] beside the left one [{a1}, {a2}]"),
        )?;
        // Two whole factors have no rank, and no scale (LyCORIS sets alpha to the rank then).
        let scale = rank.map_or(Ok(1.0), |rank| self.scale(rank))?;
        Ok((Form::Kronecker { w1, w2, a2, b2 }, scale))
    }

    /// A factor of LoKr that is a product itself.
    fn factors(&self, a: Field, b: Field, rank: &mut Option<usize>) -> Result<(Vec<f32>, [usize; 2])> {
        let (a, b) = (self.need(a)?, self.need(b)?);
        let inner = b.extent(0);
        self.check(&a, a.row() == inner && inner > 0, format!("[rows, {inner}]"))?;
        *rank = Some(inner);
        let sizes = [a.extent(0), b.row()];
        let product = Product {
            up: a.data,
            down: b.data,
            rank: inner,
        };
        Ok((product.rows(0..sizes[0]), sizes))
    }

    fn dense(&self, info: &TensorInfo) -> Result<(Form, f32)> {
        let same = info.shape.count() == self.shape.count() && info.shape.first() == self.shape.first();
        if !same || info.shape.count() == 0 {
            return Err(self.misfit(&info.stored, &info.shape, "the shape of the weight"));
        }
        info.weight()?;
        let form = Form::Dense {
            file: self.file.clone(),
            name: info.name.clone(),
        };
        Ok((form, 1.0))
    }

    /// What is added to the bias.
    pub(super) fn bias(&self) -> Result<Option<Vec<f32>>> {
        let Some(bias) = self.load(Field::DiffBias)? else {
            return Ok(None);
        };
        let n = self.n();
        self.check(&bias, bias.data.len() == n, format!("[{n}]"))?;
        Ok(Some(bias.data))
    }

    /// DoRA's magnitudes.
    pub(super) fn magnitude(&self) -> Result<Option<Magnitude>> {
        let Some(m) = self.load(Field::Magnitude)? else {
            return Ok(None);
        };
        let (n, c) = (self.n(), self.channels());
        let count = m.data.len();
        let rows = count == n && (m.shape.len() <= 1 || m.extent(0) == n);
        let columns = count == c && m.extent(0) == 1;
        self.check(&m, rows || columns, format!("[{n}, 1] or [1, {c}]"))?;
        Ok(Some(Magnitude { values: m.data, rows }))
    }
}

/// Norms that DoRA gives the rows, or the columns, of a weight.
pub(super) struct Magnitude {
    pub(super) values: Vec<f32>,
    pub(super) rows: bool,
}

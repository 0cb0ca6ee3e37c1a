//! Changes of weights: what is added to each when it is loaded, DoRA's norms included.

use super::delta::Delta;
use super::read::Magnitude;
use super::target::Target;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::tensor::{DType, decode};
use std::ops::Range;
use std::sync::Arc;

/// DoRA's factors: norm wanted by norm had, of `W + D`.
///
/// The formula is that of PEFT (`peft/tuners/lora/dora.py`, rows) and of LyCORIS (`apply_weight_decompose` of
/// `lycoris/modules/locon.py`, rows or columns); the strength mixes `W` with the result, as in ComfyUI (`weight_decompose`).
#[derive(Clone, Debug)]
pub(crate) enum Factor {
    /// One per row, over all rows of a fused module.
    Rows(Arc<[f32]>),
    /// One per element of a row.
    Columns(Arc<[f32]>),
}

/// One adapter's part in the change of a weight.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) delta: Arc<Delta>,
    /// Where the weight's rows begin in the delta.
    pub(crate) first: usize,
    /// Weight of the adapter in the mix.
    pub(crate) weight: f32,
    pub(crate) factor: Option<Factor>,
}

impl Change {
    /// Adds the change of `rows` to `values`; `own` are the weight's own values there.
    fn add(&self, rows: Range<usize>, own: &[f32], values: &mut [f32]) -> Result<(), CheckpointError> {
        let rows = self.first + rows.start..self.first + rows.end;
        let delta = self.delta.rows(rows.clone())?;
        let (w, k) = (self.weight, self.delta.k.max(1));
        match &self.factor {
            None => values.iter_mut().zip(&delta).for_each(|(v, d)| *v += w * d),
            Some(factor) => {
                for (i, value) in values.iter_mut().enumerate() {
                    let f = match factor {
                        Factor::Rows(factors) => factors[rows.start + i / k],
                        Factor::Columns(factors) => factors[i % k],
                    };
                    *value += w * ((f - 1.0) * own[i] + f * delta[i]);
                }
            }
        }
        Ok(())
    }
}

/// Everything that is added to one weight, by one adapter or several.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patch {
    pub(crate) changes: Vec<Change>,
}

impl Patch {
    /// Adds all changes of `rows` to `values`, the weight's own.
    pub(crate) fn apply(&self, rows: Range<usize>, values: &mut [f32]) -> Result<(), CheckpointError> {
        let own = match self.changes.iter().any(|c| c.factor.is_some()) {
            true => values.to_vec(),
            false => Vec::new(),
        };
        for change in &self.changes {
            change.add(rows.clone(), &own, values)?;
        }
        Ok(())
    }
}

/// Values that are read at a time.
const CHUNK: usize = 1 << 20;

/// Rows of a tensor in pieces, as `f32`: `f` gets the first row's number and the values.
pub(super) fn each_rows<E: From<CheckpointError>>(
    checkpoint: &Checkpoint,
    name: &str,
    (n, k): (usize, usize),
    mut f: impl FnMut(Range<usize>, Vec<f32>) -> Result<(), E>,
) -> Result<(), E> {
    let step = (CHUNK / k.max(1)).max(1);
    for start in (0..n).step_by(step) {
        let rows = start..n.min(start + step);
        let bytes = checkpoint.rows(name, DType::F32, rows.clone())?;
        f(rows.clone(), decode(DType::F32, &bytes[..rows.len() * k * 4]))?;
    }
    Ok(())
}

/// The factors of a module from its weights and the norms that it shall have.
pub(super) fn factor(
    checkpoint: &Checkpoint,
    targets: &[Target],
    delta: &Delta,
    magnitude: &Magnitude,
) -> Result<Factor, CheckpointError> {
    let (k, columns) = (delta.k, magnitude.values.len().max(1));
    // Columns of one input channel share a norm, as those of a filter's window do.
    let window = (k / columns).max(1);
    let mut squares = vec![0.0f64; if magnitude.rows { delta.n } else { columns }];
    for target in targets {
        each_rows(
            checkpoint,
            &target.weight,
            (target.rows.len(), k),
            |rows, mut values| {
                let first = target.rows.start + rows.start;
                let added = delta.rows(first..first + rows.len())?;
                values.iter_mut().zip(added).for_each(|(v, d)| *v += d);
                for (i, v) in values.iter().enumerate() {
                    let at = if magnitude.rows { first + i / k } else { i % k / window };
                    squares[at] += f64::from(*v).powi(2);
                }
                Ok::<_, CheckpointError>(())
            },
        )?;
    }
    // A row of zeros stays one, whatever its factor.
    let ratio = |(m, square): (&f32, &f64)| match square.sqrt() {
        0.0 => 1.0,
        norm => (f64::from(*m) / norm) as f32,
    };
    let ratios: Vec<f32> = magnitude.values.iter().zip(&squares).map(ratio).collect();
    Ok(if magnitude.rows {
        Factor::Rows(ratios.into())
    } else {
        Factor::Columns(ratios.iter().flat_map(|&r| std::iter::repeat_n(r, window)).collect())
    })
}

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::quant::convrot::Audit;
use serde::Serialize;

/// An int8 layer of a file, and what F16 would do to its scales. rotile keeps these in F32.
#[derive(Clone, Debug, Serialize)]
pub struct Int8Line {
    /// Weight.
    pub name: String,
    /// Elements that are rotated together; `None` for codes in the true basis.
    pub group: Option<usize>,
    /// Whether the layer wants products of floats.
    pub full_precision: bool,
    /// Rows.
    pub rows: usize,
    /// Rows whose scale is subnormal in F16.
    pub subnormal: usize,
    /// Rows whose scale is zero in F16.
    pub zero: usize,
    /// Rows whose scale is infinite in F16.
    pub infinite: usize,
    /// Largest relative error of the other rows' scales in F16.
    pub worst: f32,
}

impl Int8Line {
    /// Every int8 layer of a file; none for files without values.
    pub(super) fn all(checkpoint: &Checkpoint) -> Result<Vec<Self>> {
        let lines = checkpoint.audits()?.into_iter().map(|(info, audit)| {
            let marker = info.int8().map(|int8| int8.marker).unwrap_or_default();
            let Audit {
                rows,
                subnormal,
                zero,
                infinite,
                worst,
            } = audit;
            Self {
                name: info.name.clone(),
                group: marker.group,
                full_precision: marker.full_precision,
                rows,
                subnormal,
                zero,
                infinite,
                worst,
            }
        });
        Ok(lines.collect())
    }
}

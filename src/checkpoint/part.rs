//! Parts of stored tensors, by name: `conv1.weight[2:2..3]` is index 2 of axis 2, `to_qkv.weight[0:64..128]` are 64 rows.
//!
//! A graph names the part, and whoever loads the name gets only its bytes: no node of the graph cuts it out again in every run.

use super::TensorInfo;
use crate::tensor::Shape;
use std::fmt;
use std::ops::Range;

/// A range of one axis of a stored tensor. Its text is how a graph names the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Full name of the tensor.
    pub name: String,
    /// The axis that is cut.
    pub axis: usize,
    /// What is left of it.
    pub range: Range<usize>,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { start, end } = self.range;
        write!(f, "{}[{}:{start}..{end}]", self.name, self.axis)
    }
}

impl Part {
    /// Reads the text of a part; `None` for the name of a whole tensor.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.strip_suffix(']')?.rsplit_once('[')?;
        let (axis, range) = rest.split_once(':')?;
        let (start, end) = range.split_once("..")?;
        Some(Self {
            name: name.to_owned(),
            axis: axis.parse().ok()?,
            range: start.parse().ok()?..end.parse().ok()?,
        })
    }

    /// Extents of the part, if the tensor has it.
    pub(super) fn shape(&self, whole: &[usize]) -> Option<Shape> {
        let extent = *whole.get(self.axis)?;
        let fits = self.range.start < self.range.end && self.range.end <= extent;
        let mut shape = whole.to_vec();
        shape[self.axis] = self.range.len();
        fits.then(|| shape.into())
    }

    /// The bytes of the part, from those of the whole tensor.
    pub(super) fn cut(&self, info: &TensorInfo, bytes: &[u8]) -> Vec<u8> {
        let outer: usize = info.shape[..self.axis].iter().product();
        let slab = bytes.len() / outer.max(1);
        let step = slab / info.shape[self.axis].max(1);
        let range = self.range.start * step..self.range.end * step;
        bytes
            .chunks_exact(slab.max(1))
            .flat_map(|slab| &slab[range.clone()])
            .copied()
            .collect()
    }
}

use super::moments::Moments;
use super::{Cut, Half};
use crate::error::Result;
use crate::graph::{Graph, Source, Value};
use crate::memory::budget;
use crate::memory::faults::Faults;
use crate::models::{Part, Side, TileNorms};
use crate::plan::Output;
use crate::tensor::{DType, Tensor, TensorType};
use crate::tiling::{Grid, blend};
use std::ops::Range;

/// Parts that run one after the other on each tile.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) parts: Range<usize>,
    pub(super) grid: Grid,
    /// Pixels per latent pixel, in and out.
    pub(super) scale: [usize; 2],
    /// Pixels at the edge of a result that see the edge of the tile.
    pub(super) margin: usize,
    /// Types of a tile, in and out.
    pub(super) input: TensorType,
    pub(super) output: TensorType,
    pub(super) passes: Vec<Pass>,
}

/// One run over all tiles of a stage.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// Norms that are told their statistics.
    given: usize,
    /// Norm whose statistics are found. In the pass that gives the result this is the first norm of the next stage.
    pub(super) collected: Option<usize>,
    pub(super) result: bool,
}

impl Pass {
    pub(super) const ONLY: Self = Self {
        given: 0,
        collected: None,
        result: true,
    };

    /// One for each norm from `known` on, with all norms before it exact, and the one that gives the result.
    pub(super) fn all(known: usize, count: usize) -> Vec<Self> {
        let collect = |i| Self {
            given: i,
            collected: Some(i),
            result: false,
        };
        let last = Self {
            given: count,
            ..Self::ONLY
        };
        (known..count).map(collect).chain([last]).collect()
    }
}

/// Neighbouring parts that run together.
pub(super) fn ranges(parts: &[Part], side: Side, cut: Cut) -> Vec<Range<usize>> {
    let reach = |parts: &[Part]| parts.iter().map(Part::latent_reach).sum::<f64>().ceil();
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let before = i.checked_sub(1).map(|i| &parts[i]);
        // Where the activation is smallest.
        let level = match side {
            Side::Decoder => part.output > part.input,
            Side::Encoder => before.is_some_and(|part| part.input > part.output),
        };
        let new = match (before, cut) {
            (None, _) => true,
            (Some(before), _) if before.whole || part.whole => before.whole != part.whole,
            // What follows a norm in the same stage is not run by the passes for statistics, and costs nothing as long as tiles
            // need not overlap by more for it.
            (_, Cut::Parts) => {
                let together = ranges.last().map_or(0.0, |range| reach(&parts[range.start..=i]));
                level || part.norms || together > reach(&parts[i..=i]).max(1.0)
            }
            (_, Cut::Levels) => level,
            (_, Cut::Once) => false,
        };
        match ranges.last_mut().filter(|_| !new) {
            Some(range) => range.end = i + 1,
            None => ranges.push(i..i + 1),
        }
    }
    ranges
}

/// Whether the first thing that a part does with its input is a norm.
pub(super) fn starts_with_norm(half: Half<'_>, part: usize, input: &TensorType, dtype: DType) -> Result<bool> {
    let mut g = Graph::new(dtype);
    let x = g.input("x", input.clone());
    half.vae.part(&mut g, half.weights, half.side, part, x)?;
    let mut norms = g.nodes().iter().filter(|node| node.op.name() == "group_norm");
    let first = norms.next().map(|node| g.root(node.inputs[0]));
    Ok(first.is_some_and(|value| matches!(g.source(value), Source::Input(_))))
}

impl Stage {
    /// Type of a tile that goes in, where activations are stored as `dtype`. The first stage takes what the caller has.
    pub(super) fn input_as(&self, dtype: DType) -> TensorType {
        let dtype = if self.input.dtype == DType::F32 {
            DType::F32
        } else {
            dtype
        };
        TensorType::new(dtype, self.input.shape.clone())
    }

    /// The graph of a pass over a tile, and its result.
    pub(super) fn graph(&self, half: Half<'_>, dtype: DType, pass: &Pass) -> Result<(Graph, Value)> {
        let mut g = Graph::new(dtype).for_tiles(TileNorms {
            given: pass.given,
            collected: pass.collected.map_or(0..0, |i| i..i + 1),
            units: self.grid.tile(),
        });
        let mut x = g.input("x", self.input_as(dtype));
        for part in self.parts.clone() {
            x = half.vae.part(&mut g, half.weights, half.side, part, x)?;
            // Nothing after the norm that is looked for matters.
            if !pass.result && pass.collected.is_some_and(|i| i < g.norms()) {
                return Ok((g, x));
            }
        }
        g.output("y", x);
        if pass.collected.is_some() {
            half.vae.part(&mut g, half.weights, half.side, self.parts.end, x)?;
        }
        Ok((g, x))
    }

    /// Height and width of a tile and of the picture, going in (0) or coming out (1).
    pub(super) fn sizes(&self, size: [usize; 2], end: usize) -> [[usize; 2]; 2] {
        [self.grid.tile(), size].map(|size| size.map(|n| n * self.scale[end]))
    }

    pub(super) fn corner(&self, [i, j]: [usize; 2], end: usize) -> [usize; 2] {
        [self.grid.y.starts[i], self.grid.x.starts[j]].map(|n| n * self.scale[end])
    }
}

/// What a pass over the tiles is told and brings together.
pub(super) struct PassRun<'a> {
    stage: &'a Stage,
    /// Inputs that are the same for every tile.
    pub(super) given: Vec<(String, Tensor)>,
    /// Statistics that were collected, a row for each group.
    pub(super) found: Vec<Moments>,
    /// The result for the whole picture.
    pub(super) result: Vec<f32>,
    weights: [Vec<Vec<u16>>; 2],
    whole: [usize; 2],
}

impl<'a> PassRun<'a> {
    pub(super) fn new(
        stage: &'a Stage,
        pass: &Pass,
        statistics: &[Vec<Moments>],
        size: [usize; 2],
        faults: &Faults,
    ) -> Result<Self> {
        let given = statistics.iter().take(pass.given).enumerate().map(|(i, rows)| {
            let data: Vec<f32> = rows.iter().flat_map(Moments::given).collect();
            (Graph::norm_input(i), Tensor::new([data.len() / 3, 3], data))
        });
        let [_, whole] = stage.sizes(size, 1);
        let (mut weights, mut result) = ([Vec::new(), Vec::new()], Vec::new());
        if pass.result {
            weights = [&stage.grid.y, &stage.grid.x].map(|axis| axis.weights(stage.scale[1], stage.margin));
            result = budget::vec(stage.output.shape[1] * whole[0] * whole[1], faults)?;
        }
        Ok(Self {
            given: given.collect(),
            found: Vec::new(),
            stage,
            weights,
            whole,
            result,
        })
    }

    /// Takes the results of a tile.
    pub(super) fn take(&mut self, at: [usize; 2], names: &[Output], outputs: Vec<Tensor>) {
        for (output, tensor) in names.iter().zip(outputs) {
            if output.name == "y" {
                let weights = [&*self.weights[0][at[0]], &*self.weights[1][at[1]]];
                let corner = self.stage.corner(at, 1);
                blend(&mut self.result, self.whole, corner, weights, &tensor.data);
                continue;
            }
            self.found.resize(tensor.ty.shape[0], Moments::default());
            let row = 3 * tensor.ty.shape[1];
            for (moments, chunks) in self.found.iter_mut().zip(tensor.data.chunks_exact(row)) {
                chunks.chunks_exact(3).for_each(|chunk| moments.add(chunk));
            }
        }
    }
}

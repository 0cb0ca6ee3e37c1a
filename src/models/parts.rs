//! Autoencoders in parts that run one after the other, so that tiles need to be cut only where they must be.

use crate::graph::Graph;

/// One of the two halves of an autoencoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Picture to latent.
    Encoder,
    /// Latent to picture.
    Decoder,
}

/// A part of one half: what tiling needs to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Pixels per latent pixel of what goes in.
    pub input: usize,
    /// Pixels per latent pixel of what comes out.
    pub output: usize,
    /// How far a pixel sees, in pixels of the finer side; norms aside.
    pub reach: usize,
    /// Runs on all of its input: it is small, or sees all of it.
    pub whole: bool,
}

impl Part {
    /// How far it sees in latent pixels.
    pub fn latent_reach(&self) -> f64 {
        self.reach as f64 / self.input.max(self.output) as f64
    }
}

/// A step of one half of an autoencoder with residual blocks at several resolutions, its levels. Levels count from the side where
/// the half begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// All that runs at the size of the latent.
    Coarse,
    /// To the resolution of this level of the decoder.
    Up(usize),
    /// From the resolution of this level of the encoder to the next.
    Down(usize),
    /// Block of a level.
    Resnet(usize, usize),
    /// The convolution next to the picture.
    Picture,
}

impl Step {
    /// The steps of one half with so many levels, of so many blocks each.
    pub(super) fn list(side: Side, levels: usize, blocks: usize) -> Vec<Self> {
        let resnets = |level| (0..blocks).map(move |block| Self::Resnet(level, block));
        let mut steps = Vec::new();
        match side {
            Side::Decoder => {
                steps.push(Self::Coarse);
                for level in 1..levels {
                    steps.push(Self::Up(level));
                    steps.extend(resnets(level));
                }
                steps.push(Self::Picture);
            }
            Side::Encoder => {
                steps.push(Self::Picture);
                for level in 0..levels.saturating_sub(1) {
                    steps.extend(resnets(level));
                    steps.push(Self::Down(level));
                }
                steps.push(Self::Coarse);
            }
        }
        steps
    }

    /// What tiling must know of it.
    pub(super) fn part(self, side: Side, levels: usize) -> Part {
        let last = levels.saturating_sub(1);
        // Pixels per latent pixel.
        let scale = |level: usize| match side {
            Side::Decoder => 1 << level,
            Side::Encoder => 1 << (last - level),
        };
        let part = |input, output, reach, whole| Part {
            input,
            output,
            reach,
            whole,
        };
        match self {
            Self::Coarse => part(1, 1, 0, true),
            Self::Up(level) => part(scale(level - 1), scale(level), 1, false),
            Self::Down(level) => part(scale(level), scale(level + 1), 2, false),
            Self::Resnet(level, _) => part(scale(level), scale(level), 2, false),
            Self::Picture => part(1 << last, 1 << last, 1, false),
        }
    }
}

/// How the group norms of a graph that works on a tile learn of the rest of the picture.
///
/// Norms count from 0 in the order in which the graph is built. Those before `given` read mean and variance from inputs
/// `norm.0`, `norm.1` and so on, `f32` `[groups, 3]` as [`Graph::group_norm_given`] takes them; the others look at their tile.
/// Statistics of norms in `collected` become outputs `stats.N`, over the part of the tile that input `core` names, as
/// [`Graph::group_stats`] gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileNorms {
    /// Norms before this one read their statistics.
    pub given: usize,
    /// Norms whose statistics are results.
    pub collected: std::ops::Range<usize>,
    /// Height and width of the tile in the unit of `core`.
    pub units: [usize; 2],
}

impl Graph {
    /// Name of the input with statistics of a norm.
    pub fn norm_input(index: usize) -> String {
        format!("norm.{index}")
    }

    /// Name of the output with statistics of a norm.
    pub fn norm_output(index: usize) -> String {
        format!("stats.{index}")
    }
}

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
    /// Has a norm over the whole picture.
    pub norms: bool,
}

impl Part {
    /// How far it sees in latent pixels.
    pub fn latent_reach(&self) -> f64 {
        self.reach as f64 / self.input.max(self.output) as f64
    }
}

/// A step of an autoencoder that changes its resolution level by level. Levels count from the side where the half begins.
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
    /// The convolution next to the picture, behind a norm in the decoder.
    Picture,
}

impl Step {
    /// The steps of a half with so many levels of so many blocks.
    pub(super) fn all(side: Side, levels: usize, blocks: usize) -> Vec<Self> {
        let resnets = |level| (0..blocks).map(move |block| Self::Resnet(level, block));
        match side {
            Side::Decoder => {
                let fine = (1..levels).flat_map(|level| [Self::Up(level)].into_iter().chain(resnets(level)));
                [Self::Coarse].into_iter().chain(fine).chain([Self::Picture]).collect()
            }
            Side::Encoder => {
                let fine = (1..levels).flat_map(|level| resnets(level - 1).chain([Self::Down(level - 1)]));
                [Self::Picture].into_iter().chain(fine).chain([Self::Coarse]).collect()
            }
        }
    }

    /// The step as a part; `pack` is the side of a patch of pixels that are one pixel of the latent, `norms` whether a block has
    /// norms over the whole picture.
    pub(super) fn part(self, side: Side, levels: usize, pack: usize, norms: bool) -> Part {
        let last = levels - 1;
        let scale = |level: usize| match side {
            Side::Decoder => pack << level,
            Side::Encoder => pack << (last - level),
        };
        let part = |input, output, reach| Part {
            input,
            output,
            reach,
            whole: false,
            norms: false,
        };
        match self {
            Self::Coarse => {
                let [input, output] = match side {
                    Side::Decoder => [1, pack],
                    Side::Encoder => [pack, 1],
                };
                Part {
                    whole: true,
                    norms,
                    ..part(input, output, 0)
                }
            }
            Self::Up(level) => part(scale(level - 1), scale(level), 1),
            Self::Down(level) => part(scale(level), scale(level + 1), 2),
            Self::Resnet(level, _) => Part {
                norms,
                ..part(scale(level), scale(level), 2)
            },
            Self::Picture => Part {
                norms: norms && side == Side::Decoder,
                ..part(pack << last, pack << last, 1)
            },
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

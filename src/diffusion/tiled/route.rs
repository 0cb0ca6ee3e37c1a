use super::{Cut, Footprint, Half, Schedule, Tiles};
use crate::backend::Planner;
use crate::error::{Error, PlanError, Result};
use crate::graph::Graph;
use crate::memory::budget;
use crate::memory::route::{Capacity, Need, Ratio, Setting, Verdict, decide};
use crate::models::Side;
use crate::tensor::{DType, TensorType};

/// Tiles of a picture, in pixels of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileOptions {
    /// Side of a tile.
    pub size: u32,
    /// What neighbours share at least. It is made as wide as the model needs for tiles that come out as the whole would.
    pub overlap: u32,
}

/// What a run may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Most bytes on the device; `None` leaves it to the device's own limits.
    pub device: Option<u64>,
    /// Bytes that are free in host memory, where that is known.
    pub host: Option<u64>,
    /// Whether the CPU runs what the device cannot.
    pub cpu: bool,
}

impl Room {
    /// What this machine has, and at most `max_memory` bytes on the device.
    pub fn here(max_memory: Option<u64>) -> Self {
        Self {
            device: max_memory,
            host: budget::available(),
            cpu: false,
        }
    }
}

/// How one half of an autoencoder runs on one size.
#[derive(Debug)]
pub enum Route {
    /// All at once.
    Whole,
    /// In tiles; with what the user should know of it.
    Tiled(Schedule, String),
}

/// Decides, before anything is allocated, whether `half` runs on a latent of `size` as a whole or in tiles: in tiles where
/// `tile` asks for them, or where the whole exceeds a limit of the device or the `room` there is. Tiles are the largest that fit,
/// unless `tile` says their size; the weights of all passes stay on the device if they can, else they take turns. With a CPU to
/// fall back to, it may run what cannot be cut, and passes of tiles whose size is given.
///
/// # Errors
/// If not even tiles fit, or the tiles asked for make no sense.
pub fn route(
    half: Half<'_>,
    size: [usize; 2],
    dtype: DType,
    planner: Planner<'_>,
    tile: Option<TileOptions>,
    room: Room,
) -> Result<Route> {
    let factor = half.vae.factor();
    let longest = size[0].max(size[1]);
    let asked = match tile {
        Some(options) => Some(in_latents(options, factor)?).filter(|(tile, _)| *tile < longest),
        None => None,
    };
    let (refused, reason) = match asked {
        Some(_) => (None, "as asked for".to_owned()),
        None => match whole(half, size, dtype, planner, room.limit(planner)) {
            Ok(()) => return Ok(Route::Whole),
            Err(Error::Plan(error @ (PlanError::ExceedsLimit { .. } | PlanError::MaxMemory { .. }))) => {
                let reason = reason(&error);
                (Some(error), reason)
            }
            Err(error) => return Err(error),
        },
    };
    let sizes: Vec<(usize, usize)> = match asked {
        Some(asked) => vec![asked],
        None => candidates(half.side, longest).map(|tile| (tile, 0)).collect(),
    };
    let mut search = Search {
        half,
        planner,
        room,
        given: asked.is_some(),
        best: None,
        smallest: refused.map(Error::from),
    };
    for cut in Cut::ALL {
        for &(tile, overlap) in &sizes {
            let tiles = Tiles {
                size: tile,
                overlap,
                cut,
            };
            let schedule = match Schedule::new(half, size, tiles, dtype) {
                // Smaller than the stages of this cut see; the first cut has the smallest.
                Err(error @ Error::Request(_)) => {
                    search.smallest = search.smallest.or(Some(error));
                    continue;
                }
                schedule => schedule?,
            };
            if let Some(schedule) = search.look(schedule)? {
                return Ok(found(schedule, half, &reason));
            }
        }
    }
    match (search.best, search.smallest) {
        (Some((_, schedule)), _) => Ok(found(schedule, half, &reason)),
        (None, Some(error)) => Err(error),
        (None, None) => Err(Error::Request("the picture is too small for tiles".into())),
    }
}

fn found(schedule: Schedule, half: Half<'_>, reason: &str) -> Route {
    let note = describe(&schedule, half.side, half.vae.factor(), reason);
    Route::Tiled(schedule, note)
}

impl Room {
    /// Bytes that may be taken where a plan is made for. On the CPU, host memory is the device's.
    fn limit(self, planner: Planner<'_>) -> Option<u64> {
        match planner.caps {
            None => self.device.or(self.host),
            Some(_) => self.device,
        }
    }
}

/// What has been found among tiles, from large to small.
struct Search<'a> {
    half: Half<'a>,
    planner: Planner<'a>,
    room: Room,
    /// Whether the user has said the size.
    given: bool,
    /// The first in which weights take turns, or else in which the CPU runs what is not in tiles; and how good that is.
    best: Option<(Rank, Schedule)>,
    /// What the least of all would take, or what is in the way.
    smallest: Option<Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Given,
    Partly,
    Turns,
}

impl Search<'_> {
    /// Gives the schedule back if it fits with all of its weights; else keeps it if nothing before it was as good.
    fn look(&mut self, mut schedule: Schedule) -> Result<Option<Schedule>> {
        let mut plans = Vec::new();
        let mut beyond = None;
        // Whether what is beyond the device is in one piece, and whatever is in tiles within it.
        let mut partly = true;
        for (in_tiles, plan) in schedule.each_plan(self.half, self.planner) {
            match plan {
                Ok(plan) => {
                    let bytes = self.planner.bytes(&plan);
                    let fits = self.fits(bytes.total() + self.planner.staging(bytes), 0);
                    partly &= fits || !in_tiles;
                    plans.push(plan);
                }
                Err(error @ Error::Plan(PlanError::ExceedsLimit { .. })) => {
                    partly &= !in_tiles;
                    beyond = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        let footprint = schedule.footprint(&plans, self.planner);
        let within = self.room.host.is_none_or(|free| footprint.host <= free);
        if beyond.is_none() && within && self.fits(footprint.device + footprint.staging, footprint.host) {
            return Ok(Some(schedule));
        }
        let least = footprint.least + footprint.staging;
        let rank = match (beyond.is_none() && self.fits(least, footprint.host), partly) {
            _ if !within => None,
            (true, _) => Some(Rank::Turns),
            (_, true) if self.room.cpu => Some(Rank::Partly),
            _ if self.room.cpu && self.given => Some(Rank::Given),
            _ => None,
        };
        self.note_smallest(beyond, least, footprint, within);
        if let Some(rank) = rank.filter(|rank| self.best.as_ref().is_none_or(|(best, _)| rank > best)) {
            schedule.turns = true;
            schedule.partly = rank != Rank::Turns;
            self.best = Some((rank, schedule));
        }
        Ok(None)
    }

    /// Whether so many bytes fit; on the CPU, with those that lie between the tiles.
    fn fits(&self, bytes: u64, host: u64) -> bool {
        let need = Need {
            required: if self.planner.caps.is_none() {
                bytes + host
            } else {
                bytes
            },
            ..Need::default()
        };
        verdict(need, self.room.limit(self.planner)) == Verdict::Run
    }

    fn note_smallest(&mut self, beyond: Option<Error>, least: u64, footprint: Footprint, within: bool) {
        let on_cpu = self.planner.caps.is_none();
        let least = least + if on_cpu { footprint.host } else { 0 };
        let error = match (beyond, self.room.limit(self.planner)) {
            (Some(error), _) => error,
            (None, Some(limit)) if least > limit => {
                // The message names the least that would do.
                let wanted = match &self.smallest {
                    Some(Error::Plan(PlanError::MaxMemory { wanted, .. })) => least.min(*wanted),
                    _ => least,
                };
                PlanError::MaxMemory { wanted, limit }.into()
            }
            _ if !within => Error::OutOfMemory {
                wanted: footprint.host,
                available: self.room.host,
            },
            _ => return,
        };
        self.smallest = Some(error);
    }
}

/// Whether a need fits what may be taken: what does not is cut.
fn verdict(need: Need, limit: Option<u64>) -> Verdict {
    let capacity = Capacity {
        // Plans are made within the limits of the device.
        max_buffer: u64::MAX,
        free: None,
        ratio: Ratio::DEFAULT,
        cap: limit,
    };
    let setting = Setting {
        enabled: true,
        on_cpu: false,
        cpu_available: true,
        stateful: false,
        can_cut: true,
    };
    decide(need, capacity, setting).0
}

/// Side and overlap in latent pixels.
fn in_latents(options: TileOptions, factor: usize) -> Result<(usize, usize)> {
    let TileOptions { size, overlap } = options;
    if overlap >= size {
        return Err(Error::Request(format!(
            "tiles of {size} pixels cannot overlap by {overlap}"
        )));
    }
    let size = size as usize / factor;
    // A tile that is no multiple is smaller than asked for, an overlap larger.
    let overlap = (overlap as usize).div_ceil(factor).min(size.saturating_sub(1));
    Ok((size, overlap))
}

/// Whether the whole fits.
fn whole(half: Half<'_>, size: [usize; 2], dtype: DType, planner: Planner<'_>, limit: Option<u64>) -> Result<()> {
    let parts = half.vae.parts(half.side);
    let mut g = Graph::new(dtype);
    let [h, w] = size.map(|n| n * parts.first().map_or(1, |part| part.input));
    let mut x = g.input(
        "x",
        TensorType::new(DType::F32, [1, half.vae.channels(half.side), h, w]),
    );
    for part in 0..parts.len() {
        x = half.vae.part(&mut g, half.weights, half.side, part, x)?;
    }
    g.output("y", x);
    let bytes = planner.bytes(&planner.plan(&g)?);
    let need = Need {
        required: bytes.session() + planner.staging(bytes),
        pending: bytes.weights,
        largest: 0,
    };
    match (verdict(need, limit), limit) {
        (Verdict::Run, _) | (_, None) => Ok(()),
        (_, Some(limit)) => Err(PlanError::MaxMemory {
            wanted: need.total(),
            limit,
        }
        .into()),
    }
}

/// Sides of tiles to try, in latent pixels: those that make 2, 3 and more of the longer side, down to a few pixels.
fn candidates(side: Side, longest: usize) -> impl Iterator<Item = usize> {
    const SMALLEST: usize = 6;
    // What tiles share for a model whose parts see a latent pixel or less. An encoder sees further, and takes less memory.
    let shared = match side {
        Side::Decoder => 2,
        Side::Encoder => 4,
    };
    let mut last = longest;
    let tile = move |count: usize| (longest + (count - 1) * shared).div_ceil(count);
    let sizes = (2..=longest).map(tile).take_while(|&tile| tile >= SMALLEST);
    sizes.filter(move |&tile| std::mem::replace(&mut last, tile) != tile)
}

fn reason(error: &PlanError) -> String {
    match error {
        PlanError::ExceedsLimit {
            bytes, limit, which, ..
        } => format!("since the whole has a tensor of {bytes} bytes and the device binds {limit} (`{which}`)"),
        PlanError::MaxMemory { wanted, limit } => {
            format!("since the whole takes {wanted} bytes and {limit} may be taken")
        }
        other => format!("since the whole does not fit: {other}"),
    }
}

fn describe(schedule: &Schedule, side: Side, factor: usize, reason: &str) -> String {
    let grid = schedule.grid();
    let [h, w] = grid.tile().map(|n| n * factor);
    let what = match side {
        Side::Encoder => "encoding",
        Side::Decoder => "decoding",
    };
    let weights = match (schedule.partly, schedule.turns) {
        (true, _) => ", the CPU for what does not fit",
        (_, true) => ", weights taking turns",
        _ => "",
    };
    format!(
        "{what} in {} x {} tiles of {w}x{h} pixels{weights}, {reason}",
        grid.x.count(),
        grid.y.count()
    )
}

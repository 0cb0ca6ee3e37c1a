use super::{Cut, Half, Schedule, Tiles};
use crate::backend::Planner;
use crate::error::{Error, PlanError, Result};
use crate::graph::Graph;
use crate::memory::budget;
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
}

impl Room {
    /// What this machine has, and at most `max_memory` bytes on the device.
    pub fn here(max_memory: Option<u64>) -> Self {
        Self {
            device: max_memory,
            host: budget::available(),
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
/// unless `tile` says their size.
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
    let Room { device, host } = room;
    // On the CPU, host memory is the device's.
    let on_cpu = planner.caps.is_none();
    let limit = if on_cpu { device.or(host) } else { device };
    let asked = match tile {
        Some(options) => Some(in_latents(options, factor)?),
        None => None,
    };
    let (refused, reason) = match asked {
        Some((tile, _)) if tile < longest => (None, "as asked for".to_owned()),
        _ => match whole(half, size, dtype, planner, limit) {
            Ok(()) => return Ok(Route::Whole),
            Err(Error::Plan(error @ (PlanError::ExceedsLimit { .. } | PlanError::MaxMemory { .. }))) => {
                let reason = reason(&error);
                (Some(error), reason)
            }
            Err(error) => return Err(error),
        },
    };
    let sizes: Vec<(usize, usize)> = match asked.filter(|(tile, _)| *tile < longest) {
        Some((tile, overlap)) => vec![(tile, overlap)],
        None => candidates(half.side, longest).map(|tile| (tile, 0)).collect(),
    };
    let mut smallest = refused.map(Error::from);
    for cut in Cut::ALL {
        for &(size_of_tile, overlap) in &sizes {
            let tiles = Tiles {
                size: size_of_tile,
                overlap,
                cut,
            };
            let schedule = match Schedule::new(half, size, tiles, dtype) {
                // Smaller than the stages of this cut see; the first cut has the smallest.
                Err(error @ Error::Request(_)) => {
                    smallest = smallest.or(Some(error));
                    continue;
                }
                schedule => schedule?,
            };
            let plans = match schedule.plans(half, planner) {
                Ok(plans) => plans,
                Err(Error::Plan(error @ PlanError::ExceedsLimit { .. })) => {
                    smallest = Some(error.into());
                    continue;
                }
                Err(error) => return Err(error),
            };
            let footprint = schedule.footprint(&plans, planner);
            let on_device = footprint.device + footprint.staging + if on_cpu { footprint.host } else { 0 };
            match (limit, host) {
                (Some(limit), _) if on_device > limit => {
                    // The message names the least that would do.
                    let wanted = match &smallest {
                        Some(Error::Plan(PlanError::MaxMemory { wanted, .. })) => on_device.min(*wanted),
                        _ => on_device,
                    };
                    smallest = Some(PlanError::MaxMemory { wanted, limit }.into());
                }
                (_, Some(available)) if footprint.host > available => {
                    let wanted = footprint.host;
                    smallest = Some(Error::OutOfMemory {
                        wanted,
                        available: host,
                    });
                }
                _ => {
                    let note = describe(&schedule, half.side, factor, &reason);
                    return Ok(Route::Tiled(schedule, note));
                }
            }
        }
    }
    Err(smallest.unwrap_or_else(|| Error::Request("the picture is too small for tiles".into())))
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
    let wanted = bytes.total() + planner.staging(bytes);
    match limit {
        Some(limit) if wanted > limit => Err(PlanError::MaxMemory { wanted, limit }.into()),
        _ => Ok(()),
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
    format!(
        "{what} in {} x {} tiles of {w}x{h} pixels, {reason}",
        grid.x.count(),
        grid.y.count()
    )
}

//! Tiles of a picture: where they lie, which part of the picture each stands for, and how they are blended.
//!
//! Everything is planned in latent pixels, so that edges fall on whole pixels at every resolution between latent and picture.

use std::ops::Range;

/// Weights of a pixel add up to this along each axis. The product of two is exact in `f32`.
pub const ONE: u16 = 1 << 12;

/// Tiles along one axis, all of one length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Length of the picture.
    pub len: usize,
    /// Length of a tile.
    pub tile: usize,
    /// Where each tile starts, in order; the last one ends where the picture does.
    pub starts: Vec<usize>,
}

impl Axis {
    /// As few tiles as cover `len` with neighbours that share `overlap` or more, evenly spread. A tile is never longer than the
    /// picture, and an overlap always shorter than the tile.
    pub fn new(len: usize, tile: usize, overlap: usize) -> Self {
        let len = len.max(1);
        let tile = tile.clamp(1, len);
        let stride = tile - overlap.min(tile - 1);
        let steps = (len - tile).div_ceil(stride);
        let start = |i: usize| (i * (len - tile)).checked_div(steps).unwrap_or(0);
        Self {
            len,
            tile,
            starts: (0..=steps).map(start).collect(),
        }
    }

    /// Number of tiles.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The part of the picture that a tile stands for: up to the middle of what it shares with its neighbours. These parts do
    /// not overlap and cover the picture.
    pub fn core(&self, tile: usize) -> Range<usize> {
        self.edge(tile)..self.edge(tile + 1)
    }

    /// Where tile `i` takes over from the one before.
    fn edge(&self, i: usize) -> usize {
        match i {
            0 => 0,
            i if i >= self.count() => self.len,
            i => (self.starts[i] + self.starts[i - 1] + self.tile) / 2,
        }
    }

    /// What tile `i` shares with the one before, at `scale` pixels a unit.
    fn shared(&self, i: usize, scale: usize) -> usize {
        (self.starts[i - 1] + self.tile - self.starts[i]) * scale
    }

    /// Weight of each pixel of each tile, at `scale` pixels a unit: they rise and fall smoothly where tiles overlap, are 0 up
    /// to `margin` pixels from an inner edge, where the overlap has room for that, and add up to [`ONE`] at every pixel.
    pub fn weights(&self, scale: usize, margin: usize) -> Vec<Vec<u16>> {
        let len = self.tile * scale;
        let rise = |i: usize, at: usize| match self.shared(i, scale) {
            0 => 1.0,
            shared => ramp(at, shared, margin),
        };
        let raw = |i: usize, at: usize| {
            let left = if i == 0 { 1.0 } else { rise(i, at) };
            let right = if i + 1 == self.count() {
                1.0
            } else {
                rise(i + 1, len - 1 - at)
            };
            left * right
        };
        let mut weights = vec![vec![0; len]; self.count()];
        for pixel in 0..self.len * scale {
            let covers = |i: &usize| (0..len).contains(&pixel.wrapping_sub(self.starts[*i] * scale));
            let tiles: Vec<_> = (0..self.count()).filter(covers).collect();
            let raws: Vec<_> = tiles.iter().map(|&i| raw(i, pixel - self.starts[i] * scale)).collect();
            let total: f64 = raws.iter().sum();
            // Whole numbers, so that nothing is lost; the owner of the pixel takes what rounding leaves.
            let mut left = ONE;
            for (&i, raw) in tiles.iter().zip(raws) {
                let weight = if total > 0.0 {
                    (raw / total * f64::from(ONE)) as u16
                } else {
                    0
                };
                weights[i][pixel - self.starts[i] * scale] = weight;
                left -= weight;
            }
            let owner = tiles.iter().find(|&&i| self.core(i).contains(&(pixel / scale)));
            if let Some(&i) = owner {
                weights[i][pixel - self.starts[i] * scale] += left;
            }
        }
        weights
    }
}

/// Weight of pixel `at` of an overlap that `shared` pixels wide: a smooth step between the margins.
fn ramp(at: usize, shared: usize, margin: usize) -> f64 {
    // An overlap without room for the margins is blended over a quarter of it.
    let margin = if 2 * margin <= shared { margin } else { shared * 3 / 8 } as f64;
    let width = shared as f64 - 2.0 * margin;
    let t = ((at as f64 + 0.5 - margin) / width.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
    t * t * (3.0 - 2.0 * t)
}

/// Tiles of a picture, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Rows.
    pub y: Axis,
    /// Columns.
    pub x: Axis,
}

impl Grid {
    /// Tiles of `tile` by `tile` over a picture of `[height, width]`, as [`Axis::new`] lays them out.
    pub fn new([height, width]: [usize; 2], tile: usize, overlap: usize) -> Self {
        Self {
            y: Axis::new(height, tile, overlap),
            x: Axis::new(width, tile, overlap),
        }
    }

    /// Number of tiles.
    pub fn count(&self) -> usize {
        self.y.count() * self.x.count()
    }

    /// Height and width of every tile.
    pub fn tile(&self) -> [usize; 2] {
        [self.y.tile, self.x.tile]
    }

    /// Row and column of each tile.
    pub fn tiles(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let columns = self.x.count();
        (0..self.count()).map(move |i| [i / columns, i % columns])
    }

    /// First row, end of the rows, first column and end of the columns of a tile's own part, counted from the tile's corner.
    pub fn core(&self, [i, j]: [usize; 2]) -> [usize; 4] {
        let (rows, cols) = (self.y.core(i), self.x.core(j));
        let (top, left) = (self.y.starts[i], self.x.starts[j]);
        [rows.start - top, rows.end - top, cols.start - left, cols.end - left]
    }
}

/// Copies a tile out of planes of `[height, width]`; `corner` is its first row and column.
pub fn crop(picture: &[f32], size: [usize; 2], corner: [usize; 2], tile: [usize; 2], out: &mut [f32]) {
    let planes = picture.chunks_exact((size[0] * size[1]).max(1));
    for (plane, out) in planes.zip(out.chunks_exact_mut((tile[0] * tile[1]).max(1))) {
        for (row, line) in out.chunks_exact_mut(tile[1].max(1)).enumerate() {
            let at = (corner[0] + row) * size[1] + corner[1];
            line.copy_from_slice(&plane[at..at + tile[1]]);
        }
    }
}

/// Adds a tile to planes of `[height, width]` with the weights of its rows and columns.
pub fn blend(picture: &mut [f32], size: [usize; 2], corner: [usize; 2], weights: [&[u16]; 2], tile: &[f32]) {
    const SCALE: f32 = 1.0 / (ONE as f32 * ONE as f32);
    let [rows, cols] = weights;
    // A tile counts within one run of columns: outside it, weights are 0.
    let first = cols.iter().position(|&w| w > 0).unwrap_or(0);
    let end = cols.iter().rposition(|&w| w > 0).map_or(0, |i| i + 1);
    let planes = picture.chunks_exact_mut((size[0] * size[1]).max(1));
    for (plane, tile) in planes.zip(tile.chunks_exact((rows.len() * cols.len()).max(1))) {
        for (row, line) in tile.chunks_exact(cols.len().max(1)).enumerate() {
            if rows[row] == 0 || first >= end {
                continue;
            }
            let at = (corner[0] + row) * size[1] + corner[1];
            let factor = f32::from(rows[row]) * SCALE;
            let to = &mut plane[at + first..at + end];
            for ((y, x), w) in to.iter_mut().zip(&line[first..end]).zip(&cols[first..end]) {
                // Together with 0, so that a NaN without weight stays out.
                if *w > 0 {
                    *y += factor * f32::from(*w) * x;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_spread_evenly_and_complete() {
        let axis = Axis::new(100, 32, 8);
        assert_eq!(axis.starts, [0, 22, 45, 68]);
        assert_eq!(Axis::new(10, 32, 8).starts, [0]);
        assert_eq!(Axis::new(10, 32, 8).tile, 10);
        assert_eq!(Axis::new(33, 32, 31).starts, [0, 1]);
        assert_eq!(Axis::new(0, 0, 0).starts, [0]);
    }

    #[test]
    fn a_wide_overlap_leaves_the_margins_to_the_neighbour() {
        let axis = Axis::new(24, 16, 8);
        let weights = axis.weights(1, 3);
        assert_eq!(weights[0][8..], [4096, 4096, 4096, 3456, 640, 0, 0, 0]);
        assert_eq!(weights[1][..8], [0, 0, 0, 640, 3456, 4096, 4096, 4096]);
    }

    #[test]
    fn cropped_and_blended_is_the_picture() {
        let size = [13, 11];
        let picture: Vec<f32> = (0..2 * 13 * 11).map(|i| i as f32).collect();
        let grid = Grid::new(size, 6, 3);
        let weights = [grid.y.weights(1, 1), grid.x.weights(1, 1)];
        let mut out = vec![0.0; picture.len()];
        for [i, j] in grid.tiles() {
            let corner = [grid.y.starts[i], grid.x.starts[j]];
            let mut tile = vec![0.0; 2 * 36];
            crop(&picture, size, corner, grid.tile(), &mut tile);
            blend(&mut out, size, corner, [&weights[0][i], &weights[1][j]], &tile);
        }
        let worst = picture.iter().zip(&out).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= 1e-4, "{worst}");
    }
}

//! The grid of tiles and its weights.

use proptest::prelude::*;
use rotile::tiling::{Axis, Grid, ONE};

proptest! {
    #[test]
    fn tiles_cover_the_picture_and_weights_add_up(
        len in 1usize..300,
        tile in 1usize..120,
        overlap in 0usize..120,
        scale in 1usize..9,
        margin in 0usize..40,
    ) {
        let axis = Axis::new(len, tile, overlap);
        prop_assert!(axis.tile == tile.min(len));
        prop_assert_eq!(axis.starts[0], 0);
        prop_assert_eq!(axis.starts[axis.count() - 1] + axis.tile, len);
        let overlap = overlap.min(axis.tile - 1);
        for pair in axis.starts.windows(2) {
            prop_assert!(pair[0] < pair[1]);
            prop_assert!(pair[0] + axis.tile >= pair[1] + overlap, "{:?}", axis);
        }
        // The parts that tiles stand for follow one another, inside their tiles.
        let mut at = 0;
        for (i, start) in axis.starts.iter().enumerate() {
            let core = axis.core(i);
            prop_assert_eq!(core.start, at);
            prop_assert!(core.start >= *start && core.end <= start + axis.tile);
            at = core.end;
        }
        prop_assert_eq!(at, len);

        let weights = axis.weights(scale, margin);
        let mut sums = vec![0u32; len * scale];
        for (start, weights) in axis.starts.iter().zip(&weights) {
            prop_assert_eq!(weights.len(), axis.tile * scale);
            for (sum, weight) in sums[start * scale..].iter_mut().zip(weights) {
                *sum += u32::from(*weight);
            }
        }
        prop_assert!(sums.iter().all(|&sum| sum == u32::from(ONE)));
    }

    #[test]
    fn weights_of_two_axes_add_up_to_exactly_one(
        height in 1usize..40,
        width in 1usize..40,
        tile in 1usize..20,
        overlap in 0usize..20,
    ) {
        let grid = Grid::new([height, width], tile, overlap);
        let weights = [grid.y.weights(2, 1), grid.x.weights(2, 1)];
        let ones = vec![1.0; grid.tile()[0] * grid.tile()[1] * 4];
        let mut sums = vec![0.0; height * width * 4];
        for [i, j] in grid.tiles() {
            let corner = [grid.y.starts[i] * 2, grid.x.starts[j] * 2];
            let weights = [&*weights[0][i], &*weights[1][j]];
            rotile::tiling::blend(&mut sums, [height * 2, width * 2], corner, weights, &ones);
        }
        prop_assert!(sums.iter().all(|&sum| sum == 1.0));
    }

    #[test]
    fn weights_are_smooth(tile in 16usize..64, overlap in 2usize..8, scale in 2usize..9) {
        // From one pixel to the next, a weight changes by no more than a smooth step of the overlap does.
        let axis = Axis::new(3 * tile, tile, overlap);
        for weights in axis.weights(scale, 0) {
            for pair in weights.windows(2) {
                let step = i32::from(pair[1]) - i32::from(pair[0]);
                let most = 1.5 * f64::from(ONE) / (overlap * scale) as f64 + 2.0;
                prop_assert!(f64::from(step.abs()) <= most, "{step} over {most}");
            }
        }
    }
}

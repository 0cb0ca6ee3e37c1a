//! A disc through the trained autoencoder and back, at sizes that are no powers of two: it comes back once, where it was, as a whole
//! and in tiles.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::scenes;
use rotile::checkpoint::Checkpoint;
use rotile::diffusion::tiled::TileOptions;
use rotile::diffusion::vae::VaeOptions;
use rotile::engine::{Autoencoder, Cancel, DeviceChoice, Event, Options};
use rotile::media::{Comparison, Image};
use std::sync::Arc;
use std::time::Instant;

/// Where a disc lies: centre and radius in pixels.
#[derive(Clone, Copy, Debug)]
struct Disc {
    x: f64,
    y: f64,
    radius: f64,
}

impl Disc {
    /// Away from the middle, so that a picture that comes back turned or shifted shows.
    fn of(width: u32, height: u32) -> Self {
        Self {
            x: 0.37 * f64::from(width),
            y: 0.58 * f64::from(height),
            radius: f64::from(width.min(height)) / 9.0,
        }
    }

    /// Yellow on blue.
    fn draw(self, width: u32, height: u32) -> Image {
        let inside = |x: u32, y: u32| (f64::from(x) - self.x).hypot(f64::from(y) - self.y) < self.radius;
        let pixels = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let colour = |(x, y)| if inside(x, y) { [240, 220, 60] } else { [40, 60, 110] };
        Image::new(width, height, pixels.flat_map(colour).collect())
    }
}

/// Connected bright areas: pixels, and the mean of their coordinates.
fn bright(picture: &Image) -> Vec<(usize, f64, f64)> {
    let [w, h] = [picture.width(), picture.height()].map(|n| n as usize);
    // Halfway between the green of the disc and that of the ground.
    let mut left: Vec<bool> = picture.rgb8().chunks_exact(3).map(|p| p[1] > 140).collect();
    let mut areas = Vec::new();
    for start in 0..left.len() {
        let mut open = Vec::from_iter(left[start].then_some(start));
        left[start] = false;
        let mut sum = (0, 0.0, 0.0);
        while let Some(at) = open.pop() {
            let (x, y) = (at % w, at / w);
            sum = (sum.0 + 1, sum.1 + x as f64, sum.2 + y as f64);
            let beside = [
                (x > 0).then(|| at - 1),
                (x + 1 < w).then_some(at + 1),
                (y > 0).then(|| at - w),
                (y + 1 < h).then_some(at + w),
            ];
            for next in beside.into_iter().flatten() {
                if std::mem::take(&mut left[next]) {
                    open.push(next);
                }
            }
        }
        if sum.0 > 0 {
            areas.push((sum.0, sum.1 / sum.0 as f64, sum.2 / sum.0 as f64));
        }
    }
    areas
}

fn autoencoder(device: DeviceChoice, tile: Option<TileOptions>) -> Autoencoder {
    let checkpoint = Arc::new(Checkpoint::open(scenes("vae")).unwrap_or_else(|e| panic!("{e}")));
    let options = Options {
        device,
        vae: VaeOptions {
            tile,
            ..VaeOptions::default()
        },
        ..Options::default()
    };
    pollster::block_on(Autoencoder::new(checkpoint, &options)).unwrap_or_else(|e| panic!("{e}"))
}

/// Sends a disc through and back and finds it again; whether it went in tiles.
fn round_trip(vae: &mut Autoencoder, (width, height): (u32, u32)) -> (Image, bool) {
    let disc = Disc::of(width, height);
    let picture = disc.draw(width, height);
    let (start, mut tiles) = (Instant::now(), 0);
    let on = |event| tiles += usize::from(matches!(event, Event::Tile { .. }));
    let back = pollster::block_on(vae.round_trip(&picture, on, &Cancel::new()))
        .unwrap_or_else(|e| panic!("{width}x{height}: {e}"));
    let seconds = start.elapsed().as_secs_f64();
    let found = Comparison::of(&picture, &back).expect("the size that it had");
    let areas = bright(&back);
    println!(
        "{width}x{height}, {tiles} tiles: {:.2} dB, bright areas {areas:.1?}, disc {disc:.1?}, {seconds:.1} s",
        found.psnr
    );
    let &[(pixels, x, y)] = &areas[..] else {
        panic!("{width}x{height}: {} bright areas", areas.len())
    };
    assert!((x - disc.x).hypot(y - disc.y) < 2.0, "{width}x{height}: it has moved");
    let area = pixels as f64 / (std::f64::consts::PI * disc.radius.powi(2));
    assert!((0.95..1.05).contains(&area), "{width}x{height}: {area:.3} of its area");
    // The model was trained at 128x128; the larger the picture, the further its flat areas are off, by 1.3 dB up to 1536x1536.
    let least = if width * height <= 1 << 21 { 25.0 } else { 24.0 };
    assert!(found.psnr >= least, "{width}x{height}: {:.2} dB", found.psnr);
    (back, tiles > 0)
}

/// As a whole and in tiles of `tile` pixels.
fn both_ways(device: &DeviceChoice, sizes: &[((u32, u32), u32)]) {
    let mut whole = autoencoder(device.clone(), None);
    for &(size, tile) in sizes {
        let (want, in_tiles) = round_trip(&mut whole, size);
        assert!(!in_tiles, "{size:?} fits as a whole");
        let mut tiled = autoencoder(
            device.clone(),
            Some(TileOptions {
                size: tile,
                overlap: 16,
            }),
        );
        let (got, in_tiles) = round_trip(&mut tiled, size);
        assert!(in_tiles, "{size:?} in tiles of {tile}");
        let psnr = Comparison::of(&got, &want).expect("the same size").psnr;
        println!("  tiles of {tile} pixels against the whole: {psnr:.1} dB");
        assert!(psnr >= 45.0, "{size:?} in tiles of {tile}: {psnr:.1} dB");
    }
}

#[test]
fn several_discs_would_be_counted() {
    let disc = Disc::of(128, 128).draw(128, 128);
    let copies = Image::new(
        128,
        128,
        (0..128 * 128)
            .flat_map(|i| {
                // Four of half the size, as a wrong stride makes them.
                let at = 3 * ((i / 128 * 2 % 128) * 128 + i % 128 * 2 % 128);
                [0, 1, 2].map(|c| disc.rgb8()[at + c])
            })
            .collect(),
    );
    assert_eq!(bright(&disc).len(), 1);
    assert_eq!(bright(&copies).len(), 4);
}

#[test]
fn a_disc_comes_back_once_on_the_cpu() {
    both_ways(
        &DeviceChoice::Cpu,
        &[
            ((512, 512), 328),
            ((256, 256), 96),
            ((333, 440), 264),
            ((808, 264), 424),
            ((264, 1096), 568),
            ((1536, 256), 520),
        ],
    );
    round_trip(&mut autoencoder(DeviceChoice::Cpu, None), (600, 599));
}

#[test]
fn a_disc_comes_back_once_on_the_gpu() {
    if support::gpu().is_none() {
        return;
    }
    both_ways(&DeviceChoice::Auto, &[((328, 264), 168)]);
    let mut whole = autoencoder(DeviceChoice::Auto, None);
    for size in [(512, 512), (1096, 256)] {
        round_trip(&mut whole, size);
    }
}

/// Minutes: `cargo test --test vae_sizes -- --ignored --nocapture`.
#[test]
#[ignore = "takes minutes"]
fn large_discs_come_back_once() {
    both_ways(&DeviceChoice::Cpu, &[((808, 808), 328), ((1000, 1096), 424)]);
}

#[test]
#[ignore = "takes minutes"]
fn the_largest_disc_comes_back_once() {
    both_ways(&DeviceChoice::Cpu, &[((1536, 1536), 776)]);
}

#[test]
#[ignore = "takes minutes on a software GPU"]
fn a_large_disc_comes_back_once_on_the_gpu() {
    if support::gpu().is_some() {
        round_trip(&mut autoencoder(DeviceChoice::Auto, None), (1000, 808));
    }
}

//! How far two pictures are apart.

use super::Image;
use crate::error::MediaError;

/// What [`Comparison::of`] finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Peak signal-to-noise ratio over all channels in dB, peak 255; infinite for equal pictures.
    pub psnr: f64,
    /// Structural similarity in -1..=1, mean over the channels: see [`ssim`].
    pub ssim: f64,
    /// Largest difference of a channel, in 0..=255.
    pub max: u8,
    /// Mean absolute difference of a channel, in 0..=255.
    pub mean: f64,
}

impl Comparison {
    /// Compares two pictures of one size.
    ///
    /// # Errors
    /// If the sizes differ.
    pub fn of(a: &Image, b: &Image) -> Result<Self, MediaError> {
        same_size(a, b)?;
        let differences = || a.rgb8().iter().zip(b.rgb8()).map(|(a, b)| a.abs_diff(*b));
        let n = a.rgb8().len() as f64;
        let squares: u64 = differences().map(|d| u64::from(d) * u64::from(d)).sum();
        let sum: u64 = differences().map(u64::from).sum();
        Ok(Self {
            psnr: decibels(squares as f64 / n / (255.0 * 255.0)),
            ssim: ssim(a, b)?,
            max: differences().max().unwrap_or(0),
            mean: sum as f64 / n,
        })
    }

    /// Whether no pixel differs.
    pub fn identical(&self) -> bool {
        self.max == 0
    }
}

/// PSNR in dB of values with peak 1, such as a picture tensor; infinite if all are equal.
///
/// # Panics
/// If the lengths differ.
pub fn psnr(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "values differ in number");
    let squares: f64 = a
        .iter()
        .zip(b)
        .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
        .sum();
    decibels(squares / a.len() as f64)
}

fn decibels(mean_square: f64) -> f64 {
    if mean_square == 0.0 {
        f64::INFINITY
    } else {
        -10.0 * mean_square.log10()
    }
}

/// `|a - b|` of each channel, eight times as strong.
///
/// # Errors
/// If the sizes differ.
pub fn difference(a: &Image, b: &Image) -> Result<Image, MediaError> {
    same_size(a, b)?;
    let pixels = a
        .rgb8()
        .iter()
        .zip(b.rgb8())
        .map(|(a, b)| a.abs_diff(*b).saturating_mul(8));
    Ok(Image::new(a.width(), a.height(), pixels.collect()))
}

fn same_size(a: &Image, b: &Image) -> Result<(), MediaError> {
    if (a.width(), a.height()) == (b.width(), b.height()) {
        return Ok(());
    }
    Err(MediaError::Sizes(a.width(), a.height(), b.width(), b.height()))
}

const RADIUS: usize = 5;
const SIGMA: f64 = 1.5;

/// Structural similarity after Wang et al. 2004: Gaussian windows of 11x11 pixels, sigma 1.5, K1 = 0.01, K2 = 0.03, mean over the
/// windows that lie inside the picture and over the channels. Equal to scikit-image's with `gaussian_weights` and
/// `use_sample_covariance=False`. Sides below 11 pixels take cut windows at every pixel.
///
/// # Errors
/// If the sizes differ.
pub fn ssim(a: &Image, b: &Image) -> Result<f64, MediaError> {
    same_size(a, b)?;
    let (width, height) = (a.width() as usize, a.height() as usize);
    let inside = |side: usize| {
        if side > 2 * RADIUS {
            RADIUS..side - RADIUS
        } else {
            0..side
        }
    };
    let count = inside(width).len() * inside(height).len();
    let (c1, c2) = ((0.01f64 * 255.0).powi(2), (0.03f64 * 255.0).powi(2));
    let mut total = 0.0;
    for channel in 0..3 {
        let plane = |image: &Image| -> Vec<f64> {
            image
                .rgb8()
                .iter()
                .skip(channel)
                .step_by(3)
                .map(|&v| v.into())
                .collect()
        };
        let (x, y) = (plane(a), plane(b));
        let product = |p: &[f64], q: &[f64]| -> Vec<f64> { p.iter().zip(q).map(|(p, q)| p * q).collect() };
        let smooth = |values: Vec<f64>| blur(&transpose(&blur(&values, width), width), height);
        let (xx, yy, xy) = (product(&x, &x), product(&y, &y), product(&x, &y));
        // Smoothed planes lie transposed: column by column.
        let [x, y, xx, yy, xy] = [x, y, xx, yy, xy].map(smooth);
        for column in inside(width) {
            for i in inside(height).map(|row| column * height + row) {
                let (mx, my) = (x[i], y[i]);
                let (vx, vy, cov) = (xx[i] - mx * mx, yy[i] - my * my, xy[i] - mx * my);
                total += (2.0 * mx * my + c1) * (2.0 * cov + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2));
            }
        }
    }
    Ok(total / (3 * count) as f64)
}

/// Gaussian along rows of `width` values; the weights inside the row sum to 1.
fn blur(values: &[f64], width: usize) -> Vec<f64> {
    let weights: [f64; RADIUS + 1] = std::array::from_fn(|d| (-((d * d) as f64) / (2.0 * SIGMA * SIGMA)).exp());
    let mut blurred = Vec::with_capacity(values.len());
    for row in values.chunks_exact(width) {
        for i in 0..width {
            let (mut sum, mut norm) = (0.0, 0.0);
            for j in i.saturating_sub(RADIUS)..(i + RADIUS + 1).min(width) {
                let weight = weights[i.abs_diff(j)];
                sum += weight * row[j];
                norm += weight;
            }
            blurred.push(sum / norm);
        }
    }
    blurred
}

fn transpose(values: &[f64], width: usize) -> Vec<f64> {
    (0..width)
        .flat_map(|x| values.iter().skip(x).step_by(width).copied())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(width: u32, height: u32, mut state: u32) -> Image {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        Image::new(width, height, (0..3 * width * height).map(|_| next()).collect())
    }

    #[test]
    fn equal_pictures() {
        let image = noise(20, 13, 1);
        let found = Comparison::of(&image, &image).expect("one size");
        assert!(found.identical() && found.psnr == f64::INFINITY && found.mean == 0.0);
        assert!((found.ssim - 1.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn known_distances() {
        let flat = |v| Image::new(16, 16, vec![v; 768]);
        let found = Comparison::of(&flat(100), &flat(110)).expect("one size");
        assert!((found.psnr - 20.0 * 25.5f64.log10()).abs() < 1e-9, "{found:?}");
        assert_eq!((found.max, found.mean), (10, 10.0));
        // Without variance the luminance term remains.
        let wanted = (2.0 * 11_000.0 + 6.5025) / (10_000.0 + 12_100.0 + 6.5025);
        assert!((found.ssim - wanted).abs() < 1e-9, "{found:?}");
        assert!((psnr(&[0.0, 0.5], &[0.1, 0.5]) - 23.0103).abs() < 1e-4);
        assert_eq!(difference(&flat(100), &flat(110)).expect("one size"), flat(80));
        assert_eq!(difference(&flat(0), &flat(200)).expect("one size"), flat(255));
    }

    #[test]
    fn small_pictures_and_other_sizes() {
        for (w, h) in [(1, 1), (1, 30), (10, 11), (12, 5)] {
            let found = Comparison::of(&noise(w, h, 3), &noise(w, h, 4)).expect("one size");
            assert!(found.ssim.is_finite() && found.ssim < 1.0, "{w}x{h}: {found:?}");
        }
        assert!(matches!(
            Comparison::of(&noise(3, 2, 1), &noise(2, 3, 1)),
            Err(MediaError::Sizes(3, 2, 2, 3))
        ));
    }
}

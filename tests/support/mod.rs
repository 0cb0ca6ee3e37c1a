//! What several test files share.

#![allow(dead_code, unreachable_pub, reason = "each test file uses a part")]

use rotile::gpu::{AdapterChoice, Gpu};
use rotile::op::Tolerance;
use std::sync::OnceLock;

/// The GPU that tests run on, or none. With `REQUIRE_GPU=1`, as in CI, none is a failure.
pub fn gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    GPU.get_or_init(|| match pollster::block_on(Gpu::open(&AdapterChoice::Best)) {
        Ok(gpu) => Some(gpu),
        Err(e) if required("REQUIRE_GPU") => panic!("REQUIRE_GPU is set, but {e}"),
        Err(e) => {
            eprintln!("GPU tests are skipped: {e}");
            None
        }
    })
    .as_ref()
}

/// Whether the environment variable is `1`.
pub fn required(name: &str) -> bool {
    std::env::var(name).is_ok_and(|v| v == "1")
}

/// Uniform numbers in -1..1 from a name: the same in every run.
pub fn uniform(name: &str) -> impl FnMut() -> f32 + use<> {
    let mut seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 40) as f32 / (1u64 << 24) as f32 * 2.0 - 1.0
    }
}

/// Whether `got` is within `limit` of `want`; the message has the numbers.
pub fn within(got: &[f32], want: &[f32], limit: Tolerance) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{} values, wanted {}", got.len(), want.len()));
    }
    let (mut error, mut norm, mut worst, mut largest, mut at) = (0.0, 0.0, 0.0, 0.0f64, 0);
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        // Equal infinities are equal; everything else non-finite must match in kind.
        if g == w || (g.is_nan() && w.is_nan()) {
            norm += if w.is_finite() { f64::from(w).powi(2) } else { 0.0 };
            largest = if w.is_finite() {
                largest.max(f64::from(w).abs())
            } else {
                largest
            };
            continue;
        }
        let difference = (f64::from(g) - f64::from(w)).abs();
        if !difference.is_finite() {
            return Err(format!("at {i}: {g}, wanted {w}"));
        }
        error += difference.powi(2);
        norm += f64::from(w).powi(2);
        largest = largest.max(f64::from(w).abs());
        if difference > worst {
            (worst, at) = (difference, i);
        }
    }
    let nmse = if error == 0.0 { 0.0 } else { error / norm };
    let max = if worst == 0.0 { 0.0 } else { worst / largest };
    if nmse <= limit.nmse && max <= limit.max {
        return Ok(());
    }
    Err(format!(
        "nmse {nmse:.2e} (limit {:.0e}), largest error {max:.2e} of the largest value (limit {:.0e}) at {at}: {} instead of {}",
        limit.nmse, limit.max, got[at], want[at]
    ))
}

/// `|got - want| / |want|` over all values: NaN anywhere makes it NaN.
pub fn relative_rms(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths differ");
    let square = |v: f64| v * v;
    let error: f64 = got
        .iter()
        .zip(want)
        .map(|(&g, &w)| square(f64::from(g) - f64::from(w)))
        .sum();
    let norm: f64 = want.iter().map(|&w| square(f64::from(w))).sum();
    (error / norm).sqrt()
}

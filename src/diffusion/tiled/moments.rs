use crate::ops::GroupStats;

/// Count, mean and sum of squared differences of a set that grows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    /// Adds a chunk as [`GroupStats`] describes it.
    pub(super) fn add(&mut self, chunk: &[f32]) {
        let [mean, variance, share] = [0, 1, 2].map(|i| f64::from(chunk[i]));
        let count = share * GroupStats::CHUNK as f64;
        if count > 0.0 {
            let total = self.count + count;
            let step = mean - self.mean;
            self.mean += step * count / total;
            self.squares += variance * count + step * step * self.count * count / total;
            self.count = total;
        }
    }

    /// Mean, what its rounding leaves, and variance, as `group_norm_given` takes them.
    pub(super) fn given(&self) -> [f32; 3] {
        let mean = self.mean as f32;
        let rest = (self.mean - f64::from(mean)) as f32;
        [mean, rest, (self.squares / self.count) as f32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_merge_to_the_moments_of_all_values() {
        let values: Vec<f32> = (0..3 * 4096)
            .map(|i| 1000.0 + (i * 7919 % 1000) as f32 / 250.0)
            .collect();
        let describe = |values: &[f32]| {
            let n = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
            let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
            (mean, variance)
        };
        let mut moments = Moments::default();
        for part in [
            &values[..4096],
            &values[4096..4096],
            &values[4096..5000],
            &values[5000..9000],
            &values[9000..],
        ] {
            let (mean, variance) = if part.is_empty() { (0.0, 0.0) } else { describe(part) };
            let share = part.len() as f64 / GroupStats::CHUNK as f64;
            moments.add(&[mean, variance, share].map(|v| v as f32));
        }
        let (mean, variance) = describe(&values);
        let [high, rest, got] = moments.given();
        assert!(
            (f64::from(high) + f64::from(rest) - mean).abs() < 1e-4,
            "{high} {rest} {mean}"
        );
        assert!((f64::from(got) / variance - 1.0).abs() < 1e-4, "{got} {variance}");
    }

    #[test]
    fn nan_stays() {
        let mut moments = Moments::default();
        moments.add(&[f32::NAN, f32::NAN, 1.0]);
        moments.add(&[1.0, 1.0, 1.0]);
        assert!(moments.given()[0].is_nan());
    }
}

//! Classifier-free guidance as diffusers has it for Z-Image: `pos + g (pos - neg)`, off at `g = 0`.

/// How far a prediction is pushed away from that of the negative prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// `g`; guidance is on above 0.
    pub scale: f32,
    /// Largest norm of the result, as a multiple of the norm of the positive prediction; off at 0 (`cfg_normalization`).
    pub normalization: f32,
    /// Model time, in 0..=1, above which guidance is off (`cfg_truncation`); 1 never cuts it off.
    pub truncation: f32,
}

impl Guidance {
    /// Guidance of strength `scale`, without normalization and truncation.
    pub const fn new(scale: f32) -> Self {
        Self {
            scale,
            normalization: 0.0,
            truncation: 1.0,
        }
    }

    /// Whether any step needs the negative prompt.
    pub fn is_on(&self) -> bool {
        self.scale > 0.0
    }

    /// Strength at a model time `(1000 - timestep) / 1000`: 0 where a step needs only the positive prediction.
    pub fn scale_at(&self, time: f32) -> f32 {
        if self.is_on() && time <= self.truncation {
            self.scale
        } else {
            0.0
        }
    }

    /// Guides the prediction of one picture: `pos` becomes the result. `scale` is [`Guidance::scale_at`].
    ///
    /// # Panics
    /// If the predictions differ in length.
    pub fn apply(&self, scale: f32, pos: &mut [f32], neg: &[f32]) {
        assert_eq!(pos.len(), neg.len(), "predictions differ in length");
        let before = norm(pos);
        for (p, n) in pos.iter_mut().zip(neg) {
            *p += scale * (*p - n);
        }
        if self.normalization > 0.0 {
            let (limit, after) = (before * self.normalization, norm(pos));
            if after > limit {
                let shrink = limit / after;
                pos.iter_mut().for_each(|p| *p *= shrink);
            }
        }
    }
}

fn norm(values: &[f32]) -> f32 {
    values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_away_from_the_negative() {
        let mut pos = [1.0, -2.0, 0.5];
        Guidance::new(3.0).apply(3.0, &mut pos, &[0.5, -2.0, 1.0]);
        assert_eq!(pos, [2.5, -2.0, -1.0]);
    }

    #[test]
    fn normalization_only_shrinks() {
        let guidance = Guidance {
            normalization: 1.0,
            ..Guidance::new(1.0)
        };
        let mut long = [3.0, 4.0];
        guidance.apply(1.0, &mut long, &[0.0, 0.0]);
        assert_eq!(long, [3.0, 4.0]);
        let mut short = [3.0, 4.0];
        guidance.apply(0.5, &mut short, &[6.0, 8.0]);
        assert_eq!(short, [1.5, 2.0]);
    }

    #[test]
    fn truncation_and_zero_turn_it_off() {
        let guidance = Guidance {
            truncation: 0.5,
            ..Guidance::new(2.0)
        };
        assert_eq!([0.0, 0.5, 0.51].map(|t| guidance.scale_at(t)), [2.0, 2.0, 0.0]);
        assert!(!Guidance::new(0.0).is_on());
        assert_eq!(Guidance::new(0.0).scale_at(0.0), 0.0);
    }
}

//! Euler steps along a straight flow from noise to data (diffusers' `FlowMatchEulerDiscreteScheduler`).

use super::{Schedule, Spacing};
use serde::Deserialize;
use serde_json::Value;

/// Flow matching: `x = sigma * noise + (1 - sigma) * x0`, with levels pushed towards noise for larger pictures.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct FlowMatchEuler {
    /// Levels of training; a timestep is `num_train_timesteps * sigma`.
    pub num_train_timesteps: u32,
    /// Static shift: `s sigma / (1 + (s - 1) sigma)`.
    pub shift: f64,
    /// Shift by picture size in place of [`FlowMatchEuler::shift`].
    pub use_dynamic_shifting: bool,
    /// `mu` at [`FlowMatchEuler::base_image_seq_len`] tokens.
    pub base_shift: f64,
    /// `mu` at [`FlowMatchEuler::max_image_seq_len`] tokens.
    pub max_shift: f64,
    /// Tokens of the smallest picture.
    pub base_image_seq_len: usize,
    /// Tokens of the largest picture.
    pub max_image_seq_len: usize,
    /// Level of the last step, to which all are stretched.
    pub shift_terminal: Option<f64>,
    /// Form of the dynamic shift.
    pub time_shift_type: TimeShift,
}

/// Form of the dynamic shift: `m / (m + 1 / sigma - 1)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeShift {
    /// `m = exp(mu)`.
    Exponential,
    /// `m = mu`.
    Linear,
}

/// Options that change the result and are not there.
const UNSUPPORTED: [&str; 5] = [
    "invert_sigmas",
    "stochastic_sampling",
    "use_beta_sigmas",
    "use_exponential_sigmas",
    "use_karras_sigmas",
];

impl Default for FlowMatchEuler {
    fn default() -> Self {
        Self {
            num_train_timesteps: 1000,
            shift: 1.0,
            use_dynamic_shifting: false,
            base_shift: 0.5,
            max_shift: 1.15,
            base_image_seq_len: 256,
            max_image_seq_len: 4096,
            shift_terminal: None,
            time_shift_type: TimeShift::Exponential,
        }
    }
}

impl FlowMatchEuler {
    pub(super) fn from_config(config: &Value) -> Result<Self, String> {
        for option in UNSUPPORTED {
            if !matches!(config.get(option), None | Some(Value::Null | Value::Bool(false))) {
                return Err(format!("`{option}` is set, which is not supported"));
            }
        }
        let scheduler: Self = serde_json::from_value(config.clone()).map_err(|e| e.to_string())?;
        if scheduler.num_train_timesteps == 0 {
            return Err("`num_train_timesteps` is 0".into());
        }
        if !(scheduler.shift > 0.0 && scheduler.shift.is_finite()) {
            return Err(format!("`shift` is {}, wanted above 0", scheduler.shift));
        }
        if scheduler.max_image_seq_len <= scheduler.base_image_seq_len {
            return Err("`max_image_seq_len` is not above `base_image_seq_len`".into());
        }
        if scheduler.shift_terminal.is_some_and(|t| !(0.0..1.0).contains(&t)) {
            return Err("`shift_terminal` is not in 0..1".into());
        }
        Ok(scheduler)
    }

    /// Dynamic shift of a picture of `tokens` tokens: a line through base and maximum.
    pub fn mu(&self, tokens: usize) -> f64 {
        let span = self.max_image_seq_len as f64 - self.base_image_seq_len as f64;
        let slope = (self.max_shift - self.base_shift) / span;
        tokens as f64 * slope + (self.base_shift - slope * self.base_image_seq_len as f64)
    }

    pub(super) fn schedule(&self, spacing: &Spacing<'_>) -> Schedule {
        // diffusers keeps given sigmas in f32 and its own in f64. An f64 operation that is rounded to f32 at once is the f32 one.
        let explicit = spacing.sigmas.is_some();
        let r = |v: f64| if explicit { f64::from(v as f32) } else { v };
        let mut sigmas: Vec<f64> = match spacing.sigmas {
            Some(sigmas) => sigmas.iter().map(|&s| f64::from(s)).collect(),
            None => self.default_sigmas(spacing.steps),
        };
        if self.use_dynamic_shifting {
            let mu = spacing.mu.unwrap_or_else(|| self.mu(spacing.tokens));
            let m = r(match self.time_shift_type {
                TimeShift::Exponential => mu.exp(),
                TimeShift::Linear => mu,
            });
            sigmas.iter_mut().for_each(|s| *s = r(m / r(m + r(r(1.0 / *s) - 1.0))));
        } else {
            let (shift, above) = (r(self.shift), r(self.shift - 1.0));
            sigmas
                .iter_mut()
                .for_each(|s| *s = r(r(shift * *s) / r(1.0 + r(above * *s))));
        }
        // As in diffusers, 0 means none.
        if let Some(terminal) = self.shift_terminal.filter(|&t| t > 0.0)
            && let Some(&last) = sigmas.last()
        {
            // One step at level 1 has nothing to stretch; diffusers divides by zero there.
            let scale = r(r(1.0 - last) / r(1.0 - terminal));
            if scale > 0.0 {
                sigmas.iter_mut().for_each(|s| *s = r(1.0 - r(r(1.0 - *s) / scale)));
            }
        }
        let mut sigmas: Vec<f32> = sigmas.into_iter().map(|s| s as f32).collect();
        let timesteps = sigmas.iter().map(|s| s * self.num_train_timesteps as f32).collect();
        sigmas.push(0.0);
        Schedule { sigmas, timesteps }
    }

    /// Even timesteps between the levels of training. The static shift is in their ends already and comes on top again, as in
    /// diffusers.
    fn default_sigmas(&self, steps: usize) -> Vec<f64> {
        let train = self.num_train_timesteps as f32;
        let end = |timestep: f32| {
            let sigma = timestep / train;
            let shift = self.shift as f32;
            let shifted = if self.use_dynamic_shifting {
                sigma
            } else {
                shift * sigma / (1.0 + (self.shift - 1.0) as f32 * sigma)
            };
            f64::from(shifted) * f64::from(train)
        };
        let (first, last) = (end(train), end(1.0));
        let step = if steps > 1 {
            (last - first) / (steps - 1) as f64
        } else {
            0.0
        };
        (0..steps)
            .map(|i| {
                let timestep = if i > 0 && i + 1 == steps {
                    last
                } else {
                    first + step * i as f64
                };
                timestep / f64::from(train)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scheduler;
    use super::*;

    #[test]
    fn unsupported_options_are_refused() {
        for option in UNSUPPORTED {
            let config = format!(r#"{{"_class_name": "FlowMatchEulerDiscreteScheduler", "{option}": true}}"#);
            let error = Scheduler::from_config(config.as_bytes(), "s.json")
                .expect_err("unsupported")
                .to_string();
            assert_eq!(error, format!("s.json: `{option}` is set, which is not supported"));
        }
        let odd = br#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "time_shift_type": "cubic"}"#;
        assert!(Scheduler::from_config(odd, "s.json").is_err());
    }

    #[test]
    fn mu_is_a_line() {
        let scheduler = FlowMatchEuler::default();
        assert!((scheduler.mu(256) - 0.5).abs() < 1e-12 && (scheduler.mu(4096) - 1.15).abs() < 1e-12);
    }

    #[test]
    fn linear_shift() {
        let scheduler = FlowMatchEuler {
            use_dynamic_shifting: true,
            time_shift_type: TimeShift::Linear,
            ..FlowMatchEuler::default()
        };
        let spacing = Spacing {
            steps: 2,
            sigmas: Some(&[1.0, 0.5]),
            mu: Some(3.0),
            ..Spacing::default()
        };
        assert_eq!(scheduler.schedule(&spacing).sigmas, [1.0, 0.75, 0.0]);
    }
}

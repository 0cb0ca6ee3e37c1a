//! Schedulers: which noise levels a run visits, and how a prediction leads from one to the next.

mod flow_euler;

pub use flow_euler::FlowMatchEuler;

use crate::error::CheckpointError;
use serde_json::Value;

/// The scheduler of a model, read from its `scheduler_config.json`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scheduler {
    /// `FlowMatchEulerDiscreteScheduler`.
    FlowMatchEuler(FlowMatchEuler),
}

/// `_class_name`s that [`Scheduler::from_config`] knows.
pub const KNOWN: &[&str] = &["FlowMatchEulerDiscreteScheduler"];

/// What a run asks of a scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spacing<'a> {
    /// Number of steps, at least 1.
    pub steps: usize,
    /// Noise levels before shifting, one a step; the scheduler's own where `None`. Z-Image gives [`linear_sigmas`].
    pub sigmas: Option<&'a [f32]>,
    /// Picture tokens of the model, for shifts that depend on the size.
    pub tokens: usize,
    /// Shift to use in place of the one that `tokens` gives.
    pub mu: Option<f64>,
}

/// The noise levels of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Noise level before each step, and after the last.
    pub sigmas: Vec<f32>,
    /// What the model gets at each step: `1000 sigma`.
    pub timesteps: Vec<f32>,
}

impl Scheduler {
    /// Reads a `scheduler_config.json`; `file` is its name for messages.
    ///
    /// # Errors
    /// If it is no JSON object, names no known class, or sets an option that is not there.
    pub fn from_config(json: &[u8], file: &str) -> Result<Self, CheckpointError> {
        let fail = |reason: String| CheckpointError::Config {
            file: file.to_owned(),
            reason,
        };
        let config: Value = serde_json::from_slice(json).map_err(|e| fail(format!("not valid JSON: {e}")))?;
        let class = config.get("_class_name").and_then(Value::as_str);
        match class {
            Some("FlowMatchEulerDiscreteScheduler") => FlowMatchEuler::from_config(&config)
                .map(Self::FlowMatchEuler)
                .map_err(fail),
            Some(other) => Err(fail(format!(
                "unknown scheduler `{other}`; known: {}",
                KNOWN.join(", ")
            ))),
            None => Err(fail(format!(
                "no `_class_name`; known schedulers: {}",
                KNOWN.join(", ")
            ))),
        }
    }

    /// Class name as in the file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::FlowMatchEuler(_) => KNOWN[0],
        }
    }

    /// The noise levels of a run.
    ///
    /// # Errors
    /// A message if there are no steps or as many sigmas as steps are not given.
    pub fn schedule(&self, spacing: &Spacing<'_>) -> Result<Schedule, String> {
        if spacing.steps == 0 {
            return Err("at least 1 step is needed".into());
        }
        if let Some(sigmas) = spacing.sigmas
            && sigmas.len() != spacing.steps
        {
            return Err(format!("{} sigmas for {} steps", sigmas.len(), spacing.steps));
        }
        match self {
            Self::FlowMatchEuler(scheduler) => Ok(scheduler.schedule(spacing)),
        }
    }
}

impl Schedule {
    /// Number of steps.
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// Change of the noise level in a step, negative.
    pub fn delta(&self, step: usize) -> f32 {
        self.sigmas[step + 1] - self.sigmas[step]
    }

    /// One Euler step: `sample += (sigma' - sigma) * output`, where `output` predicts `noise - x0`.
    ///
    /// # Panics
    /// If there is no such step or the lengths differ.
    pub fn step(&self, step: usize, sample: &mut [f32], output: &[f32]) {
        assert_eq!(sample.len(), output.len(), "sample and output differ in length");
        let delta = self.delta(step);
        for (x, v) in sample.iter_mut().zip(output) {
            *x += delta * v;
        }
    }

    /// What remains of the run when it starts from a picture: all of it at `strength` 1, nothing at 0.
    ///
    /// The first `int(n - n * strength)` steps are left out, computed in double precision as in diffusers.
    ///
    /// # Errors
    /// A message if `strength` is not in 0..=1 or leaves no step.
    pub fn from_strength(&self, strength: f32) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&strength) {
            return Err(format!("strength must be in 0..=1, got {strength}"));
        }
        let n = self.steps() as f64;
        // 0.6f32 is 0.60000002 as a double, which would move int(): take the number the user wrote.
        let strength: f64 = strength.to_string().parse().map_err(|e| format!("strength: {e}"))?;
        let start = (n - (n * strength).min(n)).max(0.0) as usize;
        if start >= self.steps() {
            return Err(format!(
                "strength {strength} leaves none of {} steps; raise strength or steps",
                self.steps()
            ));
        }
        Ok(Self {
            sigmas: self.sigmas[start..].to_vec(),
            timesteps: self.timesteps[start..].to_vec(),
        })
    }

    /// The start of a run from a picture: `sigma * noise + (1 - sigma) * x0`, written to `noise`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn noised(&self, noise: &mut [f32], x0: &[f32]) {
        assert_eq!(noise.len(), x0.len(), "noise and latent differ in length");
        let sigma = self.sigmas[0];
        for (n, x) in noise.iter_mut().zip(x0) {
            *n = sigma * *n + (1.0 - sigma) * x;
        }
    }
}

/// `n` levels from 1 down to `1 / n`, as `torch.linspace(1, 1 / n, n)`: what the Z-Image and FLUX pipelines pass.
pub fn linear_sigmas(n: usize) -> Vec<f32> {
    let (start, end) = (1.0f32, 1.0 / n as f32);
    let step = if n > 1 { (end - start) / (n - 1) as f32 } else { 0.0 };
    // PyTorch counts from both ends, so that the last level is exact.
    (0..n)
        .map(|i| {
            if i < n / 2 {
                start + step * i as f32
            } else {
                end - step * (n - 1 - i) as f32
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_class_lists_the_known() {
        let config = br#"{"_class_name": "HeunScheduler"}"#;
        let error = Scheduler::from_config(config, "s.json")
            .expect_err("no such class")
            .to_string();
        assert_eq!(
            error,
            "s.json: unknown scheduler `HeunScheduler`; known: FlowMatchEulerDiscreteScheduler"
        );
        assert!(Scheduler::from_config(b"{}", "s.json").is_err());
        assert!(Scheduler::from_config(b"[1", "s.json").is_err());
    }

    #[test]
    fn strength_takes_the_tail() {
        let schedule = Schedule {
            sigmas: (0..=10).map(|i| 1.0 - i as f32 / 10.0).collect(),
            timesteps: (0..10).map(|i| 1000.0 - 100.0 * i as f32).collect(),
        };
        let steps = |strength| schedule.from_strength(strength).map(|s| s.steps());
        // diffusers: 10 - int(10 - 10 * strength).
        assert_eq!(
            [1.0, 0.6, 0.55, 0.3, 0.01].map(|s| steps(s).expect("steps")),
            [10, 6, 6, 3, 1]
        );
        assert!(steps(0.0).is_err() && steps(1.1).is_err() && steps(f32::NAN).is_err());
        let tail = schedule.from_strength(0.5).expect("steps");
        let mut noise = [2.0, 0.0];
        tail.noised(&mut noise, &[0.0, 1.0]);
        assert_eq!(noise, [1.0, 0.5]);
    }

    #[test]
    fn linear_sigmas_hit_both_ends() {
        assert_eq!(linear_sigmas(8), [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]);
        assert_eq!(linear_sigmas(1), [1.0]);
    }
}

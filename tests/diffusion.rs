//! Noise and schedulers against what diffusers computes (`goldens/scripts/gen_sched.py`, and the runs of scenes-tiny).

#![expect(clippy::print_stdout, reason = "shown by --nocapture: how near the values are")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;

use fixtures::Fixture;
use rotile::diffusion::scheduler::{Spacing, linear_sigmas};
use rotile::diffusion::{Schedule, Scheduler, noise};
use std::fs;
use support::relative_rms;

fn values(file: &Fixture, name: &str) -> Vec<f32> {
    file.tensor(name).data
}

fn ulps(a: f32, b: f32) -> u32 {
    let ordered = |v: f32| {
        let bits = v.to_bits() as i32;
        if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
    };
    ordered(a).abs_diff(ordered(b))
}

fn schedule(name: &str, sigmas: Option<&[f32]>, mu: Option<f64>) -> Schedule {
    let path = fixtures::path(&format!("schedulers/{name}.scheduler_config.json"));
    // The scheduler writes these files without the class name that `save_pretrained` adds.
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(path).expect("config")).expect("JSON");
    config["_class_name"] = "FlowMatchEulerDiscreteScheduler".into();
    let scheduler = Scheduler::from_config(config.to_string().as_bytes(), name).expect("a known scheduler");
    let spacing = Spacing {
        steps: 8,
        sigmas,
        mu,
        ..Spacing::default()
    };
    scheduler.schedule(&spacing).expect("a schedule")
}

#[test]
fn flow_euler_matches_diffusers() {
    let linear = linear_sigmas(8);
    for (name, sigmas, mu) in [
        ("flow_euler_shift3", Some(&linear[..]), None),
        ("flow_euler_shift5_default", None, None),
        ("flow_euler_dynamic_flux", Some(&linear[..]), Some(0.9)),
        ("flow_euler_shift_terminal", Some(&linear[..]), Some(0.7)),
    ] {
        let file = Fixture::open(&format!("schedulers/{name}.safetensors"));
        let schedule = schedule(name, sigmas, mu);
        let mut worst = relative_rms(&schedule.sigmas, &values(&file, "sigmas"));
        worst = worst.max(relative_rms(&schedule.timesteps, &values(&file, "timesteps")));
        let mut running = values(&file, "sample.0");
        for i in 0..8 {
            let output = values(&file, &format!("model_output.{i}"));
            let wanted = values(&file, &format!("sample.{}", i + 1));
            let mut sample = values(&file, &format!("sample.{i}"));
            schedule.step(i, &mut sample, &output);
            schedule.step(i, &mut running, &output);
            worst = worst
                .max(relative_rms(&sample, &wanted))
                .max(relative_rms(&running, &wanted));
        }
        println!("{name}: relative RMS {worst:.1e}");
        assert!(worst <= 1e-6, "{name}: {worst}");
    }
}

#[test]
fn runs_of_scenes_tiny() {
    let config = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;
    let scheduler = Scheduler::from_config(config.as_bytes(), "config").expect("a known scheduler");
    for (run, seed, steps) in [("a", 0, 20), ("b", 3, 8), ("c", 5, 8)] {
        let file = Fixture::open(&format!("scenes-tiny/run_{run}.safetensors"));
        let spacing = Spacing {
            steps,
            sigmas: Some(&linear_sigmas(steps)),
            ..Spacing::default()
        };
        let schedule = scheduler.schedule(&spacing).expect("a schedule");
        let sigmas = relative_rms(&schedule.sigmas, &values(&file, "sigmas"));
        let timesteps = relative_rms(&schedule.timesteps, &values(&file, "timesteps"));
        assert!(sigmas <= 1e-6 && timesteps <= 1e-6, "{run}: {sigmas} {timesteps}");

        let (found, wanted) = (noise::torch_cpu(seed, 16 * 16 * 16), values(&file, "latents_init"));
        let rms = relative_rms(&found, &wanted);
        let pairs = || found.iter().zip(&wanted);
        let largest = pairs().map(|(f, w)| (f - w).abs()).fold(0.0, f32::max);
        let most = pairs().map(|(f, w)| ulps(*f, *w)).max().expect("values");
        let equal = pairs().filter(|(f, w)| f == w).count();
        println!(
            "run_{run}: sigmas {sigmas:.1e}, noise {rms:.1e}, largest {largest:.1e}, {most} ulp, {equal} of 4096 equal"
        );
        // Cancellation near the zeros of sine and cosine makes ulps large where the difference stays small.
        assert!(rms <= 1e-7 && largest <= 1e-6, "{run}: {rms} {largest}");
    }
}

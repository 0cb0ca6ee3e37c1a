//! Where one graph of an autoencoder runs: on its device, in smaller tiles, on the CPU, or not at all.
//!
//! [`decide`] is a pure function of numbers, so that a table tests it. The rules are those of the CPU fallback of a
//! stable-diffusion.cpp fork (qvac-ext, pull request 35) with tiles before the CPU, and a typed error in place of a try that must fail.

use crate::gpu::Caps;
use crate::plan::Plan;

/// Bytes that a graph needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Its buffers, weights aside.
    pub required: u64,
    /// Weights that are not on the device yet.
    pub pending: u64,
    /// The largest single buffer of all.
    pub largest: u64,
}

/// Part of the free memory that may be filled, in whole units of 10^-12: products are exact integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u64);

/// What a device can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of the largest buffer; `u64::MAX` without a limit.
    pub max_buffer: u64,
    /// Bytes that are free, where that is known.
    pub free: Option<u64>,
    /// How much of `free` may be filled.
    pub ratio: Ratio,
    /// Bytes that may be taken whatever is free, as the user says.
    pub cap: Option<u64>,
}

/// What surrounds the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Whether graphs may move to the CPU at all.
    pub enabled: bool,
    /// Whether the device is the CPU already.
    pub on_cpu: bool,
    /// Whether the CPU can have the weights.
    pub cpu_available: bool,
    /// Whether the graph goes on from what a run before it has left on the device. That cannot move.
    pub stateful: bool,
    /// Whether the caller can cut the work into smaller pieces.
    pub can_cut: bool,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Run it on its device.
    Run,
    /// Cut it into smaller pieces and ask again.
    Cut,
    /// Run it on the CPU.
    Cpu,
    /// Refuse it, before anything is allocated.
    Refuse,
}

/// Why. The first that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The fallback is off.
    Disabled,
    /// The device is the CPU.
    AlreadyCpu,
    /// The CPU cannot have the weights.
    CpuUnavailable,
    /// It fits.
    WithinCapacity,
    /// It does not fit, and has state on the device.
    Stateful,
    /// It does not fit.
    ExceedsCapacity,
}

impl Need {
    /// What a plan needs on a GPU, with `pending` bytes of weights to come.
    pub fn of(plan: &Plan, pending: u64, caps: &Caps) -> Self {
        let inputs = plan.inputs.iter().map(|input| input.ty.byte_len() as u64);
        let parts = plan.weights.iter().flat_map(|weight| caps.parts(&weight.ty));
        let buffers = plan.buffers.iter().copied().chain(inputs);
        let largest = buffers.chain(parts.map(|part| part.ty.byte_len() as u64)).max();
        Self {
            required: plan.gpu_bytes().session(),
            pending,
            largest: largest.unwrap_or(0),
        }
    }

    /// All of it.
    pub fn total(self) -> u64 {
        self.required.saturating_add(self.pending)
    }
}

impl Ratio {
    const ONE: u64 = 1_000_000_000_000;

    /// What is left for others by default: a tenth.
    pub const DEFAULT: Self = Self(Self::ONE / 10 * 9);

    /// A number above 0, at most 1.
    pub fn new(ratio: f64) -> Option<Self> {
        let units = (ratio * Self::ONE as f64).round();
        (ratio > 0.0 && ratio <= 1.0).then_some(Self(units as u64))
    }

    /// So much of `bytes`, rounded down.
    pub fn of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.0) / u128::from(Self::ONE)) as u64
    }

    /// As a number.
    pub fn get(self) -> f64 {
        self.0 as f64 / Self::ONE as f64
    }
}

impl Capacity {
    /// That of a GPU with `caps`, of which `free` bytes are free where that is known, and of which the user gives `cap` at most. Without
    /// `ratio` it is [`Ratio::DEFAULT`] of what is free. A `ratio` that is given is one of the largest buffer where nobody tells what is
    /// free: so that it always means something.
    pub fn of(caps: &Caps, free: Option<u64>, ratio: Option<Ratio>, cap: Option<u64>) -> Self {
        let max_buffer = caps.max_tensor();
        Self {
            max_buffer,
            free: free.or(ratio.map(|_| max_buffer)),
            ratio: ratio.unwrap_or(Ratio::DEFAULT),
            cap,
        }
    }

    /// Bytes that may be taken; `u64::MAX` where nothing is known.
    pub fn budget(&self) -> u64 {
        let free = self.free.map_or(u64::MAX, |free| self.ratio.of(free));
        free.min(self.cap.unwrap_or(u64::MAX))
    }

    /// Whether there is room. What fills it to the last byte fits.
    pub fn fits(&self, need: Need) -> bool {
        need.largest <= self.max_buffer && need.total() <= self.budget()
    }
}

/// What is to be done with a graph, and why: what fits runs; else it is cut while that is possible; else it goes to the CPU; else it is
/// refused.
pub fn decide(need: Need, capacity: Capacity, setting: Setting) -> (Verdict, Reason) {
    let fits = capacity.fits(need);
    let reason = match setting {
        Setting { enabled: false, .. } => Reason::Disabled,
        Setting { on_cpu: true, .. } => Reason::AlreadyCpu,
        Setting {
            cpu_available: false, ..
        } => Reason::CpuUnavailable,
        _ if fits => Reason::WithinCapacity,
        Setting { stateful: true, .. } => Reason::Stateful,
        _ => Reason::ExceedsCapacity,
    };
    let verdict = match (fits, setting, reason) {
        (true, ..) => Verdict::Run,
        (_, Setting { stateful: true, .. }, _) => Verdict::Refuse,
        (_, Setting { can_cut: true, .. }, _) => Verdict::Cut,
        (.., Reason::ExceedsCapacity) => Verdict::Cpu,
        _ => Verdict::Refuse,
    };
    (verdict, reason)
}

#[cfg(test)]
mod tests {
    use super::Reason::{AlreadyCpu, CpuUnavailable, Disabled, ExceedsCapacity, Stateful, WithinCapacity};
    use super::Verdict::{Cpu, Cut, Refuse, Run};
    use super::*;

    const GIB: u64 = 1 << 30;

    const DEFAULT: Setting = Setting {
        enabled: true,
        on_cpu: false,
        cpu_available: true,
        stateful: false,
        can_cut: false,
    };

    /// One buffer for all that is computed and one for each weight, as in the system that the rules are from.
    fn need(required: u64, pending: u64) -> Need {
        Need {
            required,
            pending,
            largest: required.max(pending),
        }
    }

    fn capacity(max_buffer: u64, free: Option<u64>, ratio: f64) -> Capacity {
        Capacity {
            max_buffer,
            free,
            ratio: Ratio::new(ratio).expect("a ratio"),
            cap: None,
        }
    }

    /// A decision is always the same.
    fn settled(need: Need, capacity: Capacity, setting: Setting) -> (Verdict, Reason) {
        let first = decide(need, capacity, setting);
        for _ in 0..100 {
            assert_eq!(decide(need, capacity, setting), first);
        }
        first
    }

    #[test]
    fn the_table_of_capacities() {
        const MAX: u64 = u64::MAX;
        let table = [
            // An autoencoder's graph that a driver of 4 GiB buffers cannot hold, and one that it can, to the byte.
            (need(8_700_000_000, 0), capacity(4 * GIB, None, 0.9), Cpu),
            (need(14_176_870_408, 0), capacity(4 * GIB, Some(100 * GIB), 0.9), Cpu),
            (need(4 * GIB, 0), capacity(4 * GIB, None, 0.9), Run),
            (need(4 * GIB + 1, 0), capacity(4 * GIB, None, 0.9), Cpu),
            (need(0, 4 * GIB), capacity(4 * GIB, None, 0.9), Run),
            (need(0, 4 * GIB + 1), capacity(4 * GIB, None, 0.9), Cpu),
            // Free memory: equality fits, and what is pending counts.
            (need(8 * GIB, 0), capacity(MAX, Some(10 * GIB), 0.8), Run),
            (need(8 * GIB + 1, 0), capacity(MAX, Some(10 * GIB), 0.8), Cpu),
            (need(7 * GIB, GIB), capacity(MAX, Some(10 * GIB), 0.8), Run),
            (need(7 * GIB, GIB + 1), capacity(MAX, Some(10 * GIB), 0.8), Cpu),
            (need(10 * GIB, 0), capacity(MAX, Some(10 * GIB), 1.0), Run),
            (need(1, 0), capacity(MAX, Some(0), 1.0), Cpu),
            (need(0, 0), capacity(0, Some(0), 1.0), Run),
            // Unknown: only the largest buffer counts. No limit at all takes anything.
            (need(MAX, 0), capacity(MAX, None, 0.9), Run),
            (need(MAX, MAX), capacity(MAX, None, 0.9), Run),
            // Sums that leave the integers are too much, not little.
            (need(MAX, MAX), capacity(MAX, Some(MAX), 0.9), Cpu),
            (need(MAX, 1), capacity(MAX, Some(GIB), 1.0), Cpu),
            (need(MAX - 1, 1), capacity(MAX, Some(MAX), 1.0), Run),
        ];
        for (need, capacity, wanted) in table {
            let reason = if wanted == Run { WithinCapacity } else { ExceedsCapacity };
            assert_eq!(
                settled(need, capacity, DEFAULT),
                (wanted, reason),
                "{need:?} {capacity:?}"
            );
        }
    }

    #[test]
    fn the_table_of_settings() {
        let off = Setting {
            enabled: false,
            ..DEFAULT
        };
        let cpu = Setting {
            on_cpu: true,
            ..DEFAULT
        };
        let alone = Setting {
            cpu_available: false,
            ..DEFAULT
        };
        let stateful = Setting {
            stateful: true,
            ..DEFAULT
        };
        let all = Setting {
            enabled: false,
            on_cpu: true,
            cpu_available: false,
            stateful: true,
            can_cut: false,
        };
        let cut = |setting| Setting {
            can_cut: true,
            ..setting
        };
        // What fits runs in any case; then what does not, in one piece and in several.
        let table = [
            (DEFAULT, WithinCapacity, ExceedsCapacity, Cpu, Cut),
            (off, Disabled, Disabled, Refuse, Cut),
            (cpu, AlreadyCpu, AlreadyCpu, Refuse, Cut),
            (alone, CpuUnavailable, CpuUnavailable, Refuse, Cut),
            (stateful, WithinCapacity, Stateful, Refuse, Refuse),
            // The first reason that holds is given.
            (all, Disabled, Disabled, Refuse, Refuse),
            (Setting { enabled: true, ..all }, AlreadyCpu, AlreadyCpu, Refuse, Refuse),
            (Setting { on_cpu: true, ..off }, Disabled, Disabled, Refuse, Cut),
        ];
        let small = capacity(GIB, Some(GIB), 0.5);
        for (setting, fits, exceeds, whole, pieces) in table {
            let [little, much] = [need(GIB / 2, 0), need(GIB / 2, 1)];
            assert_eq!(settled(little, small, setting), (Run, fits), "{setting:?}");
            assert_eq!(settled(little, small, cut(setting)), (Run, fits), "{setting:?}");
            assert_eq!(settled(much, small, setting), (whole, exceeds), "{setting:?}");
            assert_eq!(settled(much, small, cut(setting)), (pieces, exceeds), "{setting:?}");
        }
    }

    #[test]
    fn a_cap_counts_beside_what_is_free() {
        let capped = |cap| Capacity {
            cap: Some(cap),
            ..capacity(GIB, Some(GIB), 0.5)
        };
        assert_eq!(capped(u64::MAX).budget(), GIB / 2);
        assert_eq!(capped(100).budget(), 100);
        assert_eq!(decide(need(60, 40), capped(100), DEFAULT).0, Run);
        assert_eq!(decide(need(60, 41), capped(100), DEFAULT).0, Cpu);
    }

    #[test]
    fn ratios_are_exact_on_large_memories() {
        for gib in [1, 8, 24, 80, 4096] {
            let free = gib * GIB;
            for tenth in 1..=10u64 {
                let found = Ratio::new(tenth as f64 / 10.0).expect("a ratio").of(free);
                let wanted = (u128::from(free) * u128::from(tenth) / 10) as u64;
                assert_eq!(found, wanted, "{gib} GiB, {tenth}/10");
            }
            let third = Ratio::new(1.0 / 3.0).expect("a ratio").of(free);
            assert!(third.abs_diff(free / 3) <= 64, "{third}");
            // What a narrower type said, 50 bytes of 8 GiB off, is within what is allowed.
            let narrow = Ratio::new(f64::from(0.8f32)).expect("a ratio").of(GIB);
            assert!(narrow.abs_diff(GIB / 10 * 8) <= 64, "{narrow}");
        }
        assert_eq!(Ratio::new(1.0).expect("a ratio").of(u64::MAX), u64::MAX);
        for bad in [0.0, -0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Ratio::new(bad), None, "{bad}");
        }
        assert_eq!(Ratio::DEFAULT.get(), 0.9);
    }

    #[test]
    fn what_a_gpu_can_hold() {
        let caps = Caps::baseline();
        let plain = Capacity::of(&caps, None, None, None);
        assert_eq!((plain.max_buffer, plain.budget()), (128 << 20, u64::MAX));
        // The smaller of buffer and binding.
        let buffer = Caps {
            max_binding: GIB,
            ..caps.clone()
        };
        assert_eq!(Capacity::of(&buffer, None, None, None).max_buffer, 256 << 20);
        let ratio = Ratio::new(0.5);
        assert_eq!(Capacity::of(&caps, None, ratio, None).budget(), 64 << 20);
        assert_eq!(Capacity::of(&caps, Some(1000), ratio, None).budget(), 500);
        assert_eq!(Capacity::of(&caps, Some(1000), None, None).budget(), 900);
        assert_eq!(Capacity::of(&caps, Some(1000), None, Some(10)).budget(), 10);
    }
}

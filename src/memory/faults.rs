//! Faults on demand, for tests of what follows them: an allocation that fails, work that the driver refuses, a device that is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Faults of a device, all of them off at first. Clones of a device share them.
#[derive(Debug)]
pub struct Faults {
    allocations: Trap,
    runs: Trap,
    losses: Trap,
    refuse_above: AtomicU64,
}

/// Counts, and springs when its number comes up.
#[derive(Debug, Default)]
struct Trap {
    seen: AtomicU64,
    /// 0 never comes up.
    at: AtomicU64,
    /// Whether all after it fail too.
    stays: AtomicBool,
}

/// What becomes of work that is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitted {
    /// It runs.
    Runs,
    /// The driver has no memory for it.
    Refused,
    /// The device is lost.
    Lost,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            allocations: Trap::default(),
            runs: Trap::default(),
            losses: Trap::default(),
            refuse_above: AtomicU64::new(u64::MAX),
        }
    }
}

impl Trap {
    fn set(&self, k: u64, stays: bool) {
        self.stays.store(stays, Ordering::Relaxed);
        self.at
            .store(self.seen.load(Ordering::Relaxed) + k.max(1), Ordering::Relaxed);
    }

    fn clear(&self) {
        self.at.store(0, Ordering::Relaxed);
    }

    fn springs(&self) -> bool {
        let now = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        let at = self.at.load(Ordering::Relaxed);
        at != 0 && (now == at || now > at && self.stays.load(Ordering::Relaxed))
    }
}

impl Faults {
    /// Allocations so far: on a GPU, buffers of sessions; on the CPU, vectors of sessions.
    pub fn allocations(&self) -> u64 {
        self.allocations.seen.load(Ordering::Relaxed)
    }

    /// Submissions to a GPU so far.
    pub fn submissions(&self) -> u64 {
        self.runs.seen.load(Ordering::Relaxed)
    }

    /// The `k`-th allocation from now on fails, from 1, and no other.
    pub fn fail_at(&self, k: u64) {
        self.allocations.set(k, false);
    }

    /// The `k`-th allocation from now on fails, from 1, and so do all that follow.
    pub fn fail_from(&self, k: u64) {
        self.allocations.set(k, true);
    }

    /// The driver has no memory for the `k`-th submission from now on, from 1.
    pub fn fail_run_at(&self, k: u64) {
        self.runs.set(k, false);
    }

    /// The GPU is lost at the `k`-th submission from now on, from 1. It stays so.
    pub fn lose_at(&self, k: u64) {
        self.losses.set(k, false);
    }

    /// Sessions of more than so many bytes, weights aside, are refused.
    pub fn refuse_above(&self, bytes: u64) {
        self.refuse_above.store(bytes, Ordering::Relaxed);
    }

    /// Turns all of them off.
    pub fn clear(&self) {
        self.allocations.clear();
        self.runs.clear();
        self.losses.clear();
        self.refuse_above(u64::MAX);
    }

    /// Counts an allocation; whether it fails.
    pub(crate) fn allocation(&self) -> bool {
        self.allocations.springs()
    }

    /// Counts a submission.
    pub(crate) fn submission(&self) -> Submitted {
        match (self.losses.springs(), self.runs.springs()) {
            (true, _) => Submitted::Lost,
            (false, true) => Submitted::Refused,
            (false, false) => Submitted::Runs,
        }
    }

    /// Whether a session of so many bytes is refused.
    pub(crate) fn refuses(&self, bytes: u64) -> bool {
        bytes > self.refuse_above.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sprung(faults: &Faults) -> Vec<usize> {
        (1..=6).filter(|_| faults.allocation()).collect()
    }

    #[test]
    fn numbers_are_counted_from_now_on() {
        let faults = Faults::default();
        assert!(sprung(&faults).is_empty());
        faults.fail_at(2);
        assert_eq!(sprung(&faults), [2]);
        faults.fail_from(5);
        assert_eq!(sprung(&faults), [5, 6]);
        assert_eq!(sprung(&faults).len(), 6);
        faults.clear();
        assert!(sprung(&faults).is_empty());
        assert_eq!(faults.allocations(), 30);
    }

    #[test]
    fn a_loss_outweighs_a_refusal() {
        let faults = Faults::default();
        faults.fail_run_at(1);
        faults.lose_at(2);
        let all = [(); 3].map(|()| faults.submission());
        assert_eq!(all, [Submitted::Refused, Submitted::Lost, Submitted::Runs]);
        faults.refuse_above(10);
        assert!(faults.refuses(11) && !faults.refuses(10));
    }
}

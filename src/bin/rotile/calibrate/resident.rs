//! Memory of this process that no file backs, as the system counts it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Between two readings: short beside the work of an operator.
const PAUSE: Duration = Duration::from_micros(200);

/// A thread that keeps the most that [`anonymous`] has said.
pub(crate) struct Sampler {
    shared: Arc<(AtomicBool, AtomicU64)>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// None where the system does not tell.
    pub(crate) fn start() -> Option<Self> {
        anonymous()?;
        let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            while !own.0.load(Ordering::Relaxed) {
                if let Some(bytes) = anonymous() {
                    own.1.fetch_max(bytes, Ordering::Relaxed);
                }
                std::thread::sleep(PAUSE);
            }
        });
        Some(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The most since the start.
    pub(crate) fn finish(self) -> u64 {
        let last = anonymous().unwrap_or(0);
        self.shared.1.load(Ordering::Relaxed).max(last)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.shared.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

/// Resident bytes that belong to no file: what allocations have really touched.
#[cfg(target_os = "linux")]
pub(crate) fn anonymous() -> Option<u64> {
    // `RssAnon` of `status`, which the kernel rounds less than `statm` on machines of many cores.
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Resident bytes that belong to no file: only Linux tells.
#[cfg(not(target_os = "linux"))]
pub(crate) fn anonymous() -> Option<u64> {
    None
}

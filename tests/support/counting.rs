//! An allocator that counts the bytes it has given out: what the CPU side of an engine holds.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering};

/// Smaller blocks are book-keeping: names and maps.
const SMALLEST: usize = 1024;

/// Bytes of larger blocks that threads keep for themselves, queues and scratch memory: a worker has them once it has had work. Whoever loses
/// a KiB a run has lost more after a hundred.
pub(crate) const THREADS: i64 = 64 << 10;

#[global_allocator]
static COUNTING: Counting = Counting;

static BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

static PEAK: AtomicI64 = AtomicI64::new(0);

/// The most bytes since the last call, and a new start from those that are held now.
pub(crate) fn take_peak() -> i64 {
    PEAK.swap(bytes(), Ordering::SeqCst)
}

/// Bytes in blocks of a KiB or more.
pub(crate) fn bytes() -> i64 {
    BYTES.load(Ordering::SeqCst)
}

fn count(layout: Layout, sign: i64) {
    if layout.size() >= SMALLEST {
        let size = sign * layout.size() as i64;
        let now = BYTES.fetch_add(size, Ordering::SeqCst) + size;
        PEAK.fetch_max(now, Ordering::SeqCst);
    }
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its nature; this one hands everything to the system's"
)]
// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout, 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(layout, -1);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

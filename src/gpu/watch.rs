//! High-water marks of the device's allocator.

use super::{Gpu, lock};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Most bytes that were in use at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Handed out to buffers, staging memory included.
    pub allocated: u64,
    /// Taken from the driver in blocks, for buffers and for those that may follow.
    pub reserved: u64,
}

/// Keeps the high-water marks of a device from its making on, as long as it lives. Without one, nothing is counted.
#[derive(Debug)]
pub struct Watch {
    marks: Arc<Marks>,
    watches: Arc<Watches>,
}

/// Marks of one watch; `None` where the backend tells nothing.
type Marks = Mutex<Option<Peak>>;

/// The watches of a device.
#[derive(Debug, Default)]
pub(super) struct Watches {
    // Read where nothing watches, so that it costs a load there.
    count: AtomicUsize,
    marks: Mutex<Vec<Weak<Marks>>>,
}

impl Gpu {
    /// Starts to keep high-water marks. What is allocated already counts.
    pub fn watch(&self) -> Watch {
        let marks = Arc::new(Mutex::new(None));
        let watch = Watch {
            marks: marks.clone(),
            watches: self.watches.clone(),
        };
        lock(&self.watches.marks).push(Arc::downgrade(&marks));
        self.watches.count.fetch_add(1, Ordering::Relaxed);
        self.sample();
        watch
    }

    /// Raises the marks of those who watch to what is allocated now: to be called after whatever allocates.
    pub(super) fn sample(&self) {
        if self.watches.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Some(report) = self.device.generate_allocator_report() else {
            return;
        };
        for marks in lock(&self.watches.marks).iter().filter_map(Weak::upgrade) {
            let mut marks = lock(&marks);
            let peak = marks.get_or_insert_default();
            peak.allocated = peak.allocated.max(report.total_allocated_bytes);
            peak.reserved = peak.reserved.max(report.total_reserved_bytes);
        }
    }
}

impl Watch {
    /// The marks so far; `None` on backends that do not tell, such as Metal and the web.
    pub fn peak(&self) -> Option<Peak> {
        *lock(&self.marks)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watches.count.fetch_sub(1, Ordering::Relaxed);
        let own = Arc::as_ptr(&self.marks);
        lock(&self.watches.marks).retain(|marks| marks.as_ptr() != own);
    }
}

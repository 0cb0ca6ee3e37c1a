//! Which weight is where, and who holds it.
//!
//! A weight is known by its source, so that all names of the same bytes have one storage. It has at most one copy on the host and one
//! on the device. [`Residency::lock`] brings what is missing and gives a [`Guard`]; as long as one lives, the weight stays. A holder
//! may [cast](Guard::cast) it, which changes its real bytes but not those that accounts count; the last unlock puts it back, wherever
//! it sits. What cannot be put back is dropped and comes from its source the next time.
//!
//! Sessions are holders that neither cast nor move: what a [`Session`](crate::backend::Session) has bound are the copies that it found.
//!
//! Every change is made of two steps: all new copies are brought, then the book is changed. A failure changes nothing.

mod entry;
mod guard;
mod weight;

pub use guard::{Guard, Unrestored};
pub use weight::{Home, Resident, Storage, Store, WeightRef};

use crate::error::{ResidencyError, Result};
use entry::{Book, Bringer, Entry};
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weight::Tally;

/// The weights of a host and its device. Clones are the same.
#[derive(Clone, Default)]
pub struct Residency {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    keeps: bool,
    book: Mutex<Book>,
    tally: Arc<Tally>,
}

impl Residency {
    /// One that drops a copy with its last lock.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that keeps unlocked copies until they are evicted or released.
    pub fn keeping() -> Self {
        Self {
            shared: Arc::new(Shared {
                keeps: true,
                ..Shared::default()
            }),
        }
    }

    /// Whether unlocked copies are kept.
    pub fn keeps(&self) -> bool {
        self.shared.keeps
    }

    /// Brings the weights that are missing at `home`, and holds all of them there. `store` is that home's.
    ///
    /// # Errors
    /// If one cannot be brought: then everything is as it was.
    pub fn lock(&self, weights: &[WeightRef], home: Home, store: &Arc<dyn Store>) -> Result<Guard> {
        let mut book = self.book();
        self.bring(&mut book, weights, home, store)?;
        let hold = |weight| {
            let id = book.enter(weight);
            book.get_mut(id).at_mut(home).holders += 1;
            id
        };
        let ids = weights.iter().map(hold).collect();
        Ok(Guard::new(self.clone(), home, store.clone(), ids))
    }

    /// Moves weights to a home, or brings them there from their source. First it finds out whether all of them can be moved, then it
    /// brings the new copies, and only then the old ones go. Until they are locked they stay where they are, even where unlocked
    /// copies are not kept.
    ///
    /// # Errors
    /// If one is held by a lock at either home, has no source that can be read, or cannot be brought, or there is no room for all:
    /// then everything is as it was.
    pub fn reassign(&self, weights: &[WeightRef], to: Home, store: &Arc<dyn Store>) -> Result<()> {
        let mut book = self.book();
        for weight in weights {
            if let Some(entry) = book.find(weight).filter(|entry| entry.is_held()) {
                return Err(entry.error_held());
            }
            weight.checkpoint().readable(weight.name())?;
        }
        let missing = missing(&book, weights, to);
        let wanted = missing
            .iter()
            .fold(0, |sum: u64, w| sum.saturating_add(store.bytes(w.ty())));
        if let Some(free) = store.free().filter(|free| wanted > *free) {
            let home = to.to_string();
            return Err(ResidencyError::NoRoom { home, wanted, free }.into());
        }
        self.bring(&mut book, weights, to, store)?;
        for weight in weights {
            let id = book.enter(weight);
            book.drop_copy(id, to.other());
        }
        Ok(())
    }

    /// Drops copies at a home that nobody holds, the smallest first, until `wanted` bytes are free. `free` is asked again before each.
    /// Bytes that were dropped, as accounts count them.
    pub fn evict(&self, home: Home, wanted: u64, mut free: impl FnMut() -> u64) -> u64 {
        let mut book = self.book();
        let counted = |entry: &Entry| entry.at(home).copy.as_ref().map_or(0, |copy| copy.counted);
        let idle = book.entries().filter(|(_, entry)| entry.can_drop(home));
        let mut idle: Vec<_> = idle.map(|(id, entry)| (counted(entry), id)).collect();
        idle.sort_unstable();
        let mut dropped = 0;
        for (bytes, id) in idle {
            if free() >= wanted {
                break;
            }
            book.drop_copy(id, home);
            dropped += bytes;
        }
        dropped
    }

    /// Drops every copy that nobody holds.
    pub fn release(&self) {
        for home in Home::ALL {
            self.evict(home, u64::MAX, || 0);
        }
    }

    /// Bytes of the copies at a home, in the types that were loaded.
    pub fn bytes(&self, home: Home) -> u64 {
        let book = self.book();
        let copies = book.entries().filter_map(|(_, entry)| entry.at(home).copy.as_ref());
        copies.map(|copy| copy.counted).sum()
    }

    /// Bytes that copies really take at a home: more or less than [`Residency::bytes`] where a holder has cast one, and more where
    /// someone still has a copy that has been replaced.
    pub fn real_bytes(&self, home: Home) -> u64 {
        self.shared.tally.bytes(home)
    }

    /// The copy of a weight at a home, if there is one.
    pub fn resident(&self, weight: &WeightRef, home: Home) -> Option<Arc<Resident>> {
        let book = self.book();
        Some(book.find(weight)?.at(home).copy.as_ref()?.resident.clone())
    }

    /// How often a weight is locked at a home.
    pub fn holders(&self, weight: &WeightRef, home: Home) -> usize {
        self.book().find(weight).map_or(0, |entry| entry.at(home).holders)
    }

    /// Brings what is missing: all or nothing.
    fn bring(&self, book: &mut Book, weights: &[WeightRef], home: Home, store: &Arc<dyn Store>) -> Result<()> {
        let bringer = Bringer {
            store,
            home,
            tally: &self.shared.tally,
        };
        let wanted = missing(book, weights, home).into_iter().map(|weight| {
            let host = book.find(weight).and_then(Entry::host);
            (weight, weight, weight.ty().dtype, host)
        });
        for (weight, placed) in bringer.bring_all(wanted)? {
            let id = book.enter(weight);
            book.get_mut(id).at_mut(home).copy = Some(placed);
        }
        Ok(())
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> &Arc<Tally> {
        &self.shared.tally
    }
}

impl fmt::Debug for Residency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [host, device] = Home::ALL.map(|home| self.bytes(home));
        write!(f, "Residency({host} bytes on the host, {device} on the device)")
    }
}

/// Those that have no copy at a home, each once.
fn missing<'a>(book: &Book, weights: &'a [WeightRef], home: Home) -> Vec<&'a WeightRef> {
    let mut seen = HashSet::new();
    let absent = |w: &WeightRef| book.find(w).is_none_or(|entry| entry.at(home).copy.is_none());
    let absent = weights.iter().filter(|w| absent(w) && seen.insert(w.key()));
    absent.collect()
}

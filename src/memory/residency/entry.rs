//! The book: one entry for each weight.

use super::weight::{Home, Key, Resident, Store, Tally, WeightRef};
use crate::error::{Error, ResidencyError, Result};
use crate::tensor::DType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A copy, and what its home knows of it.
#[derive(Clone)]
pub(super) struct Placed {
    pub(super) resident: Arc<Resident>,
    /// Bytes in the type that was loaded, whatever it has been cast to.
    pub(super) counted: u64,
    /// Who brought it, and can again.
    pub(super) store: Arc<dyn Store>,
}

#[derive(Default)]
pub(super) struct Slot {
    pub(super) copy: Option<Placed>,
    pub(super) holders: usize,
}

/// A weight: its source, at most one copy at each home, and how many locks hold it there.
pub(super) struct Entry {
    pub(super) weight: WeightRef,
    slots: [Slot; 2],
}

impl Entry {
    pub(super) fn at(&self, home: Home) -> &Slot {
        &self.slots[home as usize]
    }

    pub(super) fn at_mut(&mut self, home: Home) -> &mut Slot {
        &mut self.slots[home as usize]
    }

    pub(super) fn is_held(&self) -> bool {
        self.slots.iter().any(|slot| slot.holders > 0)
    }

    /// Whether the copy at a home can go: nobody holds it there, and it is not the one that a holder elsewhere has to do with.
    pub(super) fn can_drop(&self, home: Home) -> bool {
        let (slot, other) = (self.at(home), self.at(home.other()));
        slot.copy.is_some() && slot.holders == 0 && (other.holders == 0 || other.copy.is_some())
    }

    /// The copy at a home, or where it has been moved to.
    pub(super) fn copy(&self, home: Home) -> Option<&Placed> {
        let there = self.at(home).copy.as_ref();
        there.or(self.at(home.other()).copy.as_ref())
    }

    pub(super) fn is_cast(&self, home: Home) -> bool {
        let copy = self.at(home).copy.as_ref();
        copy.is_some_and(|c| c.resident.dtype() != self.weight.ty().dtype)
    }

    /// The host's copy, unless it has been cast.
    pub(super) fn host(&self) -> Option<&Resident> {
        let copy = self.at(Home::Host).copy.as_ref()?;
        (!self.is_cast(Home::Host)).then_some(&*copy.resident)
    }

    pub(super) fn error_held(&self) -> Error {
        let file = self.weight.checkpoint().name().to_owned();
        let name = self.weight.name().to_owned();
        ResidencyError::Held { file, name }.into()
    }
}

/// Where copies come from and where they go.
pub(super) struct Bringer<'a> {
    pub(super) store: &'a Arc<dyn Store>,
    pub(super) home: Home,
    pub(super) tally: &'a Arc<Tally>,
}

impl Bringer<'_> {
    pub(super) fn bring(&self, weight: &WeightRef, dtype: DType, host: Option<&Resident>) -> Result<Placed> {
        let storage = self.store.bring(weight, dtype, host)?;
        Ok(Placed {
            resident: Resident::new(storage, dtype, self.home, self.tally),
            counted: self.store.bytes(weight.ty()),
            store: self.store.clone(),
        })
    }

    /// Several at once: all of them or none.
    pub(super) fn bring_all<'w, T>(
        &self,
        wanted: impl IntoIterator<Item = (T, &'w WeightRef, DType, Option<&'w Resident>)>,
    ) -> Result<Vec<(T, Placed)>> {
        let mut brought = Vec::new();
        for (id, weight, dtype, host) in wanted {
            brought.push((id, self.bring(weight, dtype, host)?));
        }
        if !brought.is_empty() {
            self.store.finish()?;
        }
        Ok(brought)
    }
}

/// All weights that are somewhere, in the order in which they came.
#[derive(Default)]
pub(super) struct Book {
    ids: HashMap<Key, u64>,
    entries: BTreeMap<u64, Entry>,
    next: u64,
}

impl Book {
    pub(super) fn find(&self, weight: &WeightRef) -> Option<&Entry> {
        self.entries.get(self.ids.get(weight.key())?)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().map(|(id, entry)| (*id, entry))
    }

    pub(super) fn get(&self, id: u64) -> &Entry {
        self.entries.get(&id).expect("an entry stays while it is held")
    }

    pub(super) fn get_mut(&mut self, id: u64) -> &mut Entry {
        self.entries.get_mut(&id).expect("an entry stays while it is held")
    }

    /// The weight's entry, a new one if it has none.
    pub(super) fn enter(&mut self, weight: &WeightRef) -> u64 {
        if let Some(id) = self.ids.get(weight.key()) {
            return *id;
        }
        let id = self.next;
        self.next += 1;
        self.ids.insert(weight.key().clone(), id);
        let entry = Entry {
            weight: weight.clone(),
            slots: Default::default(),
        };
        self.entries.insert(id, entry);
        id
    }

    /// Drops the copy at a home, and the entry with its last copy if nobody holds it.
    pub(super) fn drop_copy(&mut self, id: u64, home: Home) {
        self.get_mut(id).at_mut(home).copy = None;
        self.forget_empty(id);
    }

    pub(super) fn forget_empty(&mut self, id: u64) {
        let entry = self.get(id);
        if !entry.is_held() && Home::ALL.iter().all(|home| entry.at(*home).copy.is_none()) {
            let key = entry.weight.key().clone();
            self.ids.remove(&key);
            self.entries.remove(&id);
        }
    }

    /// Puts the copy at a home back to the type that was loaded. If that fails there is none any more.
    pub(super) fn restore(&mut self, id: u64, home: Home, tally: &Arc<Tally>) -> Result<()> {
        let entry = self.get_mut(id);
        if !entry.is_cast(home) {
            return Ok(());
        }
        // It goes first: then there is room for the other.
        let Some(Placed { store, .. }) = entry.at_mut(home).copy.take() else {
            return Ok(());
        };
        let bringer = Bringer {
            store: &store,
            home,
            tally,
        };
        let wanted = ((), &entry.weight, entry.weight.ty().dtype, entry.host());
        let placed = bringer.bring_all([wanted])?;
        entry.at_mut(home).copy = placed.into_iter().next().map(|(_, placed)| placed);
        Ok(())
    }
}

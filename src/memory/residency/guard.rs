//! Locks: what holders do with the weights that they hold.

use super::Residency;
use super::entry::{Book, Bringer};
use super::weight::{Home, Resident, Store, WeightRef};
use crate::error::{Error, ResidencyError, Result};
use crate::tensor::DType;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// A weight that could not be put back. It has no copy at that home any more; the next lock brings it from its source.
#[derive(Debug)]
pub struct Unrestored {
    /// The weight.
    pub weight: WeightRef,
    /// Where its copy was.
    pub home: Home,
    /// What failed.
    pub error: Error,
}

/// Holds weights at a home until it is dropped. Several may hold the same weight; casts and moves of one are seen by all.
pub struct Guard {
    residency: Residency,
    home: Home,
    store: Arc<dyn Store>,
    // As locked: a weight that is there twice is held twice.
    ids: Vec<u64>,
}

impl Guard {
    pub(super) fn new(residency: Residency, home: Home, store: Arc<dyn Store>, ids: Vec<u64>) -> Self {
        Self {
            residency,
            home,
            store,
            ids,
        }
    }

    /// Number of weights, in the order in which they were locked.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Where it holds them.
    pub fn home(&self) -> Home {
        self.home
    }

    /// The copy of weight `i` here, or at the other home if it has been moved there.
    ///
    /// # Panics
    /// If there is no weight `i`.
    pub fn storage(&self, i: usize) -> Arc<Resident> {
        let book = self.residency.book();
        let copy = book.get(self.ids[i]).copy(self.home);
        copy.expect("what is held has a copy").resident.clone()
    }

    /// The copies of the weights of a plan: `stays` has picked those that were locked, the others have none.
    pub(crate) fn spread(&self, count: usize, stays: impl Fn(usize) -> bool) -> Vec<Option<Arc<Resident>>> {
        let mut held = 0..self.len();
        let copy = |i| stays(i).then(|| held.next().map(|k| self.storage(k))).flatten();
        (0..count).map(copy).collect()
    }

    /// Holds the same weights once more.
    #[must_use]
    pub fn again(&self) -> Self {
        let mut book = self.residency.book();
        for id in &self.ids {
            book.get_mut(*id).at_mut(self.home).holders += 1;
        }
        let (residency, store) = (self.residency.clone(), self.store.clone());
        Self::new(residency, self.home, store, self.ids.clone())
    }

    /// Changes the element type of a weight where it sits, for all its holders and all its names. What accounts count does not
    /// change, and the last unlock puts it back.
    ///
    /// # Errors
    /// If there is no weight `i`, one of the types is no float (packed weights stay as they are), or the new copy cannot be made:
    /// then the old one stays.
    pub fn cast(&self, i: usize, dtype: DType) -> Result<()> {
        let mut book = self.residency.book();
        let id = self.id(i)?;
        let entry = book.get(id);
        let was = entry.weight.ty().dtype;
        if !is_float(was) || !is_float(dtype) {
            return Err(ResidencyError::Cast {
                file: entry.weight.checkpoint().name().to_owned(),
                name: entry.weight.name().to_owned(),
                dtype: was,
                wanted: dtype,
            }
            .into());
        }
        let placed = entry.copy(self.home).expect("what is held has a copy");
        if placed.resident.dtype() == dtype {
            return Ok(());
        }
        let (home, store) = (placed.resident.home(), placed.store.clone());
        let new = self
            .bringer(home, &store)
            .bring_all([(id, &entry.weight, dtype, entry.host())])?;
        put(&mut book, new, home);
        Ok(())
    }

    /// Moves weights to the other home; they stay held. Where there is a copy already, that is the one from now on, whatever this one
    /// had been cast to; else the cast moves with it. `store` is that home's.
    ///
    /// # Errors
    /// If there is no such weight, another lock holds it here too, or it cannot be brought there: then none is moved.
    pub fn offload(&self, indices: &[usize], store: &Arc<dyn Store>) -> Result<()> {
        let mut book = self.residency.book();
        let (here, there) = (self.home, self.home.other());
        let ids = self.ids_of(indices)?;
        for &id in &ids {
            let own = self.ids.iter().filter(|other| **other == id).count();
            if book.get(id).at(here).holders > own {
                return Err(book.get(id).error_held());
            }
        }
        let missing = ids.iter().filter_map(|&id| {
            let entry = book.get(id);
            let copy = entry.at(here).copy.as_ref()?;
            let wanted = (id, &entry.weight, copy.resident.dtype(), entry.host());
            entry.at(there).copy.is_none().then_some(wanted)
        });
        let new = self.bringer(there, store).bring_all(missing)?;
        put(&mut book, new, there);
        for id in ids {
            book.drop_copy(id, here);
        }
        Ok(())
    }

    /// Brings weights that have been moved away back here, in the type that they have there. The copy there goes, unless it is held,
    /// or unlocked copies are kept and it has not been cast.
    ///
    /// # Errors
    /// If there is no such weight, or it cannot be brought here: then none is moved.
    pub fn reload(&self, indices: &[usize]) -> Result<()> {
        let mut book = self.residency.book();
        let (here, there) = (self.home, self.home.other());
        let mut ids = self.ids_of(indices)?;
        ids.retain(|&id| book.get(id).at(here).copy.is_none());
        let missing = ids.iter().filter_map(|&id| {
            let entry = book.get(id);
            let copy = entry.at(there).copy.as_ref()?;
            Some((id, &entry.weight, copy.resident.dtype(), entry.host()))
        });
        let new = self.bringer(here, &self.store).bring_all(missing)?;
        put(&mut book, new, here);
        for id in ids {
            let entry = book.get(id);
            if entry.can_drop(there) && (entry.is_cast(there) || !self.residency.keeps()) {
                book.drop_copy(id, there);
            }
        }
        Ok(())
    }

    /// Lets go. If nobody else holds a weight, it is put back to the type that was loaded, or dropped where unlocked copies are not
    /// kept. Says which could not be put back; dropping the guard does the same but for that.
    pub fn unlock(mut self) -> Vec<Unrestored> {
        self.let_go(self.residency.keeps())
    }

    /// Lets go of weights that have turned out not to be there, as after an allocation that failed later: copies that nobody else
    /// holds are dropped, even where unlocked ones are kept.
    pub fn discard(mut self) {
        self.let_go(false);
    }

    fn let_go(&mut self, keep: bool) -> Vec<Unrestored> {
        let mut lost = Vec::new();
        let mut book = self.residency.book();
        for id in &self.ids {
            book.get_mut(*id).at_mut(self.home).holders -= 1;
        }
        for id in std::mem::take(&mut self.ids).into_iter().collect::<BTreeSet<_>>() {
            for home in Home::ALL {
                let entry = book.get(id);
                if !keep && entry.can_drop(home) {
                    book.get_mut(id).at_mut(home).copy = None;
                } else if !entry.is_held() {
                    let weight = entry.weight.clone();
                    if let Err(error) = book.restore(id, home, self.residency.tally()) {
                        tracing::warn!(weight = weight.name(), %home, %error, "not put back, dropped");
                        lost.push(Unrestored { weight, home, error });
                    }
                }
            }
            book.forget_empty(id);
        }
        lost
    }

    fn bringer<'a>(&'a self, home: Home, store: &'a Arc<dyn Store>) -> Bringer<'a> {
        Bringer {
            store,
            home,
            tally: self.residency.tally(),
        }
    }

    fn id(&self, i: usize) -> Result<u64> {
        let count = self.ids.len();
        let id = self.ids.get(i).copied();
        Ok(id.ok_or(ResidencyError::NoWeight { index: i, count })?)
    }

    fn ids_of(&self, indices: &[usize]) -> Result<BTreeSet<u64>> {
        indices.iter().map(|&i| self.id(i)).collect()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.let_go(self.residency.keeps());
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({} weights on {})", self.ids.len(), self.home)
    }
}

fn put(book: &mut Book, new: Vec<(u64, super::entry::Placed)>, home: Home) {
    for (id, placed) in new {
        book.get_mut(id).at_mut(home).copy = Some(placed);
    }
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

//! What must be where: a plain map, written without a look at the residency.

use crate::fake::{WEIGHTS, size};
use rotile::memory::residency::Home;
use rotile::tensor::DType;
use std::collections::{BTreeMap, BTreeSet};

fn is_float(dtype: DType) -> bool {
    dtype != DType::Q8_0
}

/// What must be where. Weights are those of [`WEIGHTS`] but the last, which is the first.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) keeps: bool,
    /// Type of each copy, and a number that is new whenever it is brought.
    pub(crate) copies: BTreeMap<(usize, Home), (DType, usize)>,
    brought: usize,
    pub(crate) guards: Vec<(Home, Vec<usize>)>,
    pub(crate) broken: BTreeSet<(usize, Home)>,
    pub(crate) unfinished: BTreeSet<Home>,
    pub(crate) free: Option<u64>,
}

impl Model {
    pub(crate) fn new(keeps: bool) -> Self {
        Self {
            keeps,
            ..Self::default()
        }
    }

    fn loaded(weight: usize) -> DType {
        WEIGHTS[weight].1
    }

    pub(crate) fn holders(&self, weight: usize, home: Home) -> usize {
        let of = |(at, held): &(Home, Vec<usize>)| match *at == home {
            true => held.iter().filter(|w| **w == weight).count(),
            false => 0,
        };
        self.guards.iter().map(of).sum()
    }

    fn held(&self, weight: usize) -> bool {
        Home::ALL.iter().any(|home| self.holders(weight, *home) > 0)
    }

    fn has(&self, weight: usize, home: Home) -> bool {
        self.copies.contains_key(&(weight, home))
    }

    fn can_bring(&self, weight: usize, home: Home) -> bool {
        !self.broken.contains(&(weight, home)) && !self.unfinished.contains(&home)
    }

    fn put(&mut self, weight: usize, home: Home, dtype: DType) {
        self.brought += 1;
        self.copies.insert((weight, home), (dtype, self.brought));
    }

    fn idle(&self, weight: usize, home: Home) -> bool {
        let other = home.other();
        self.has(weight, home)
            && self.holders(weight, home) == 0
            && (self.holders(weight, other) == 0 || self.has(weight, other))
    }

    pub(crate) fn real(&self, home: Home) -> u64 {
        let here = self.copies.iter().filter(|((_, at), _)| *at == home);
        here.map(|((weight, _), (dtype, _))| size(*weight, *dtype)).sum()
    }

    pub(crate) fn counted(&self, home: Home) -> u64 {
        let here = self.copies.keys().filter(|(_, at)| *at == home);
        here.map(|(weight, _)| size(*weight, Self::loaded(*weight))).sum()
    }

    /// Brings weights that are missing, all or none.
    pub(crate) fn bring(&mut self, weights: &BTreeSet<usize>, home: Home) -> bool {
        let missing: Vec<_> = weights.iter().filter(|w| !self.has(**w, home)).copied().collect();
        let can = missing.iter().all(|w| self.can_bring(*w, home));
        for weight in missing.into_iter().filter(|_| can) {
            self.put(weight, home, Self::loaded(weight));
        }
        can
    }

    pub(crate) fn cast(&mut self, guard: usize, i: usize, dtype: DType) -> bool {
        let (home, held) = &self.guards[guard];
        let Some(&weight) = held.get(i) else {
            return false;
        };
        if !is_float(Self::loaded(weight)) || !is_float(dtype) {
            return false;
        }
        let seat = if self.has(weight, *home) { *home } else { home.other() };
        let same = self.copies[&(weight, seat)].0 == dtype;
        let can = same || self.can_bring(weight, seat);
        if can && !same {
            self.put(weight, seat, dtype);
        }
        can
    }

    pub(crate) fn offload(&mut self, guard: usize, some: &BTreeSet<usize>) -> bool {
        let (here, held) = self.guards[guard].clone();
        let there = here.other();
        let shared = |w: &usize| self.holders(*w, here) > held.iter().filter(|h| *h == w).count();
        let moving = |w: &&usize| self.has(**w, here) && !self.has(**w, there);
        if some.iter().any(shared) || some.iter().filter(moving).any(|w| !self.can_bring(*w, there)) {
            return false;
        }
        for &weight in some {
            if let Some((dtype, _)) = self.copies.remove(&(weight, here))
                && !self.has(weight, there)
            {
                self.put(weight, there, dtype);
            }
        }
        true
    }

    pub(crate) fn reload(&mut self, guard: usize, some: &BTreeSet<usize>) -> bool {
        let here = self.guards[guard].0;
        let there = here.other();
        let away: Vec<_> = some.iter().filter(|w| !self.has(**w, here)).copied().collect();
        if away.iter().any(|w| !self.can_bring(*w, here)) {
            return false;
        }
        for weight in away {
            let dtype = self.copies[&(weight, there)].0;
            self.put(weight, here, dtype);
            let stays = self.keeps && dtype == Self::loaded(weight);
            if self.holders(weight, there) == 0 && !stays {
                self.copies.remove(&(weight, there));
            }
        }
        true
    }

    /// What could not be put back.
    pub(crate) fn unlock(&mut self, guard: usize, keeps: bool) -> BTreeSet<(usize, Home)> {
        let (_, held) = self.guards.remove(guard);
        let mut lost = BTreeSet::new();
        for weight in BTreeSet::from_iter(held) {
            for home in Home::ALL {
                if !keeps && self.idle(weight, home) {
                    self.copies.remove(&(weight, home));
                }
                let cast = |(dtype, _): &(DType, usize)| *dtype != Self::loaded(weight);
                if !self.held(weight) && self.copies.get(&(weight, home)).is_some_and(cast) {
                    self.copies.remove(&(weight, home));
                    if self.can_bring(weight, home) {
                        self.put(weight, home, Self::loaded(weight));
                    } else {
                        lost.insert((weight, home));
                    }
                }
            }
        }
        lost
    }

    pub(crate) fn reassign(&mut self, some: &BTreeSet<usize>, to: Home) -> bool {
        let missing = some.iter().filter(|w| !self.has(**w, to));
        let wanted: u64 = missing.map(|w| size(*w, Self::loaded(*w))).sum();
        if some.iter().any(|w| self.held(*w)) || self.free.is_some_and(|free| wanted > free) {
            return false;
        }
        let can = self.bring(some, to);
        for weight in some.iter().filter(|_| can) {
            self.copies.remove(&(*weight, to.other()));
        }
        can
    }

    pub(crate) fn evict(&mut self, home: Home, wanted: u64, memory: u64) {
        let mut idle: Vec<_> = (0..4).filter(|w| self.idle(*w, home)).collect();
        idle.sort_by_key(|w| size(*w, Self::loaded(*w)));
        for weight in idle {
            if memory.saturating_sub(self.real(home)) < wanted {
                self.copies.remove(&(weight, home));
            }
        }
    }
}

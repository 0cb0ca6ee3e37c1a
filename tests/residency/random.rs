//! Random sequences against a plain map of what must be where.

use crate::fake::{WEIGHTS, World, check_values, file, owner, weights};
use crate::model::Model;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use rotile::checkpoint::Checkpoint;
use rotile::memory::residency::{Guard, Home, Residency, Store, WeightRef};
use rotile::tensor::DType;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Bytes of each home.
const MEMORY: u64 = 300;

#[derive(Clone, Debug)]
enum Op {
    Lock(Home, Vec<usize>),
    Cast(usize, usize, DType),
    Offload(usize, Vec<usize>),
    Reload(usize, Vec<usize>),
    Again(usize),
    Unlock(usize),
    Discard(usize),
    Reassign(Vec<usize>, Home),
    Evict(Home, u64),
    Release,
    Break(usize, Home),
    Unfinished(Home),
    Mend,
    Free(Option<u64>),
}

fn op() -> impl Strategy<Value = Op> {
    let home = || select(&Home::ALL);
    let some = || subsequence(vec![0, 1, 2, 3, 4], 1..=5);
    let dtype = select(&[DType::F32, DType::F16, DType::BF16, DType::Q8_0]);
    prop_oneof![
        8 => (home(), some()).prop_map(|(home, some)| Op::Lock(home, some)),
        8 => (0..8usize, 0..6usize, dtype).prop_map(|(guard, i, dtype)| Op::Cast(guard, i, dtype)),
        5 => (0..8usize, some()).prop_map(|(guard, some)| Op::Offload(guard, some)),
        5 => (0..8usize, some()).prop_map(|(guard, some)| Op::Reload(guard, some)),
        2 => (0..8usize).prop_map(Op::Again),
        7 => (0..8usize).prop_map(Op::Unlock),
        1 => (0..8usize).prop_map(Op::Discard),
        4 => (some(), home()).prop_map(|(some, home)| Op::Reassign(some, home)),
        2 => (home(), 0..MEMORY).prop_map(|(home, wanted)| Op::Evict(home, wanted)),
        1 => Just(Op::Release),
        3 => (0..4usize, home()).prop_map(|(weight, home)| Op::Break(weight, home)),
        1 => home().prop_map(Op::Unfinished),
        3 => Just(Op::Mend),
        1 => prop::option::of(0..MEMORY).prop_map(Op::Free),
    ]
}

/// The residency beside its model.
struct Pair {
    world: Arc<World>,
    stores: [Arc<dyn Store>; 2],
    weights: Vec<WeightRef>,
    residency: Residency,
    guards: Vec<Guard>,
    model: Model,
    /// Which storage the model's copies turned out to be.
    numbers: HashMap<usize, usize>,
}

impl Pair {
    fn new(keeps: bool) -> Self {
        let checkpoint = Checkpoint::from_bytes("w.gguf", file().into()).expect("a file");
        let world = Arc::new(World::default());
        Self {
            stores: Home::ALL.map(|home| world.store(home)),
            world,
            weights: weights(&Arc::new(checkpoint)),
            residency: if keeps { Residency::keeping() } else { Residency::new() },
            guards: Vec::new(),
            model: Model::new(keeps),
            numbers: HashMap::new(),
        }
    }

    fn pick(&self, some: &[usize]) -> (Vec<WeightRef>, BTreeSet<usize>) {
        let weights = some.iter().map(|&i| self.weights[i].clone()).collect();
        (weights, some.iter().map(|&i| owner(i)).collect())
    }

    /// Indices and weights of those of `some` that a guard holds.
    fn of_guard(&self, guard: usize, some: &[usize]) -> (Vec<usize>, BTreeSet<usize>) {
        let held = &self.model.guards[guard].1;
        let indices: Vec<_> = some.iter().copied().filter(|i| *i < held.len()).collect();
        let weights = indices.iter().map(|&i| held[i]).collect();
        (indices, weights)
    }

    /// Does it to both. What came of it must be the same.
    fn apply(&mut self, op: &Op) {
        let (is, want) = match op {
            Op::Lock(home, some) => {
                let (refs, set) = self.pick(some);
                let locked = self.residency.lock(&refs, *home, &self.stores[*home as usize]);
                let want = self.model.bring(&set, *home);
                if want {
                    let held = some.iter().map(|&i| owner(i)).collect();
                    self.model.guards.push((*home, held));
                }
                (locked.map(|guard| self.guards.push(guard)).is_ok(), want)
            }
            Op::Reassign(some, to) => {
                let (refs, set) = self.pick(some);
                let is = self.residency.reassign(&refs, *to, &self.stores[*to as usize]);
                (is.is_ok(), self.model.reassign(&set, *to))
            }
            Op::Evict(home, wanted) => {
                let free = || MEMORY.saturating_sub(self.world.live(*home));
                self.residency.evict(*home, *wanted, free);
                self.model.evict(*home, *wanted, MEMORY);
                (true, true)
            }
            Op::Release => {
                self.residency.release();
                for home in Home::ALL {
                    self.model.evict(home, u64::MAX, 0);
                }
                (true, true)
            }
            Op::Cast(guard, ..)
            | Op::Offload(guard, _)
            | Op::Reload(guard, _)
            | Op::Again(guard)
            | Op::Unlock(guard)
            | Op::Discard(guard) => match guard.checked_rem(self.guards.len()) {
                Some(guard) => self.apply_held(guard, op),
                None => (true, true),
            },
            world => {
                self.disturb(world);
                (true, true)
            }
        };
        assert_eq!(is, want, "whether {op:?} succeeds");
    }

    fn apply_held(&mut self, guard: usize, op: &Op) -> (bool, bool) {
        match op {
            Op::Cast(_, i, dtype) => {
                let is = self.guards[guard].cast(*i, *dtype).is_ok();
                (is, self.model.cast(guard, *i, *dtype))
            }
            Op::Offload(_, some) => {
                let (indices, set) = self.of_guard(guard, some);
                let store = &self.stores[self.guards[guard].home().other() as usize];
                let is = self.guards[guard].offload(&indices, store).is_ok();
                (is, self.model.offload(guard, &set))
            }
            Op::Reload(_, some) => {
                let (indices, set) = self.of_guard(guard, some);
                (
                    self.guards[guard].reload(&indices).is_ok(),
                    self.model.reload(guard, &set),
                )
            }
            Op::Again(_) => {
                self.guards.push(self.guards[guard].again());
                self.model.guards.push(self.model.guards[guard].clone());
                (true, true)
            }
            Op::Discard(_) => {
                self.guards.remove(guard).discard();
                self.model.unlock(guard, false);
                (true, true)
            }
            _ => {
                let index = |w: &WeightRef| WEIGHTS.iter().position(|(name, ..)| *name == w.name());
                let lost = self.guards.remove(guard).unlock().into_iter();
                let lost: BTreeSet<_> = lost.map(|u| (owner(index(&u.weight).expect("one")), u.home)).collect();
                (lost == self.model.unlock(guard, self.model.keeps), true)
            }
        }
    }

    /// Changes what stores do.
    fn disturb(&mut self, op: &Op) {
        match op {
            Op::Break(weight, home) => _ = self.model.broken.insert((*weight, *home)),
            Op::Unfinished(home) => _ = self.model.unfinished.insert(*home),
            Op::Free(free) => self.model.free = *free,
            _ => {
                self.model.broken.clear();
                self.model.unfinished.clear();
            }
        }
        *self.world.broken.lock().expect("no panic") = self.model.broken.iter().copied().collect();
        *self.world.unfinished.lock().expect("no panic") = self.model.unfinished.iter().copied().collect();
        *self.world.free.lock().expect("no panic") = self.model.free;
    }

    fn check(&mut self) {
        for (i, weight) in self.weights.iter().enumerate() {
            for home in Home::ALL {
                let copy = self.residency.resident(weight, home);
                let want = self.model.copies.get(&(owner(i), home));
                let dtype = copy.as_ref().map(|c| c.dtype());
                assert_eq!(dtype, want.map(|w| w.0), "{weight:?} on {home}");
                assert_eq!(self.residency.holders(weight, home), self.model.holders(owner(i), home));
                let (Some(copy), Some((_, version))) = (copy, want) else {
                    continue;
                };
                check_values(i, &copy);
                // The same storage for as long as the model brings no other, and under all names.
                let number = self.world.number(&copy);
                let known = *self.numbers.entry(*version).or_insert(number);
                assert_eq!(known, number, "storage of {weight:?} on {home}");
            }
        }
        let different: BTreeSet<_> = self.numbers.values().collect();
        assert_eq!(
            different.len(),
            self.numbers.len(),
            "what was brought anew is another storage"
        );
        for home in Home::ALL {
            assert_eq!(
                self.residency.bytes(home),
                self.model.counted(home),
                "counted on {home}"
            );
            let real = self.residency.real_bytes(home);
            assert_eq!(
                (real, real),
                (self.model.real(home), self.world.live(home)),
                "real on {home}"
            );
        }
        for (guard, (home, held)) in self.guards.iter().zip(&self.model.guards) {
            for (i, weight) in held.iter().enumerate() {
                let copies = &self.model.copies;
                let here = copies.get(&(*weight, *home));
                let (_, version) = here.unwrap_or_else(|| &copies[&(*weight, home.other())]);
                assert_eq!(self.world.number(&guard.storage(i)), self.numbers[version]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_sequence_leaves_what_the_model_says(keeps: bool, ops in prop::collection::vec(op(), 1..40)) {
        let mut pair = Pair::new(keeps);
        for op in &ops {
            pair.apply(op);
            pair.check();
        }
        pair.guards.clear();
        pair.residency.release();
        for home in Home::ALL {
            assert_eq!((pair.residency.real_bytes(home), pair.world.live(home)), (0, 0));
        }
    }
}

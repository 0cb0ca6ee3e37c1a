//! Steps of a sequence, and the state after each as text.

use crate::fake::{WEIGHTS, World, check_values, file, owner, weights};
use Home::{Device, Host};
use Step::*;
use rotile::checkpoint::Checkpoint;
use rotile::memory::residency::{Guard, Home, Residency, Store, WeightRef};
use rotile::tensor::DType;
use std::fmt::Write as _;
use std::sync::Arc;

/// What happens. Guards are numbered in the order of their locks.
#[derive(Debug)]
pub(crate) enum Step {
    Lock(Home, &'static [usize]),
    /// One more guard, of what another holds.
    Again(usize),
    /// Guard, weight, type.
    Cast(usize, usize, DType),
    Offload(usize, &'static [usize]),
    Reload(usize, &'static [usize]),
    /// Names that are not put back.
    Unlock(usize, &'static [&'static str]),
    Drop(usize),
    Discard(usize),
    Reassign(&'static [usize], Home),
    /// Home, and bytes that must be free of 300.
    Evict(Home, u64),
    Release,
    /// From now on a weight cannot be brought there.
    Break(usize, Home),
    Mend,
    /// The step fails with this in its message.
    Fails(&'static Step, &'static str),
}

pub(crate) struct Run {
    pub(crate) world: Arc<World>,
    stores: [Arc<dyn Store>; 2],
    residency: Residency,
    weights: Vec<WeightRef>,
    guards: Vec<Option<Guard>>,
}

impl Run {
    pub(crate) fn new(residency: Residency) -> Self {
        let checkpoint = Checkpoint::from_bytes("w.gguf", file().into()).expect("a file");
        let world = Arc::new(World::default());
        Self {
            stores: Home::ALL.map(|home| world.store(home)),
            world,
            residency,
            weights: weights(&Arc::new(checkpoint)),
            guards: Vec::new(),
        }
    }

    fn pick(&self, indices: &[usize]) -> Vec<WeightRef> {
        indices.iter().map(|&i| self.weights[i].clone()).collect()
    }

    fn guard(&mut self, i: usize) -> &Guard {
        self.guards[i].as_ref().expect("still locked")
    }

    pub(crate) fn step(&mut self, step: &Step) -> rotile::Result<()> {
        let stores = self.stores.clone();
        match *step {
            Lock(home, indices) => {
                let guard = self.residency.lock(&self.pick(indices), home, &stores[home as usize])?;
                self.guards.push(Some(guard));
            }
            Again(guard) => {
                let again = self.guard(guard).again();
                self.guards.push(Some(again));
            }
            Cast(guard, i, dtype) => self.guard(guard).cast(i, dtype)?,
            Offload(guard, indices) => {
                let other = self.guard(guard).home().other();
                self.guard(guard).offload(indices, &stores[other as usize])?;
            }
            Reload(guard, indices) => self.guard(guard).reload(indices)?,
            Unlock(guard, lost) => {
                let unrestored = self.guards[guard].take().expect("still locked").unlock();
                let names: Vec<_> = unrestored.iter().map(|u| u.weight.name()).collect();
                assert_eq!(names, lost);
            }
            Drop(guard) => drop(self.guards[guard].take()),
            Discard(guard) => self.guards[guard].take().expect("still locked").discard(),
            Reassign(indices, home) => {
                self.residency
                    .reassign(&self.pick(indices), home, &stores[home as usize])?;
            }
            Evict(home, wanted) => {
                self.residency.evict(home, wanted, || 300 - self.world.live(home));
            }
            Release => self.residency.release(),
            Break(weight, home) => {
                self.world.broken.lock().expect("no panic").insert((weight, home));
            }
            Mend => self.world.broken.lock().expect("no panic").clear(),
            Fails(step, message) => {
                let error = self.step(step).expect_err("it must fail").to_string();
                assert!(error.contains(message), "{error}");
            }
        }
        Ok(())
    }

    /// Type and number of the storage of each weight, on the host and on the device; bytes on both, counted and real.
    pub(crate) fn state(&self) -> String {
        let mut text = String::new();
        for (i, weight) in self.weights.iter().enumerate() {
            let at = |home| match self.residency.resident(weight, home) {
                Some(copy) => {
                    check_values(i, &copy);
                    assert_eq!(copy.home(), home);
                    let tied = self.residency.resident(&self.weights[owner(i)], home);
                    assert!(tied.is_some_and(|tied| Arc::ptr_eq(&tied, &copy)), "{i} is on its own");
                    format!("{}#{}", copy.dtype(), self.world.number(&copy))
                }
                None => "-".into(),
            };
            if owner(i) == i {
                let _ = write!(text, "{} {} {}, ", WEIGHTS[i].0, at(Host), at(Device));
            } else {
                at(Host);
                at(Device);
            }
        }
        let counted = Home::ALL.map(|home| self.residency.bytes(home));
        let real = Home::ALL.map(|home| self.residency.real_bytes(home));
        assert_eq!(real, Home::ALL.map(|home| self.world.live(home)), "real bytes");
        let _ = write!(text, "{counted:?} {real:?}");
        text
    }

    /// What the holders see.
    fn check_holders(&self) {
        for guard in self.guards.iter().flatten() {
            for i in 0..guard.len() {
                guard.storage(i);
            }
        }
    }
}

/// Runs a table: each step with the state after it, `=` where nothing has changed.
pub(crate) fn run(residency: Residency, table: &[(Step, &str)]) {
    let mut run = Run::new(residency);
    let (mut differ, mut before) = (String::new(), String::new());
    for (step, want) in table {
        run.step(step).unwrap_or_else(|e| panic!("{step:?}: {e}"));
        run.check_holders();
        let state = run.state();
        let want = if *want == "=" { &before } else { *want };
        if state != want {
            let _ = write!(differ, "\n{step:?}\n  is   {state}\n  want {want}");
        }
        before = state;
    }
    assert!(differ.is_empty(), "{differ}");
}

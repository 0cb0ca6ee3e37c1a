//! A host and a device of paper: stores that count what is alive by themselves, and fail when told to.

use crate::gguf::File;
use half::{bf16, f16};
use rotile::checkpoint::Checkpoint;
use rotile::memory::residency::{Home, Resident, Storage, Store, WeightRef};
use rotile::tensor::{DType, Tensor, TensorType};
use rotile::{Error, Result};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, Weak};

/// Name, type and shape of the weights, all of different size. The last is the first under another name.
pub(crate) const WEIGHTS: [(&str, DType, &[usize]); 5] = [
    ("a", DType::F32, &[4, 8]),
    ("b", DType::BF16, &[3, 8]),
    ("bias", DType::F16, &[8]),
    ("q", DType::Q8_0, &[2, 32]),
    ("a[0:0..4]", DType::F32, &[4, 8]),
];

/// Which storage a weight shares.
pub(crate) fn owner(weight: usize) -> usize {
    weight % 4
}

/// Numbers that none of the narrower floats holds exactly; those of `q` are what its blocks hold exactly.
fn numbers(weight: usize) -> Vec<f32> {
    let (_, dtype, shape) = WEIGHTS[weight];
    let count: usize = shape.iter().product();
    let of = |i: usize| match dtype {
        DType::Q8_0 if i.is_multiple_of(32) => 127.0,
        DType::Q8_0 => i as f32 - 40.0,
        _ => (i as f32 + 1.0) / (7.3 + weight as f32),
    };
    (0..count).map(of).collect()
}

/// What a weight must hold as `dtype`: the numbers of the file, rounded to it.
pub(crate) fn expected(weight: usize, dtype: DType) -> Vec<f32> {
    let round = |dtype: DType, v: f32| match dtype {
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::BF16 => bf16::from_f32(v).to_f32(),
        _ => v,
    };
    let loaded = WEIGHTS[owner(weight)].1;
    let numbers = numbers(owner(weight)).into_iter();
    numbers.map(|v| round(dtype, round(loaded, v))).collect()
}

/// Bytes of a weight as `dtype`.
pub(crate) fn size(weight: usize, dtype: DType) -> u64 {
    let count = WEIGHTS[weight].2.iter().product::<usize>() as u64;
    match dtype {
        DType::F32 => count * 4,
        DType::F16 | DType::BF16 => count * 2,
        DType::Q8_0 => count / 32 * 34,
        other => panic!("no test has {other}"),
    }
}

pub(crate) fn file() -> Vec<u8> {
    let add = |file: File, (i, (name, dtype, shape)): (usize, &(&str, DType, &[usize]))| {
        file.values(name, *dtype, shape, &numbers(i))
    };
    WEIGHTS[..4].iter().enumerate().fold(File::new(), add).bytes()
}

pub(crate) fn weights(checkpoint: &Arc<Checkpoint>) -> Vec<WeightRef> {
    let of = |(name, dtype, shape): &(&str, DType, &[usize])| {
        WeightRef::new(checkpoint, name, TensorType::new(*dtype, *shape)).expect("in the file")
    };
    WEIGHTS.iter().map(of).collect()
}

/// What goes wrong, and what has been brought.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// Weights that cannot be brought to a home.
    pub(crate) broken: Mutex<HashSet<(usize, Home)>>,
    /// Homes that fail after the last weight has been brought.
    pub(crate) unfinished: Mutex<HashSet<Home>>,
    /// What a store says is free.
    pub(crate) free: Mutex<Option<u64>>,
    /// How many weights came from the host's copy, not from the file.
    pub(crate) from_host: Mutex<usize>,
    alive: Mutex<Vec<(Home, Weak<Tensor>)>>,
}

impl World {
    pub(crate) fn store(self: &Arc<Self>, home: Home) -> Arc<dyn Store> {
        let world = self.clone();
        Arc::new(Fake { home, world })
    }

    /// Bytes of the storages at a home that anybody still has.
    pub(crate) fn live(&self, home: Home) -> u64 {
        let alive = self.alive.lock().expect("no panic");
        let of = |(at, tensor): &(Home, Weak<Tensor>)| match tensor.upgrade() {
            Some(tensor) if *at == home => tensor.blocks.len() as u64,
            _ => 0,
        };
        alive.iter().map(of).sum()
    }

    /// Number of the storage of a copy, in the order in which they were brought.
    pub(crate) fn number(&self, copy: &Resident) -> usize {
        let tensor = copy.storage().values().expect("made here");
        let alive = self.alive.lock().expect("no panic");
        let same = |(_, other): &(Home, Weak<Tensor>)| Weak::as_ptr(other) == Arc::as_ptr(tensor);
        alive.iter().position(same).expect("brought by a store")
    }
}

#[derive(Debug)]
struct Fake {
    home: Home,
    world: Arc<World>,
}

impl Store for Fake {
    fn bring(&self, weight: &WeightRef, dtype: DType, host: Option<&Resident>) -> Result<Storage> {
        let index = WEIGHTS.iter().position(|(name, ..)| *name == weight.name());
        let index = owner(index.expect("one of them"));
        if self
            .world
            .broken
            .lock()
            .expect("no panic")
            .contains(&(index, self.home))
        {
            return Err(Error::Request(format!("no `{}` for {}", weight.name(), self.home)));
        }
        let loaded = match host {
            Some(copy) => {
                assert_eq!((copy.home(), copy.dtype()), (Home::Host, weight.ty().dtype));
                *self.world.from_host.lock().expect("no panic") += 1;
                copy.storage().values().expect("made here").as_ref().clone()
            }
            None => weight.checkpoint().load(weight.name(), weight.ty().dtype)?,
        };
        let bytes = match dtype.is_packed() {
            true => loaded.blocks,
            false => loaded.to_dtype(dtype).to_bytes(),
        };
        // As wide in memory as the type says, unlike the CPU's, so that casts change the bytes.
        let tensor = Arc::new(Tensor {
            ty: weight.ty().with_dtype(dtype),
            data: Vec::new(),
            blocks: bytes.into_boxed_slice().into_vec(),
        });
        let mut alive = self.world.alive.lock().expect("no panic");
        alive.push((self.home, Arc::downgrade(&tensor)));
        Ok(Storage::Values(tensor))
    }

    fn bytes(&self, ty: &TensorType) -> u64 {
        ty.byte_len() as u64
    }

    fn free(&self) -> Option<u64> {
        *self.world.free.lock().expect("no panic")
    }

    fn finish(&self) -> Result<()> {
        match self.world.unfinished.lock().expect("no panic").contains(&self.home) {
            true => Err(Error::Request(format!("{} did not finish", self.home))),
            false => Ok(()),
        }
    }
}

/// Compares a copy's values with the file's.
pub(crate) fn check_values(weight: usize, copy: &Resident) {
    let tensor = copy.storage().values().expect("made here");
    let want = expected(weight, copy.dtype());
    let name = WEIGHTS[weight].0;
    assert_eq!(
        (copy.dtype(), &*tensor.view().values()),
        (tensor.ty.dtype, &want[..]),
        "{name}"
    );
}

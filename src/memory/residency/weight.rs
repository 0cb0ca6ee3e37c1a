//! What is held: weights, their copies, and who brings them.

use crate::checkpoint::{Checkpoint, CheckpointError, WeightSource, Weights};
use crate::error::Result;
use crate::plan::Named;
use crate::tensor::{DType, Tensor, TensorType};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a copy can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Home {
    /// Memory of the host: what the CPU computes with.
    Host,
    /// Memory of the GPU.
    Device,
}

impl Home {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// The one that it is not.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}

impl fmt::Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "the host",
            Self::Device => "the device",
        })
    }
}

/// What makes two weights one: the same source, wanted as the same type.
pub(super) type Key = (WeightSource, TensorType);

/// A weight: its source, and the type that it is loaded as, which is the type that accounts count.
#[derive(Clone)]
pub struct WeightRef {
    checkpoint: Arc<Checkpoint>,
    name: String,
    ty: TensorType,
    key: Arc<Key>,
}

impl WeightRef {
    /// The tensor (or [`Part`](crate::checkpoint::Part)) called `name` in full, to be loaded as `ty`.
    ///
    /// # Errors
    /// If the checkpoint has no such tensor.
    pub fn new(checkpoint: &Arc<Checkpoint>, name: &str, ty: TensorType) -> Result<Self, CheckpointError> {
        Ok(Self {
            key: Arc::new((checkpoint.source(name, ty.dtype)?, ty.clone())),
            checkpoint: checkpoint.clone(),
            name: name.to_owned(),
            ty,
        })
    }

    /// The weights of a plan whose indices `stays` picks.
    pub(crate) fn of(
        weights: &Weights,
        plan: &[Named],
        stays: impl Fn(usize) -> bool,
    ) -> Result<Vec<Self>, CheckpointError> {
        let picked = plan.iter().enumerate().filter(|(i, _)| stays(*i));
        let of = |(_, named): (usize, &Named)| Self::new(weights.checkpoint(), &named.name, named.ty.clone());
        picked.map(of).collect()
    }

    /// Where its source is.
    pub fn checkpoint(&self) -> &Arc<Checkpoint> {
        &self.checkpoint
    }

    /// Its full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type that it is loaded as.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Whether both are the same bytes, loaded as the same type: then they have one storage.
    pub fn is_tied_to(&self, other: &Self) -> bool {
        self.key == other.key
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }
}

impl fmt::Debug for WeightRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeightRef({} of {}, {})", self.name, self.checkpoint.name(), self.ty)
    }
}

/// What holds the values of a copy.
#[derive(Clone, Debug)]
pub enum Storage {
    /// Buffers of a GPU: the parts of a weight along its first axis, in order.
    Buffers(Vec<wgpu::Buffer>),
    /// Values, or bytes of a packed type, on the host.
    Values(Arc<Tensor>),
}

impl Storage {
    /// Bytes that it really takes.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Buffers(buffers) => buffers.iter().map(wgpu::Buffer::size).sum(),
            Self::Values(tensor) => tensor.data.capacity() as u64 * 4 + tensor.blocks.capacity() as u64,
        }
    }

    /// The buffers; none on the host.
    pub fn buffers(&self) -> &[wgpu::Buffer] {
        match self {
            Self::Buffers(buffers) => buffers,
            Self::Values(_) => &[],
        }
    }

    /// The tensor, if it is on the host.
    pub fn values(&self) -> Option<&Arc<Tensor>> {
        match self {
            Self::Buffers(_) => None,
            Self::Values(tensor) => Some(tensor),
        }
    }
}

/// Bytes of all copies that are alive, by home: also of those that only a holder still has.
#[derive(Debug, Default)]
pub(super) struct Tally([AtomicU64; 2]);

impl Tally {
    pub(super) fn bytes(&self, home: Home) -> u64 {
        self.0[home as usize].load(Ordering::Relaxed)
    }
}

/// A copy of a weight at a home.
#[derive(Debug)]
pub struct Resident {
    storage: Storage,
    dtype: DType,
    home: Home,
    bytes: u64,
    tally: Arc<Tally>,
}

impl Resident {
    pub(super) fn new(storage: Storage, dtype: DType, home: Home, tally: &Arc<Tally>) -> Arc<Self> {
        let bytes = storage.bytes();
        tally.0[home as usize].fetch_add(bytes, Ordering::Relaxed);
        Arc::new(Self {
            storage,
            dtype,
            home,
            bytes,
            tally: tally.clone(),
        })
    }

    /// What holds the values.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// The type that it has now: that which was loaded, unless a holder has cast it.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Where it is.
    pub fn home(&self) -> Home {
        self.home
    }

    /// Bytes that it really takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.tally.0[self.home as usize].fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Brings weights to one home. It must not call the [`Residency`](super::Residency) that calls it: that waits for it.
pub trait Store: fmt::Debug + wgpu::WasmNotSendSync {
    /// The values of `weight` as [`WeightRef::ty`] holds them, in a storage of their own; converted to `dtype` where that is another
    /// type. `host` is a copy in host memory of the type that was loaded, if there is one, which saves reading the source.
    ///
    /// # Errors
    /// If the source cannot be read, or there is no room.
    fn bring(&self, weight: &WeightRef, dtype: DType, host: Option<&Resident>) -> Result<Storage>;

    /// Bytes that a copy of the type takes there.
    fn bytes(&self, ty: &TensorType) -> u64;

    /// Bytes that are free there; `None` where nobody knows.
    fn free(&self) -> Option<u64> {
        None
    }

    /// Called after the last of several [`Store::bring`]: waits until all are there.
    ///
    /// # Errors
    /// If they are not.
    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

use crate::checkpoint::{Checkpoint, Weights};
use crate::tensor::DType;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A weight on a device, kept as long as a session holds it.
#[derive(Debug)]
pub struct Resident<T> {
    /// What holds the values there.
    pub storage: T,
    // Keeps the address of the checkpoint from being used again while it is a key.
    _checkpoint: Arc<Checkpoint>,
}

type Key = (usize, String, DType);

/// The weights on one device. Sessions that use the same tensor of the same checkpoint in the same type share one copy; the last
/// one to go frees it.
pub struct Residency<T> {
    held: Mutex<HashMap<Key, Weak<Resident<T>>>>,
}

impl<T> Default for Residency<T> {
    fn default() -> Self {
        Self {
            held: Mutex::new(HashMap::new()),
        }
    }
}

impl<T> Residency<T> {
    /// The weight, if a session holds it already.
    pub fn get(&self, weights: &Weights, name: &str, dtype: DType) -> Option<Arc<Resident<T>>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(&key(weights, name, dtype))?.upgrade()
    }

    /// Notes a weight that has just been brought to the device.
    pub fn insert(&self, weights: &Weights, name: &str, dtype: DType, storage: T) -> Arc<Resident<T>> {
        let resident = Arc::new(Resident {
            storage,
            _checkpoint: weights.checkpoint().clone(),
        });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, weak| weak.strong_count() > 0);
        held.insert(key(weights, name, dtype), Arc::downgrade(&resident));
        resident
    }
}

impl<T> fmt::Debug for Residency<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "Residency({} weights)", held.len())
    }
}

fn key(weights: &Weights, name: &str, dtype: DType) -> Key {
    (Arc::as_ptr(weights.checkpoint()) as usize, name.to_owned(), dtype)
}

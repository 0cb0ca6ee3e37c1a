//! Reading `config.json`: what it says must agree with the shapes.

use crate::checkpoint::{Checkpoint, CheckpointError};
use serde_json::Value;
use std::fmt::Debug;

/// A `config.json` and the name of the checkpoint it belongs to.
pub(super) struct Json<'a> {
    value: &'a Value,
    file: &'a str,
    /// Where in it the values may come from.
    place: &'static str,
}

impl<'a> Json<'a> {
    pub(super) fn new(value: &'a Value, checkpoint: &'a Checkpoint) -> Self {
        let place = match checkpoint.metadata() {
            Some(_) => "config.json or metadata",
            None => "config.json",
        };
        Self {
            value,
            file: checkpoint.name(),
            place,
        }
    }

    pub(super) fn error(&self, reason: String) -> CheckpointError {
        CheckpointError::Config {
            file: format!("{} ({})", self.file, self.place),
            reason,
        }
    }

    /// The value of a key that is there and not null.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    /// Whether the key is there, be it null.
    pub(super) fn has(&self, key: &str) -> bool {
        self.value.get(key).is_some()
    }

    /// A size above zero.
    pub(super) fn size(&self, key: &str) -> Result<Option<usize>, CheckpointError> {
        match self.get(key).map(|value| (value, size(value))) {
            None => Ok(None),
            Some((_, Some(size))) if size > 0 => Ok(Some(size)),
            Some((value, _)) => Err(self.error(format!("`{key}` is {value}, not a size"))),
        }
    }

    /// The part below a key.
    pub(super) fn below(&self, key: &str) -> Option<Self> {
        let value = self.get(key).filter(|v| v.is_object())?;
        Some(Self { value, ..*self })
    }

    /// A finite number.
    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.error(format!("`{key}` is {value}, not a number"))),
        }
    }

    /// A number above zero.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, CheckpointError> {
        match self.number(key)? {
            Some(number) if number <= 0.0 => Err(self.error(format!("`{key}` is {number}, not above 0"))),
            number => Ok(number),
        }
    }

    /// A list of sizes.
    pub(super) fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let sizes = value.as_array().and_then(|items| items.iter().map(size).collect());
        match sizes {
            Some(sizes) => Ok(Some(sizes)),
            None => Err(self.error(format!("`{key}` is {value}, not a list of sizes"))),
        }
    }

    /// A list of so many finite numbers.
    pub(super) fn numbers(&self, key: &str, count: usize) -> Result<Option<Vec<f64>>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = |v: &Value| v.as_f64().filter(|v| v.is_finite());
        let numbers = value.as_array().and_then(|items| items.iter().map(number).collect());
        match numbers {
            Some(numbers) if Vec::len(&numbers) == count => Ok(Some(numbers)),
            _ => Err(self.error(format!("`{key}` is {value}, not a list of {count} numbers"))),
        }
    }

    /// Refuses a size that differs from that of the tensors.
    pub(super) fn agree(&self, key: &str, tensors: usize) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(value) if size(value) != Some(tensors) => Err(self.contradiction(key, value, tensors)),
            _ => Ok(()),
        }
    }

    /// Refuses a list that differs from what the tensors say.
    pub(super) fn agree_all(&self, key: &str, tensors: &[usize]) -> Result<(), CheckpointError> {
        match self.sizes(key)? {
            Some(sizes) if sizes != tensors => Err(self.contradiction(key, &sizes, tensors)),
            _ => Ok(()),
        }
    }

    /// Refuses a switch that differs from what the tensors say.
    pub(super) fn agree_flag(&self, key: &str, tensors: bool) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(value) if value.as_bool() != Some(tensors) => Err(self.contradiction(key, value, tensors)),
            _ => Ok(()),
        }
    }

    /// Refuses a setting that is not the only one that is implemented.
    pub(super) fn only(&self, key: &str, known: &str) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(value) if value.as_str() != Some(known) => {
                Err(self.error(format!("`{key}` is {value}, only `{known}` is known")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a feature that is not implemented.
    pub(super) fn off(&self, key: &str) -> Result<(), CheckpointError> {
        match self.get(key) {
            Some(value) if *value != Value::Bool(false) => {
                Err(self.error(format!("`{key}` is {value}, which is not known")))
            }
            _ => Ok(()),
        }
    }

    fn contradiction(&self, key: &str, config: impl Debug, tensors: impl Debug) -> CheckpointError {
        self.error(format!("`{key}` is {config:?}, but the tensors say {tensors:?}"))
    }
}

fn size(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// Number of consecutive blocks `prefix.0`, `prefix.1`, … that have a tensor `name`.
pub(super) fn count(checkpoint: &Checkpoint, prefix: &str, name: &str) -> usize {
    (0..)
        .take_while(|i| checkpoint.get(&format!("{prefix}.{i}.{name}")).is_some())
        .count()
}

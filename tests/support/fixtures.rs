//! Reference values made by diffusers, from `goldens/reference`.

#![allow(dead_code, reason = "each test uses a part of it")]

use rotile::checkpoint::{Checkpoint, Weights};
use rotile::tensor::Tensor;
use safetensors::{Dtype, SafeTensors};
use std::path::PathBuf;
use std::sync::Arc;

/// A path below `goldens/reference`.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/goldens/reference")).join(name)
}

/// A path below the embedded model.
pub(crate) fn scenes(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/models/scenes-tiny")).join(name)
}

/// A file of inputs and outputs.
pub(crate) struct Fixture(Vec<u8>);

impl Fixture {
    pub(crate) fn open(name: &str) -> Self {
        Self(std::fs::read(path(name)).expect("the fixture is in the repository"))
    }

    fn view(&self, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).expect("the fixture is valid");
        let tensor = file
            .tensor(name)
            .unwrap_or_else(|_| panic!("no `{name}` in the fixture"));
        (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        let file = SafeTensors::deserialize(&self.0).expect("the fixture is valid");
        file.tensor(name).is_ok()
    }

    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let (dtype, shape, bytes) = self.view(name);
        assert_eq!(dtype, Dtype::F32, "{name}");
        let data = bytes
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        Tensor::new(shape, data.collect())
    }

    /// Values in double precision, rounded.
    pub(crate) fn doubles(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = self.view(name);
        assert_eq!(dtype, Dtype::F64, "{name}");
        let value = |b: &[u8]| f64::from_le_bytes(b.try_into().expect("eight bytes")) as f32;
        bytes.chunks_exact(8).map(value).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> (Vec<usize>, Vec<u32>) {
        let (dtype, shape, bytes) = self.view(name);
        assert_eq!(dtype, Dtype::I64, "{name}");
        let ids = bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes(b.try_into().expect("eight bytes")) as u32);
        (shape, ids.collect())
    }
}

/// Weights of a file below `goldens/reference`.
pub(crate) fn weights(name: &str) -> Weights {
    let checkpoint = Checkpoint::open(path(name)).unwrap_or_else(|e| panic!("{e}"));
    Weights::new(Arc::new(checkpoint))
}

/// Weights of a part of the embedded model.
pub(crate) fn part(name: &str) -> Weights {
    let checkpoint = Checkpoint::open(scenes(name)).unwrap_or_else(|e| panic!("{e}"));
    Weights::new(Arc::new(checkpoint))
}

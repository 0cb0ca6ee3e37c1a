//! Files in the layouts that models were published in, made from those of diffusers.

use crate::fixtures::path;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;

/// Files by name, each with its tensors: what `original.json` says of a fixture, with the bytes of its weights.
pub(crate) struct Layouts {
    weights: Vec<u8>,
    files: BTreeMap<String, BTreeMap<String, (String, Vec<usize>)>>,
}

impl Layouts {
    pub(crate) fn open(fixture: &str) -> Self {
        let read = |name: &str| std::fs::read(path(fixture).join(name)).expect("the fixture is in the repository");
        Self {
            weights: read("diffusion_pytorch_model.safetensors"),
            files: serde_json::from_slice(&read("original.json")).expect("names and shapes"),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.files.keys()
    }

    /// The bytes of a file, with all names and element types turned by `rename` and `convert`.
    pub(crate) fn file(&self, name: &str, rename: impl Fn(&str) -> String, dtype: Option<Dtype>) -> Vec<u8> {
        let weights = SafeTensors::deserialize(&self.weights).expect("a safetensors file");
        let stored: Vec<_> = self.files[name]
            .iter()
            .map(|(key, (from, shape))| {
                let view = weights.tensor(from).expect("the tensor it is made of");
                let float = view.dtype() != Dtype::I64;
                let dtype = dtype.filter(|_| float).unwrap_or(view.dtype());
                (rename(key), dtype, shape, converted(&view, dtype))
            })
            .collect();
        let views = stored.iter().map(|(key, dtype, shape, bytes)| {
            let view = TensorView::new(*dtype, shape.to_vec(), bytes).expect("bytes fill the shape");
            (key, view)
        });
        safetensors::serialize(views, None).expect("a safetensors file")
    }
}

/// Values that all types hold exactly, as those of the fixtures.
fn converted(view: &TensorView<'_>, dtype: Dtype) -> Vec<u8> {
    if view.dtype() == dtype {
        return view.data().to_vec();
    }
    let bits = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    let value = |b: &[u8]| match view.dtype() {
        Dtype::F16 => half::f16::from_bits(bits(b)).to_f32(),
        Dtype::BF16 => half::bf16::from_bits(bits(b)).to_f32(),
        other => panic!("{other:?} in a fixture"),
    };
    let values = view.data().chunks_exact(2).map(value);
    match dtype {
        Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
        Dtype::F16 => values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
        Dtype::BF16 => values.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        other => panic!("no fixture becomes {other:?}"),
    }
}

/// The `config.json` of a fixture.
pub(crate) fn config(fixture: &str) -> Value {
    let bytes = std::fs::read(path(fixture).join("config.json")).expect("the config");
    serde_json::from_slice(&bytes).expect("JSON")
}

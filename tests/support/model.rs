//! Parts of the embedded model, to be damaged.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::fixtures::scenes;
use rotile::tensor::{DType, decode};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A part in memory.
pub(crate) struct Part {
    pub(crate) tensors: BTreeMap<String, Stored>,
    pub(crate) config: Option<String>,
}

/// A tensor as a file has it.
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Part {
    pub(crate) fn open(name: &str) -> Self {
        let file = match name {
            "text_encoder" => "model.safetensors",
            _ => "diffusion_pytorch_model.safetensors",
        };
        let bytes = fs::read(scenes(name).join(file)).expect("the weights");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let stored = |view: TensorView<'_>| Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        Self {
            tensors: file
                .iter()
                .map(|(name, view)| (name.to_owned(), stored(view)))
                .collect(),
            config: Some(fs::read_to_string(scenes(name).join("config.json")).expect("the config")),
        }
    }

    pub(crate) fn get(&mut self, name: &str) -> &mut Stored {
        self.tensors.get_mut(name).unwrap_or_else(|| panic!("no `{name}`"))
    }

    /// Replaces a piece of `config.json`.
    pub(crate) fn configure(&mut self, from: &str, to: &str) {
        let config = self.config.as_mut().expect("a config");
        assert!(config.contains(from), "`{from}` is not in {config}");
        *config = config.replace(from, to);
    }

    /// The bytes of a file.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, stored)| (name, stored.view()));
        safetensors::serialize(views, None).expect("a safetensors file")
    }

    /// Writes it as a folder.
    pub(crate) fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("model.safetensors"), self.bytes()).expect("written");
        if let Some(config) = &self.config {
            fs::write(folder.join("config.json"), config).expect("written");
        }
    }
}

impl Stored {
    fn view(&self) -> TensorView<'_> {
        TensorView::new(self.dtype, self.shape.clone(), &self.bytes).expect("bytes fill the shape")
    }

    /// Half-precision zeros.
    pub(crate) fn zeros(shape: &[usize]) -> Self {
        Self {
            dtype: Dtype::F16,
            shape: shape.to_vec(),
            bytes: vec![0; shape.iter().product::<usize>() * 2],
        }
    }

    /// Makes it single precision, and all values `factor` times as large.
    pub(crate) fn scale(&mut self, factor: f32) {
        let dtype = match self.dtype {
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let values = decode(dtype, &self.bytes);
        self.dtype = Dtype::F32;
        self.bytes = values.iter().flat_map(|v| (v * factor).to_le_bytes()).collect();
    }

    /// Makes it single precision, all values `value`.
    pub(crate) fn fill(&mut self, value: f32) {
        let count = self.shape.iter().product();
        self.dtype = Dtype::F32;
        self.bytes = std::iter::repeat_n(value.to_le_bytes(), count).flatten().collect();
    }
}

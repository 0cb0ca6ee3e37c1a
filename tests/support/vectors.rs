//! Vectors of comfy-kitchen, from `goldens/reference/convrot`.

#![allow(dead_code, reason = "each test uses a part of it")]

use crate::fixtures;
use rotile::tensor::{DType, decode};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;

/// A file of vectors.
pub(crate) struct Vectors(Vec<u8>);

impl Vectors {
    pub(crate) fn open(name: &str) -> Self {
        let path = fixtures::path("convrot").join(format!("{name}.safetensors"));
        Self(std::fs::read(path).expect("the vectors are in the repository"))
    }

    pub(crate) fn raw(&self, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
        let file = SafeTensors::deserialize(&self.0).expect("valid");
        let tensor = file.tensor(name).unwrap_or_else(|_| panic!("no `{name}`"));
        (tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
    }

    /// Values of any type.
    pub(crate) fn wide(&self, name: &str) -> Vec<f64> {
        let (dtype, _, bytes) = self.raw(name);
        let eight = |b: &[u8]| b.try_into().expect("eight bytes");
        match dtype {
            Dtype::F64 => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(eight(b))).collect(),
            Dtype::I64 => bytes
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(eight(b)) as f64)
                .collect(),
            Dtype::I32 => bytes
                .chunks_exact(4)
                .map(|b| f64::from(i32::from_le_bytes(b.try_into().expect("four bytes"))))
                .collect(),
            dtype => {
                let dtype = match dtype {
                    Dtype::F32 => DType::F32,
                    Dtype::F16 => DType::F16,
                    Dtype::BF16 => DType::BF16,
                    Dtype::I8 => DType::I8,
                    other => panic!("{name} is {other:?}"),
                };
                decode(dtype, &bytes).into_iter().map(f64::from).collect()
            }
        }
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.wide(name).into_iter().map(|v| v as f32).collect()
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.raw(name).1
    }
}

/// Tensors of a file that is yet to be written.
pub(crate) type Parts = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub(crate) fn written(parts: &Parts, header: Option<&str>) -> Vec<u8> {
    let views = parts.iter().map(|(n, (dtype, shape, data))| {
        let view = TensorView::new(*dtype, shape.clone(), data);
        (n, view.expect("bytes fill the shape"))
    });
    let header = header.map(|text| [("_quantization_metadata".to_owned(), text.to_owned())].into());
    safetensors::serialize(views, header).expect("a file")
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

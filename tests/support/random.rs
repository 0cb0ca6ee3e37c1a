//! Random weights of published shapes.

use rotile::checkpoint::{Checkpoint, Weights};
use rotile::tensor::{DType, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Weights of the shapes in a description, which keep activations near one: norms of gain 1, everything else uniform with variance
/// 1 / inputs. The same in every run.
pub(crate) fn random(name: &str, description: &str) -> Weights {
    #[derive(serde::Deserialize)]
    struct Description {
        config: Option<Value>,
        tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
    }
    let description: Description = serde_json::from_str(description).expect("a description");
    let values = |name: &str, shape: &[usize]| {
        let mut uniform = crate::support::uniform(name);
        let inputs = shape.iter().skip(1).product::<usize>().max(1);
        let scale = (3.0 / inputs as f32).sqrt();
        let count = shape.iter().product();
        match (shape.len(), name.ends_with("weight")) {
            (1, true) => vec![1.0; count],
            (1, false) => vec![0.0; count],
            _ => (0..count).map(|_| scale * uniform()).collect(),
        }
    };
    let stored: Vec<_> = description
        .tensors
        .iter()
        .map(|(name, (_, shape))| {
            let tensor = Tensor::new(shape.clone(), values(name, shape)).to_dtype(DType::F16);
            (name, shape, tensor.to_bytes())
        })
        .collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        // Bytes of a tensor are padded to whole words.
        let exact = &bytes[..2 * shape.iter().product::<usize>()];
        let view = TensorView::new(Dtype::F16, shape.to_vec(), exact).expect("bytes fill the shape");
        (name, view)
    });
    let file = safetensors::serialize(views, None).expect("a file");
    let checkpoint = Checkpoint::from_bytes(name, file.into()).unwrap_or_else(|e| panic!("{e}"));
    Weights::new(Arc::new(checkpoint.with_config(description.config)))
}

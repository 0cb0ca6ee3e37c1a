//! Which weights of a checkpoint an adapter means: by diffusers' names, by those of the file, and by both with underscores.

use super::names::Module;
use crate::checkpoint::{Checkpoint, TensorInfo};
use std::collections::BTreeMap;
use std::ops::Range;

/// A weight, and its rows among those of the module that the adapter names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Full name of the tensor: `layers.0.attention.to_q.weight`.
    pub(super) weight: String,
    /// Its rows in the adapter's product: all, but where the adapter names a fused module.
    pub(super) rows: Range<usize>,
}

impl Target {
    /// Path of the module: `layers.0.attention.to_q`.
    pub(super) fn module(&self) -> &str {
        self.weight.strip_suffix(".weight").unwrap_or(&self.weight)
    }
}

/// Everything of a checkpoint that adapters can change, by name.
pub(super) struct Targets {
    dotted: BTreeMap<String, Vec<Target>>,
    /// `None` where two modules have the same name once dots are underscores.
    flat: BTreeMap<String, Option<Vec<Target>>>,
}

/// What single files and text encoders put before the names of a component.
const CONTAINERS: [&str; 4] = ["model.diffusion_model.", "first_stage_model.", "vae.", "model."];
/// Z-Image's own words, as adapters name them whatever the file has.
const WORDS: [(&str, &str); 5] = [
    (".attention.to_out.0", ".attention.out"),
    (".attention.norm_q", ".attention.q_norm"),
    (".attention.norm_k", ".attention.k_norm"),
    ("all_x_embedder.2-1", "x_embedder"),
    ("all_final_layer.2-1", "final_layer"),
];
const FUSED: ([&str; 3], &str) = (["to_q", "to_k", "to_v"], "qkv");

impl Targets {
    pub(super) fn of(checkpoint: &Checkpoint) -> Self {
        let mut targets = Self {
            dotted: BTreeMap::new(),
            flat: BTreeMap::new(),
        };
        let mut stored: BTreeMap<&str, Vec<&TensorInfo>> = BTreeMap::new();
        for info in checkpoint.tensors().filter(|info| !info.name.ends_with(".bias")) {
            let one = joined(&[info]);
            targets.add(module(&info.name), one.clone());
            let mut other = module(&info.name).to_owned();
            WORDS.iter().for_each(|(from, to)| other = other.replace(from, to));
            targets.add(&other, one);
            stored.entry(&info.stored).or_default().push(info);
        }
        for (name, mut parts) in stored {
            parts.sort_by_key(|info| info.offset());
            let path = CONTAINERS
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix))
                .unwrap_or(name);
            targets.add(module(path), joined(&parts));
        }
        let (parts, fused) = FUSED;
        for info in checkpoint.tensors() {
            let Some(block) = module(&info.name).strip_suffix(parts[0]) else {
                continue;
            };
            let infos = parts.map(|part| checkpoint.get(&format!("{block}{part}.weight")));
            if let [Some(q), Some(k), Some(v)] = infos {
                targets.add(&format!("{block}{fused}"), joined(&[q, k, v]));
            }
        }
        targets
    }

    fn add(&mut self, path: &str, targets: Vec<Target>) {
        let flat = self
            .flat
            .entry(path.replace('.', "_"))
            .or_insert_with(|| Some(targets.clone()));
        if flat.as_ref().is_some_and(|held| *held != targets) {
            *flat = None;
        }
        // A name of diffusers' is never that of something else in the file.
        self.dotted.entry(path.to_owned()).or_insert(targets);
    }

    /// The weights behind a module's name.
    pub(super) fn find(&self, module: &Module) -> Option<&[Target]> {
        match module.flat {
            true => self.flat.get(&module.path)?.as_deref(),
            false => self.dotted.get(&module.path).map(Vec::as_slice),
        }
    }
}

fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// Tensors that are one in the adapter's eyes, row after row.
fn joined(infos: &[&TensorInfo]) -> Vec<Target> {
    let mut first = 0;
    let target = |info: &&TensorInfo| {
        let rows = info.shape.first().copied().unwrap_or(1);
        first += rows;
        Target {
            weight: info.name.clone(),
            rows: first - rows..first,
        }
    };
    infos.iter().map(target).collect()
}

//! Files and folders: memory-mapped, so that a model larger than memory opens at once.

use super::{Checkpoint, CheckpointError, Source, Storage};
use memmap2::Mmap;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const INDEX: &str = ".safetensors.index.json";
/// What diffusers and transformers call the weights of a part.
const USUAL: [&str; 2] = ["diffusion_pytorch_model", "model"];

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a safetensors or GGUF file, the `.safetensors.index.json` of a sharded one, a folder with one of them, or a header-only
    /// description (see [`Checkpoint::describe`]). A `config.json` beside the weights is kept.
    ///
    /// # Errors
    /// If a file is missing, cut or malformed, or the folder does not say which weights to use.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let weights = if path.is_dir() { find(path)? } else { path.to_owned() };
        if weights.extension().is_some_and(|e| e == "json") {
            let text = read_text(&weights)?;
            // A description names tensors, an index names files.
            if !text.contains("\"weight_map\"") {
                return Self::describe(&name, &text);
            }
            let sources = shards(&weights, &text)?;
            return Ok(Self::assemble(&name, sources)?.with_config(config(&weights)?));
        }
        let source = map(&weights)?;
        Ok(Self::assemble(&name, vec![source])?.with_config(config(&weights)?))
    }
}

fn io(path: &Path, source: std::io::Error) -> CheckpointError {
    CheckpointError::Io {
        file: path.display().to_string(),
        source,
    }
}

fn invalid(path: &Path, reason: impl Into<String>) -> CheckpointError {
    CheckpointError::Config {
        file: path.display().to_string(),
        reason: reason.into(),
    }
}

fn read_text(path: &Path) -> Result<String, CheckpointError> {
    fs::read_to_string(path).map_err(|e| io(path, e))
}

/// The weights in a folder: the usual names first, else the only candidate.
fn find(folder: &Path) -> Result<PathBuf, CheckpointError> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(|e| io(folder, e))? {
        let name = entry.map_err(|e| io(folder, e))?.file_name();
        names.insert(name.to_string_lossy().into_owned());
    }
    for usual in USUAL {
        for name in [format!("{usual}{INDEX}"), format!("{usual}.safetensors")] {
            if names.contains(&name) {
                return Ok(folder.join(name));
            }
        }
    }
    for ending in [INDEX, ".safetensors", ".gguf"] {
        let candidates: Vec<_> = names.iter().filter(|n| n.ends_with(ending)).collect();
        match candidates[..] {
            [] => {}
            [only] => return Ok(folder.join(only)),
            [..] => {
                return Err(invalid(
                    folder,
                    format!("which of {candidates:?} are the weights? Name one"),
                ));
            }
        }
    }
    Err(invalid(
        folder,
        "no .safetensors or .gguf file and no .safetensors.index.json in this folder",
    ))
}

fn config(weights: &Path) -> Result<Option<Value>, CheckpointError> {
    let path = weights.with_file_name("config.json");
    if !path.is_file() {
        return Ok(None);
    }
    let value = serde_json::from_str(&read_text(&path)?).map_err(|e| invalid(&path, e.to_string()))?;
    Ok(Some(value))
}

fn shards(index: &Path, text: &str) -> Result<Vec<Source>, CheckpointError> {
    let parsed: Index = serde_json::from_str(text).map_err(|e| invalid(index, e.to_string()))?;
    let files: BTreeSet<_> = parsed.weight_map.values().collect();
    let mut sources = BTreeMap::new();
    for file in files {
        // An index must not reach outside its folder.
        if Path::new(file).file_name().is_none_or(|name| name != file.as_str()) {
            return Err(invalid(index, format!("`{file}` is no plain file name")));
        }
        sources.insert(file, map(&index.with_file_name(file))?);
    }
    for (tensor, file) in &parsed.weight_map {
        if !sources[file].entries.iter().any(|e| e.name == *tensor) {
            return Err(CheckpointError::MissingTensor {
                file: sources[file].file.clone(),
                name: tensor.clone(),
                nearest: None,
            });
        }
    }
    Ok(sources.into_values().collect())
}

fn map(path: &Path) -> Result<Source, CheckpointError> {
    let file = path.display().to_string();
    let handle = File::open(path).map_err(|e| io(path, e))?;
    let length = handle.metadata().map_err(|e| io(path, e))?.len();
    if length == 0 {
        // Empty files cannot be mapped.
        return Source::read(&file, Storage::Static(&[]));
    }
    #[expect(
        unsafe_code,
        reason = "mapping is unsafe since another process may change the file; its bytes are only read"
    )]
    let map = unsafe { Mmap::map(&handle) }.map_err(|e| io(path, e))?;
    Source::read(&file, Storage::Mapped(map))
}

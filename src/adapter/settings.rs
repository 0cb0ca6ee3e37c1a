//! Alphas that are no tensors: PEFT keeps them in `adapter_config.json`, diffusers in the header of the file.

use crate::checkpoint::Checkpoint;
use serde_json::{Map, Value};

/// The header's entry, as diffusers writes it: settings of PEFT, each behind the name of its component.
const HEADER: &str = "lora_adapter_metadata";
/// What modules of PEFT's own files begin with.
const PEFT: &str = "base_model.model.";

/// Settings of an adapter file.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings(Map<String, Value>);

/// Numerator of a LoRA's scale, and whether the denominator is the root of the rank (`use_rslora`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Alpha {
    value: f32,
    root: bool,
}

impl Alpha {
    /// The scale at this rank.
    pub(super) fn scale(self, rank: usize) -> f32 {
        let rank = rank.max(1) as f32;
        self.value / if self.root { rank.sqrt() } else { rank }
    }
}

impl Settings {
    /// From the header of a safetensors file, where it has such an entry.
    pub(super) fn from_header(file: &Checkpoint) -> Option<Self> {
        Self::from_config(file.note(HEADER)?.as_bytes())
    }

    /// From an `adapter_config.json` beside a file, or in a folder.
    #[cfg(feature = "native")]
    pub(super) fn beside(path: &std::path::Path) -> Option<Self> {
        let folder = if path.is_dir() { path } else { path.parent()? };
        Self::from_config(&std::fs::read(folder.join("adapter_config.json")).ok()?)
    }

    /// From an `adapter_config.json`.
    pub(super) fn from_config(text: &[u8]) -> Option<Self> {
        match serde_json::from_slice(text).ok()? {
            Value::Object(map) => Some(Self(map)),
            _ => None,
        }
    }

    /// The alpha of a module, as the file names it.
    pub(super) fn alpha(&self, module: &str) -> Option<Alpha> {
        let section = module.split_once('.').map_or("", |(first, _)| first);
        let get = |name: &str| self.0.get(&format!("{section}.{name}")).or_else(|| self.0.get(name));
        let module = module.strip_prefix(PEFT).unwrap_or(module);
        // A pattern is a name, or the end of one.
        let matches = |(pattern, alpha): (&String, &Value)| {
            let rest = module.strip_suffix(pattern.as_str())?;
            (rest.is_empty() || rest.ends_with('.')).then(|| alpha.as_f64())?
        };
        let patterns = get("alpha_pattern").and_then(Value::as_object);
        let own = patterns.and_then(|patterns| patterns.iter().find_map(matches));
        let value = own.or_else(|| get("lora_alpha")?.as_f64())? as f32;
        value.is_finite().then(|| Alpha {
            value,
            root: get("use_rslora").and_then(Value::as_bool).unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(text: &str, module: &str) -> Option<f32> {
        Some(Settings::from_config(text.as_bytes())?.alpha(module)?.scale(4))
    }

    #[test]
    fn alphas_of_peft_and_diffusers() {
        let peft =
            r#"{"r": 4, "lora_alpha": 8, "alpha_pattern": {"to_q": 2, "layers.1.to_k": 16}, "use_rslora": false}"#;
        assert_eq!(scale(peft, "base_model.model.layers.0.to_v"), Some(2.0));
        assert_eq!(scale(peft, "base_model.model.layers.0.to_q"), Some(0.5));
        assert_eq!(scale(peft, "base_model.model.layers.0.into_q"), Some(2.0));
        assert_eq!(scale(peft, "base_model.model.layers.1.to_k"), Some(4.0));
        let diffusers =
            r#"{"transformer.lora_alpha": 12.0, "transformer.use_rslora": true, "text_encoder.lora_alpha": 4}"#;
        assert_eq!(scale(diffusers, "transformer.layers.0.to_q"), Some(6.0));
        assert_eq!(scale(diffusers, "text_encoder.layers.0.q_proj"), Some(1.0));
        assert_eq!(scale(diffusers, "unet.x"), None);
        for broken in ["", "[]", "{", r#"{"lora_alpha": "8"}"#, r#"{"lora_alpha": 1e999}"#] {
            assert_eq!(scale(broken, "x"), None, "{broken}");
        }
    }
}

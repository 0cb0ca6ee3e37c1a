use crate::adapter::{self, Adapter, Apply, Report};
use crate::checkpoint::{Checkpoint, TensorInfo, Weights};
use crate::convert::WeightType;
use crate::diffusion::pipeline::Parts;
use crate::diffusion::scheduler::Scheduler;
use crate::error::{CheckpointError, Result};
use crate::models::{Role, Vae};
use crate::text::Tokenizer;
use serde_json::Value;
use std::sync::Arc;

/// What a model does when a request leaves something out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
    /// Denoising steps.
    pub steps: u32,
    /// Strength of guidance.
    pub guidance: f32,
    /// The only size that the model was trained at, if there is one.
    pub only_size: Option<(u32, u32)>,
}

impl Defaults {
    /// Those of Z-Image-Turbo, which is distilled for few steps without guidance.
    pub const TURBO: Self = Self {
        width: 0,
        height: 0,
        steps: 9,
        guidance: 0.0,
        only_size: None,
    };

    /// Takes `_rotile` of a `model_index.json` where it is there: `steps`, `guidance`, `only_size`.
    fn from_index(index: &Value) -> Self {
        let own = &index["_rotile"];
        let mut defaults = Self::TURBO;
        if let Some(steps) = own["steps"].as_u64() {
            defaults.steps = steps.min(1000) as u32;
        }
        if let Some(guidance) = own["guidance"].as_f64() {
            defaults.guidance = guidance as f32;
        }
        if let [Some(width), Some(height)] = [0, 1].map(|i| own["only_size"][i].as_u64()) {
            defaults.only_size = Some((width as u32, height as u32));
        }
        defaults
    }

    /// The size is that of the VAE's training, as `sample_size` in its `config.json` says, else 1024.
    pub(super) fn for_vae(mut self, (_, weights): &(Vae, Weights)) -> Self {
        let config = weights.checkpoint().config();
        let size = config.and_then(|c| c["sample_size"].as_u64()).unwrap_or(1024) as u32;
        if self.width == 0 {
            (self.width, self.height) = self.only_size.unwrap_or((size, size));
        }
        self
    }
}

/// A model that has been opened: its parts and its defaults.
#[derive(Debug)]
pub struct Source {
    /// Name for messages and metadata.
    pub name: String,
    /// The parts.
    pub parts: Parts,
    /// The defaults.
    pub defaults: Defaults,
    /// Adapters, all at once.
    pub adapters: Vec<Adapter>,
    /// When they do their work.
    pub apply: Apply,
}

/// The files of a model in memory: what a browser has fetched.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `model_index.json`.
    pub index: Vec<u8>,
    /// Weights and `config.json` of the text encoder.
    pub text_encoder: (Arc<[u8]>, Vec<u8>),
    /// Weights and `config.json` of the transformer.
    pub transformer: (Arc<[u8]>, Vec<u8>),
    /// Weights and `config.json` of the VAE.
    pub vae: (Arc<[u8]>, Vec<u8>),
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `scheduler_config.json`.
    pub scheduler: Vec<u8>,
}

impl Source {
    /// The same model with adapters, such as LoRAs.
    pub fn with_adapters(self, adapters: Vec<Adapter>, apply: Apply) -> Self {
        Self {
            adapters,
            apply,
            ..self
        }
    }

    /// Brings weights of the transformer and of the text encoder to the device in another type. What is said of layers that keep
    /// theirs.
    pub(super) fn retype(&mut self, target: Option<WeightType>) -> Option<String> {
        let target = target?;
        let (mut packed, mut plain) = (0, 0);
        for part in [&mut self.parts.transformer, &mut self.parts.text_encoder] {
            for info in part
                .tensors()
                .filter(|info| info.shape.len() == 2 && target.on_load(info).is_none())
            {
                match info.dtype.weight() {
                    Some(dtype) if dtype.is_packed() => packed += 1,
                    _ => plain += 1,
                }
            }
            *part = Arc::new(part.retyped(target));
        }
        let notes = [
            (packed, "quantised already"),
            (plain, "small, no matrices of layers, or with rows of no whole blocks"),
        ];
        let notes = notes.iter().filter(|(count, _)| *count > 0);
        let notes: Vec<_> = notes.map(|(count, why)| format!("{count} {why}")).collect();
        (!notes.is_empty()).then(|| format!("--type {target}: weights that keep their type: {}", notes.join("; ")))
    }

    /// Puts the adapters on the parts; `packed` says which weights stay packed on the device.
    pub(super) fn adapt(&mut self, packed: &dyn Fn(Role, &TensorInfo) -> bool) -> Result<Report> {
        if self.adapters.is_empty() {
            return Ok(Report::default());
        }
        let parts = &mut self.parts;
        let mut list = [
            (Role::Transformer, parts.transformer.clone()),
            (Role::TextEncoder, parts.text_encoder.clone()),
            (Role::Autoencoder, parts.vae.clone()),
        ];
        let report = adapter::apply(&mut list, &self.adapters, self.apply, packed)?;
        [parts.transformer, parts.text_encoder, parts.vae] = list.map(|(_, part)| part);
        Ok(report)
    }

    /// A model whose files are in memory.
    ///
    /// # Errors
    /// If a file is unusable; the message names the part.
    pub fn from_memory(name: &str, files: Memory) -> Result<Self> {
        let open = |part: &str, (weights, config): (Arc<[u8]>, Vec<u8>)| {
            let checkpoint = Checkpoint::from_bytes(&format!("{name}/{part}"), weights)?;
            configured(checkpoint, &config)
        };
        let parts = [
            open("text_encoder", files.text_encoder)?,
            open("transformer", files.transformer)?,
            open("vae", files.vae)?,
        ];
        Self::assemble(name, parts, &files.tokenizer, &files.scheduler, &files.index)
    }

    /// The small model that is compiled into the crate.
    ///
    /// # Errors
    /// If it is damaged, which the tests rule out.
    #[cfg(feature = "scenes-tiny")]
    pub fn embedded() -> Result<Self> {
        macro_rules! file {
            ($path:literal) => {
                include_bytes!(concat!(
                    env!("CARGO_MANIFEST_DIR"),
                    "/examples/models/scenes-tiny/",
                    $path
                ))
            };
        }
        let open = |part: &str, weights: &'static [u8], config: &[u8]| {
            let checkpoint = Checkpoint::from_static(&format!("scenes-tiny/{part}"), weights)?;
            configured(checkpoint, config)
        };
        let parts = [
            open(
                "text_encoder",
                file!("text_encoder/model.safetensors"),
                file!("text_encoder/config.json"),
            )?,
            open(
                "transformer",
                file!("transformer/diffusion_pytorch_model.safetensors"),
                file!("transformer/config.json"),
            )?,
            open(
                "vae",
                file!("vae/diffusion_pytorch_model.safetensors"),
                file!("vae/config.json"),
            )?,
        ];
        let (tokenizer, scheduler) = (
            file!("tokenizer/tokenizer.json"),
            file!("scheduler/scheduler_config.json"),
        );
        Self::assemble("scenes-tiny", parts, tokenizer, scheduler, file!("model_index.json"))
    }

    fn assemble(
        name: &str,
        [text_encoder, transformer, vae]: [Arc<Checkpoint>; 3],
        tokenizer: &[u8],
        scheduler: &[u8],
        index: &[u8],
    ) -> Result<Self> {
        let file = format!("{name}/model_index.json");
        let index = parse(&file, index)?;
        check_class(&file, &index)?;
        Ok(Self {
            name: name.to_owned(),
            parts: Parts {
                text_encoder,
                transformer,
                vae,
                tokenizer: Tokenizer::from_bytes(&format!("{name}/tokenizer.json"), tokenizer)?,
                scheduler: Scheduler::from_config(scheduler, &format!("{name}/scheduler_config.json"))?,
            },
            defaults: Defaults::from_index(&index),
            adapters: Vec::new(),
            apply: Apply::default(),
        })
    }
}

fn configured(checkpoint: Checkpoint, config: &[u8]) -> Result<Arc<Checkpoint>, CheckpointError> {
    let config = parse(&format!("{}/config.json", checkpoint.name()), config)?;
    Ok(Arc::new(checkpoint.with_config(Some(config))))
}

fn check_class(file: &str, index: &Value) -> Result<(), CheckpointError> {
    match index["_class_name"].as_str() {
        Some("ZImagePipeline") => Ok(()),
        other => Err(CheckpointError::UnknownModel {
            file: file.to_owned(),
            reason: format!("pipeline `{}`; known: ZImagePipeline", other.unwrap_or("none")),
        }),
    }
}

fn parse(file: &str, json: &[u8]) -> Result<Value, CheckpointError> {
    serde_json::from_slice(json).map_err(|e| CheckpointError::Config {
        file: file.to_owned(),
        reason: format!("not valid JSON: {e}"),
    })
}

#[cfg(feature = "native")]
pub use native::Files;

#[cfg(feature = "native")]
mod native {
    use super::*;
    use std::path::{Path, PathBuf};

    /// Where the parts of a model lie: a diffusers folder, single files, or a folder with some parts replaced.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Files {
        /// A folder with `model_index.json`.
        pub folder: Option<PathBuf>,
        /// A file or folder of the text encoder.
        pub text_encoder: Option<PathBuf>,
        /// A file or folder of the transformer.
        pub transformer: Option<PathBuf>,
        /// A file or folder of the VAE.
        pub vae: Option<PathBuf>,
        /// `tokenizer.json`, or the folder it lies in.
        pub tokenizer: Option<PathBuf>,
        /// `scheduler_config.json`, or the folder it lies in; flow matching with shift 3 where there is none.
        pub scheduler: Option<PathBuf>,
    }

    impl Files {
        /// A diffusers folder.
        pub fn folder(path: impl AsRef<Path>) -> Self {
            Self {
                folder: Some(path.as_ref().to_owned()),
                ..Self::default()
            }
        }

        /// The path of a part: its own, or that below the folder.
        fn part(&self, own: &Option<PathBuf>, name: &str) -> Result<PathBuf, CheckpointError> {
            own.clone()
                .or_else(|| self.folder.as_ref().map(|f| f.join(name)))
                .ok_or_else(|| CheckpointError::Config {
                    file: name.to_owned(),
                    reason: "this part is given neither by a model folder nor by itself".into(),
                })
        }
    }

    /// Settings of Z-Image's scheduler, for models given as single files.
    const FLOW_SHIFT_3: &[u8] = br#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;

    impl Source {
        /// Opens the files of a model. Weights are mapped, not read.
        ///
        /// # Errors
        /// If a file is missing or unusable; the message names it.
        pub fn open(files: &Files) -> Result<Self> {
            let index = match &files.folder {
                Some(folder) => {
                    if folder.is_file() {
                        return Err(CheckpointError::Config {
                            file: show(folder),
                            reason: "a model is a folder with model_index.json; a single file goes to --transformer, \
                                     --text-encoder or --vae"
                                .into(),
                        }
                        .into());
                    }
                    let path = folder.join("model_index.json");
                    let index = parse(&show(&path), &read(&path)?)?;
                    check_class(&show(&path), &index)?;
                    index
                }
                None => Value::Null,
            };
            let open = |own: &Option<PathBuf>, name: &str| {
                let path = files.part(own, name)?;
                Ok::<_, CheckpointError>(Arc::new(Checkpoint::open(&path)?))
            };
            let tokenizer = inside(files.part(&files.tokenizer, "tokenizer")?, "tokenizer.json");
            let scheduler = match files.part(&files.scheduler, "scheduler") {
                Ok(path) => {
                    let path = inside(path, "scheduler_config.json");
                    Scheduler::from_config(&read(&path)?, &show(&path))?
                }
                Err(_) => Scheduler::from_config(FLOW_SHIFT_3, "default scheduler")?,
            };
            let parts = Parts {
                text_encoder: open(&files.text_encoder, "text_encoder")?,
                transformer: open(&files.transformer, "transformer")?,
                vae: open(&files.vae, "vae")?,
                tokenizer: Tokenizer::from_bytes(&show(&tokenizer), &read(&tokenizer)?)?,
                scheduler,
            };
            let main = files.folder.as_ref().or(files.transformer.as_ref());
            let name = main
                .and_then(|p| p.file_name())
                .map_or("model".into(), |n| n.to_string_lossy());
            Ok(Self {
                name: name.into_owned(),
                parts,
                defaults: Defaults::from_index(&index),
                adapters: Vec::new(),
                apply: Apply::default(),
            })
        }
    }

    fn inside(path: PathBuf, name: &str) -> PathBuf {
        if path.is_dir() { path.join(name) } else { path }
    }

    fn show(path: &Path) -> String {
        path.display().to_string()
    }

    fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
        std::fs::read(path).map_err(|source| CheckpointError::Io {
            file: show(path),
            source,
        })
    }
}

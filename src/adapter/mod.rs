//! Adapters: LoRA, LoKr, LoHa, plain differences and DoRA, of linear layers and convolutions, merged into the weights when they
//! are loaded or added to the output of their layers.
//!
//! [`apply`] makes new checkpoints from those of a model: the same files, with changes that are computed when a weight is loaded,
//! and the adapters' own tensors beside them. Model code asks for the latter in one place, where it makes linear layers and convolutions.

mod delta;
mod names;
mod patch;
mod read;
mod report;
mod runtime;
mod settings;
mod target;

pub(crate) use patch::Patch;
pub use report::{FileReport, Line, Report, Status};
pub(crate) use runtime::{Layer, Site, adapted};

use crate::checkpoint::{Checkpoint, CheckpointError, TensorInfo};
use crate::error::AdapterError;
use crate::models::Role;
use crate::tensor::Tensor;
use patch::Change;
use read::{Fields, Reader};
use settings::Settings;
use std::collections::BTreeMap;
use std::sync::Arc;
use target::{Target, Targets};

/// An adapter file and how much of it is wanted.
#[derive(Clone, Debug)]
pub struct Adapter {
    file: Arc<Checkpoint>,
    weight: f32,
    settings: Settings,
}

impl Adapter {
    /// An opened file; its differences are multiplied by `weight`.
    ///
    /// # Errors
    /// If `weight` is not finite.
    pub fn new(file: Arc<Checkpoint>, weight: f32) -> Result<Self, AdapterError> {
        if weight.is_finite() {
            Ok(Self {
                settings: Settings::from_header(&file).unwrap_or_default(),
                file,
                weight,
            })
        } else {
            Err(AdapterError::Weight {
                file: file.name().to_owned(),
                weight,
            })
        }
    }

    /// A safetensors file in memory.
    ///
    /// # Errors
    /// If it is cut or malformed, or `weight` is not finite.
    pub fn from_bytes(name: &str, bytes: Arc<[u8]>, weight: f32) -> Result<Self, AdapterError> {
        Self::new(Arc::new(Checkpoint::from_bytes(name, bytes)?), weight)
    }

    /// A safetensors file, or a folder with one. Where neither its tensors nor its header have alphas, an `adapter_config.json`
    /// beside it may.
    ///
    /// # Errors
    /// If it is missing, cut or malformed, or `weight` is not finite.
    #[cfg(feature = "native")]
    pub fn open(path: impl AsRef<std::path::Path>, weight: f32) -> Result<Self, AdapterError> {
        let path = path.as_ref();
        let adapter = Self::new(Arc::new(Checkpoint::open(path)?), weight)?;
        match Settings::from_header(&adapter.file) {
            Some(_) => Ok(adapter),
            None => Ok(Self {
                settings: Settings::beside(path).unwrap_or_default(),
                ..adapter
            }),
        }
    }

    /// Name of the file.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Its weight in the mix.
    pub fn weight(&self) -> f32 {
        self.weight
    }

    /// Its tensors by module, and those that are none of an adapter's.
    fn modules(&self) -> (BTreeMap<String, Fields>, Vec<String>) {
        let (mut modules, mut unknown) = (BTreeMap::<String, Fields>::new(), Vec::new());
        for info in self.file.tensors() {
            match names::split(&info.stored) {
                Some((module, field)) => {
                    modules
                        .entry(module.to_owned())
                        .or_default()
                        .insert(field, info.clone());
                }
                None => unknown.push(info.stored.clone()),
            }
        }
        (modules, unknown)
    }
}

/// When adapters do their work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Apply {
    /// At run time in components with packed weights, else at once.
    #[default]
    Auto,
    /// Merged into the weights when they are loaded; packed weights are left out.
    Immediately,
    /// Added to the output of the layers. Norms, biases, tables and layers that have no such place are merged.
    Runtime,
}

/// Changes of a checkpoint, as its loader and model code look them up.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    /// By full name of the tensor.
    pub(crate) patches: BTreeMap<String, Patch>,
    /// By path of the module.
    pub(crate) sites: BTreeMap<String, Site>,
}

/// Tensors that stand beside those of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct Extras(Vec<(String, Tensor)>);

impl Extras {
    fn add(&mut self, name: &str, tensor: Tensor) {
        self.0.push((name.to_owned(), tensor));
    }
}

impl IntoIterator for Extras {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A component on its way.
struct Component {
    role: Role,
    checkpoint: Arc<Checkpoint>,
    targets: Targets,
    runtime: bool,
    /// By full name of the weight.
    patches: BTreeMap<String, Patch>,
    /// What is added to biases, by path of the module.
    biases: BTreeMap<String, Vec<f32>>,
}

/// The components of a model with adapters on them, and what became of each of their tensors.
///
/// `packed` says which weights stay packed on the device; they are never changed themselves.
///
/// # Errors
/// If a tensor of an adapter does not fit the weight it names or is not finite, a module lacks a part, or nothing of an adapter
/// has a place in the model.
pub fn apply(
    parts: &mut [(Role, Arc<Checkpoint>)],
    adapters: &[Adapter],
    how: Apply,
    packed: &dyn Fn(Role, &TensorInfo) -> bool,
) -> Result<Report, AdapterError> {
    let component = |(role, checkpoint): &'_ (Role, Arc<Checkpoint>)| {
        let any_packed = checkpoint.tensors().any(|info| packed(*role, info));
        Component {
            role: *role,
            checkpoint: checkpoint.clone(),
            targets: Targets::of(checkpoint),
            runtime: how == Apply::Runtime || (how == Apply::Auto && any_packed),
            patches: BTreeMap::new(),
            biases: BTreeMap::new(),
        }
    };
    let mut components: Vec<_> = parts.iter().map(component).collect();
    let mut report = Report::default();
    for adapter in adapters {
        report.files.push(place(adapter, &mut components, packed)?);
    }
    let overlaid = components
        .into_iter()
        .map(|c| c.finish(packed))
        .collect::<Result<Vec<_>, _>>()?;
    for ((_, part), new) in parts.iter_mut().zip(overlaid) {
        if let Some(new) = new {
            *part = Arc::new(new);
        }
    }
    Ok(report)
}

/// Finds a place for everything in an adapter.
fn place(
    adapter: &Adapter,
    components: &mut [Component],
    packed: &dyn Fn(Role, &TensorInfo) -> bool,
) -> Result<FileReport, AdapterError> {
    let (modules, unknown) = adapter.modules();
    let mut file = FileReport::new(adapter);
    for (key, fields) in &modules {
        let module = names::module(key);
        let mut line = Line {
            module: key.clone(),
            kind: read::kind(fields),
            targets: Vec::new(),
            status: Status::Unmatched,
        };
        let found = module.roles.iter().find_map(|&role| {
            let at = components.iter().position(|c| c.role == role)?;
            components[at]
                .targets
                .find(&module)
                .map(|targets| (at, targets.to_vec()))
        });
        if let Some((at, targets)) = found {
            let component = &mut components[at];
            let role = component.role;
            line.status = component.change(adapter, (key, fields), &targets, &|info| packed(role, info))?;
            line.targets = targets.into_iter().map(|t| t.weight).collect();
        }
        file.lines.push(line);
    }
    file.lines.extend(unknown.into_iter().map(|module| Line {
        module,
        kind: "no tensor of an adapter",
        targets: Vec::new(),
        status: Status::Unmatched,
    }));
    if file.matched() == 0 {
        return Err(AdapterError::NothingMatched {
            file: adapter.name().to_owned(),
            count: file.lines.len(),
            first: file.lines.first().map_or("none".into(), |line| line.module.clone()),
        });
    }
    Ok(file)
}

impl Component {
    /// Notes what a module of an adapter changes.
    fn change(
        &mut self,
        adapter: &Adapter,
        (key, fields): (&str, &Fields),
        targets: &[Target],
        packed: &dyn Fn(&TensorInfo) -> bool,
    ) -> Result<Status, AdapterError> {
        let Some(first) = targets.first() else {
            return Ok(Status::Unmatched);
        };
        let infos = targets
            .iter()
            .map(|target| self.checkpoint.info(&target.weight))
            .collect::<Result<Vec<_>, _>>()?;
        let info = infos[0];
        if let Some(other) = infos.iter().find(|other| other.shape.get(1..) != info.shape.get(1..)) {
            return Err(CheckpointError::Shape {
                file: self.checkpoint.name().to_owned(),
                name: other.name.clone(),
                found: other.shape.clone(),
                wanted: info.shape.clone(),
            }
            .into());
        }
        let any_packed = infos.iter().any(|info| packed(info));
        let mut shape = info.shape.to_vec();
        if let Some(rows) = shape.first_mut() {
            *rows = targets.iter().map(|t| t.rows.len()).sum();
        }
        let reader = Reader {
            file: &adapter.file,
            fields,
            alpha: adapter.settings.alpha(key),
            target: first.module(),
            shape: shape.into(),
        };
        let mut status = Status::Unmatched;
        if let Some(delta) = reader.delta()? {
            let runtime = self.runtime && runtime::reaches(&first.weight, &info.shape);
            // Of a fused module with packed and other rows, none are changed: half an adapter is none.
            if !runtime && any_packed {
                return Ok(Status::Skipped);
            }
            status = if runtime { Status::Runtime } else { Status::Merged };
            let delta = Arc::new(delta);
            let magnitude = reader.magnitude()?;
            let factor = magnitude
                .map(|m| patch::factor(&self.checkpoint, targets, &delta, &m))
                .transpose()?;
            for target in targets {
                self.patches
                    .entry(target.weight.clone())
                    .or_default()
                    .changes
                    .push(Change {
                        delta: delta.clone(),
                        first: target.rows.start,
                        weight: adapter.weight,
                        factor: factor.clone(),
                    });
            }
        }
        if let Some(bias) = reader.bias()? {
            for target in targets {
                let part = bias.iter().skip(target.rows.start).take(target.rows.len());
                let sum = self.biases.entry(target.module().to_owned()).or_default();
                sum.resize(target.rows.len(), 0.0);
                sum.iter_mut().zip(part).for_each(|(s, b)| *s += adapter.weight * b);
            }
            if status == Status::Unmatched {
                status = Status::Merged;
            }
        }
        Ok(status)
    }

    /// The checkpoint with all changes; `None` where there are none.
    fn finish(self, packed: &dyn Fn(Role, &TensorInfo) -> bool) -> Result<Option<Checkpoint>, AdapterError> {
        if self.patches.is_empty() && self.biases.is_empty() {
            return Ok(None);
        }
        let (mut overlay, mut extras) = (Overlay::default(), Extras::default());
        for (weight, patch) in self.patches {
            let info = self.checkpoint.info(&weight)?;
            if self.runtime && runtime::reaches(&weight, &info.shape) {
                let site = runtime::site(&self.checkpoint, &weight, &patch, &mut extras)?;
                let module = weight.strip_suffix(".weight").unwrap_or(&weight);
                overlay.sites.insert(module.to_owned(), site);
            } else {
                debug_assert!(!packed(self.role, info), "{weight} is packed");
                overlay.patches.insert(weight, patch);
            }
        }
        for (module, bias) in self.biases {
            let name = format!("{module}.bias");
            if self.checkpoint.get(&name).is_some() {
                let change = Change {
                    delta: Arc::new(delta::Delta::constant(bias)),
                    first: 0,
                    weight: 1.0,
                    factor: None,
                };
                overlay.patches.insert(name, Patch { changes: vec![change] });
            } else {
                let name = format!("@adapter.{name}");
                extras.add(&name, Tensor::new([bias.len()], bias));
                overlay.sites.entry(module).or_default().bias = Some(name);
            }
        }
        Ok(Some(self.checkpoint.overlaid(overlay, extras)))
    }
}

impl From<CheckpointError> for AdapterError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

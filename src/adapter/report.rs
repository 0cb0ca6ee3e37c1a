use super::Adapter;
use serde::Serialize;
use std::fmt::Write as _;

/// What became of a module of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Part of the weights.
    Merged,
    /// Added to the output of its layer.
    Runtime,
    /// Left out: its weight is packed and adapters are to be merged.
    Skipped,
    /// The model has nothing of this name.
    Unmatched,
}

impl Status {
    /// Words for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Merged => "merged",
            Self::Runtime => "at run time",
            Self::Skipped => "skipped, the weight is packed",
            Self::Unmatched => "unmatched",
        }
    }
}

/// A module of an adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// As the adapter names it.
    pub module: String,
    /// LoRA, LoHa and so on.
    pub kind: &'static str,
    /// The weights it changes, by diffusers' names.
    pub targets: Vec<String>,
    /// What became of it.
    pub status: Status,
}

/// What became of an adapter file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// File.
    pub name: String,
    /// Weight in the mix.
    pub weight: f32,
    /// Every module of it.
    pub lines: Vec<Line>,
}

/// What became of all adapters.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One entry per adapter.
    pub files: Vec<FileReport>,
}

/// Names that a note lists before it only counts.
const LISTED: usize = 8;

impl FileReport {
    pub(super) fn new(adapter: &Adapter) -> Self {
        Self {
            name: adapter.name().to_owned(),
            weight: adapter.weight(),
            lines: Vec::new(),
        }
    }

    /// Modules with this fate.
    pub fn count(&self, status: Status) -> usize {
        self.lines.iter().filter(|line| line.status == status).count()
    }

    /// Modules that the model has.
    pub fn matched(&self) -> usize {
        self.lines.len() - self.count(Status::Unmatched)
    }

    /// What the user should know, in one sentence.
    pub fn note(&self) -> String {
        let mut text = format!(
            "{} with weight {}: {} of {} modules matched, {} merged, {} at run time",
            self.name,
            self.weight,
            self.matched(),
            self.lines.len(),
            self.count(Status::Merged),
            self.count(Status::Runtime)
        );
        for (status, word) in [
            (Status::Unmatched, "without a place in the model"),
            (
                Status::Skipped,
                "skipped, since their weights are packed (--lora-apply runtime adds to the output of linear layers instead)",
            ),
        ] {
            let names: Vec<_> = self
                .lines
                .iter()
                .filter(|l| l.status == status)
                .map(|l| &*l.module)
                .collect();
            if names.is_empty() {
                continue;
            }
            let more = names.len().saturating_sub(LISTED);
            let _ = write!(
                text,
                "; {} {word}: {}",
                names.len(),
                names[..names.len() - more].join(", ")
            );
            if more > 0 {
                let _ = write!(text, " and {more} more");
            }
        }
        text
    }
}

impl Report {
    /// One sentence per adapter.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(FileReport::note)
    }

    /// How they are applied, for metadata.
    pub fn how(&self) -> &'static str {
        let any = |status| self.files.iter().any(|f| f.count(status) > 0);
        match (any(Status::Merged), any(Status::Runtime)) {
            (true, true) => "merged and runtime",
            (true, false) => "merged",
            (false, true) => "runtime",
            (false, false) => "skipped",
        }
    }

    /// File names with weights, for metadata: `style.safetensors:0.8 other.safetensors:1`. Empty where there are none.
    pub fn summary(&self) -> String {
        let name = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or(path).to_owned();
        let entries: Vec<_> = self
            .files
            .iter()
            .map(|f| format!("{}:{}", name(&f.name), f.weight))
            .collect();
        entries.join(" ")
    }
}

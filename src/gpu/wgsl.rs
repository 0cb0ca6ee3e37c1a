//! Links WGSL files into one shader. WGSL lets declarations come in any order, so linking is concatenation:
//! hoist `enable` lines, fill slots, set values.

use crate::tensor::DType;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};

/// A WGSL file, embedded at build time.
#[derive(Clone, Copy, Debug)]
pub struct WgslFile {
    /// Path below `wgsl/`, without the extension.
    pub path: &'static str,
    /// Contents.
    pub text: &'static str,
}

// The path decides: two files never share one, and hashing whole texts would be waste.
impl PartialEq for WgslFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for WgslFile {}

impl Hash for WgslFile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.path.hash(state);
    }
}

/// Embeds `wgsl/PATH.wgsl`.
macro_rules! wgsl {
    ($path:literal) => {
        $crate::gpu::wgsl::WgslFile {
            path: $path,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/wgsl/", $path, ".wgsl")),
        }
    };
}
pub(crate) use wgsl;

/// Files that others `use`. A file `slot/NAME/CHOICE` is one choice for slot NAME.
pub const LIBRARY: &[WgslFile] = &[
    wgsl!("lib/butterfly"),
    wgsl!("lib/bytes"),
    wgsl!("lib/codes_affine"),
    wgsl!("lib/codes_offset"),
    wgsl!("lib/columns"),
    wgsl!("lib/epilogue"),
    wgsl!("lib/flat"),
    wgsl!("lib/half"),
    wgsl!("lib/index"),
    wgsl!("lib/k_scales"),
    wgsl!("lib/lanes"),
    wgsl!("lib/lanes_matmul"),
    wgsl!("lib/lanes_sums"),
    wgsl!("lib/reduce"),
    wgsl!("lib/reduce_rows"),
    wgsl!("lib/tiles"),
    wgsl!("lib/trig"),
    wgsl!("slot/act/gelu"),
    wgsl!("slot/act/gelu_tanh"),
    wgsl!("slot/act/none"),
    wgsl!("slot/act/quick_gelu"),
    wgsl!("slot/act/relu"),
    wgsl!("slot/act/sigmoid"),
    wgsl!("slot/act/silu"),
    wgsl!("slot/act/tanh"),
    wgsl!("slot/bias/none"),
    wgsl!("slot/bias/vector"),
    wgsl!("slot/combine/add"),
    wgsl!("slot/combine/gated_add"),
    wgsl!("slot/combine/modulate"),
    wgsl!("slot/combine/modulate_shift"),
    wgsl!("slot/combine/mul"),
    wgsl!("slot/combine/sub"),
    wgsl!("slot/combine/swiglu"),
    wgsl!("slot/elem/f16"),
    wgsl!("slot/elem/f32"),
    wgsl!("slot/four/packed"),
    wgsl!("slot/four/unpacked"),
    wgsl!("slot/from/f16"),
    wgsl!("slot/from/f32"),
    wgsl!("slot/gain/none"),
    wgsl!("slot/gain/vector"),
    wgsl!("slot/mask/none"),
    wgsl!("slot/mask/tensor"),
    wgsl!("slot/offset/none"),
    wgsl!("slot/offset/vector"),
    wgsl!("slot/place/same"),
    wgsl!("slot/place/strided"),
    wgsl!("slot/residual/add"),
    wgsl!("slot/residual/gated"),
    wgsl!("slot/residual/none"),
    wgsl!("slot/row/held"),
    wgsl!("slot/row/streamed"),
    wgsl!("slot/scale/none"),
    wgsl!("slot/scale/vector"),
    wgsl!("slot/weight/bf16"),
    wgsl!("slot/weight/f16"),
    wgsl!("slot/weight/f32"),
    wgsl!("slot/weight/i8"),
    wgsl!("slot/weight/q2_k"),
    wgsl!("slot/weight/q3_k"),
    wgsl!("slot/weight/q4_0"),
    wgsl!("slot/weight/q4_1"),
    wgsl!("slot/weight/q4_k"),
    wgsl!("slot/weight/q5_0"),
    wgsl!("slot/weight/q5_1"),
    wgsl!("slot/weight/q5_k"),
    wgsl!("slot/weight/q6_k"),
    wgsl!("slot/weight/q8_0"),
];

/// Whose dialect of WGSL the text is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// naga, which compiles subgroup functions but rejects `enable subgroups;`.
    Naga,
    /// A browser's compiler, which demands that line.
    Web,
}

impl Dialect {
    /// The dialect of this build's wgpu.
    pub const HERE: Self = if cfg!(target_arch = "wasm32") {
        Self::Web
    } else {
        Self::Naga
    };
}

/// Everything that decides the compiled code: the key of the kernel cache.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    file: WgslFile,
    slots: BTreeMap<&'static str, &'static str>,
    values: BTreeMap<&'static str, u32>,
}

impl KernelSpec {
    /// The file with its defaults.
    pub const fn new(file: WgslFile) -> Self {
        Self {
            file,
            slots: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }

    /// Fills a slot: `// use NAME` brings in `slot/NAME/CHOICE`.
    pub fn slot(mut self, name: &'static str, choice: &'static str) -> Self {
        self.slots.insert(name, choice);
        self
    }

    /// Fills the `elem` slot for activations of `dtype`.
    pub fn elem(self, dtype: DType) -> Self {
        self.slot("elem", dtype.name())
    }

    /// Sets an `override` or a `const` of the shader.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.values.insert(name, value);
        self
    }

    /// Path of the kernel's own file below `wgsl/`.
    pub fn path(&self) -> &'static str {
        self.file.path
    }

    /// Every file that the linked shader is made of.
    ///
    /// # Errors
    /// If a file names a library file or slot that is not there, or a slot is filled that nothing uses.
    pub fn files(&self) -> Result<Vec<WgslFile>, LinkError> {
        let mut files = vec![self.file];
        let mut unused: Vec<_> = self.slots.keys().copied().collect();
        let mut at = 0;
        while at < files.len() {
            for name in uses(files[at].text) {
                let path = match self.slots.get(name) {
                    Some(choice) => format!("slot/{name}/{choice}"),
                    None => name.to_owned(),
                };
                unused.retain(|slot| *slot != name);
                let file = LIBRARY
                    .iter()
                    .find(|f| f.path == path)
                    .ok_or_else(|| self.error(format!("{}: no file or slot `{path}`", files[at].path)))?;
                if !files.contains(file) {
                    files.push(*file);
                }
            }
            at += 1;
        }
        match unused.first() {
            Some(slot) => Err(self.error(format!("slot `{slot}` is filled but not used"))),
            None => Ok(files),
        }
    }

    /// The complete shader for this build's wgpu.
    ///
    /// # Errors
    /// As [`KernelSpec::files`], or if a value or function is declared twice or not at all.
    pub fn link(&self) -> Result<Linked, LinkError> {
        self.link_for(Dialect::HERE)
    }

    /// The complete shader in a given dialect.
    ///
    /// # Errors
    /// As [`KernelSpec::link`].
    pub fn link_for(&self, dialect: Dialect) -> Result<Linked, LinkError> {
        let mut head = Vec::new();
        let mut body = Vec::new();
        let mut overrides = Vec::new();
        let mut unset = self.values.clone();
        let mut functions: BTreeMap<&str, &str> = BTreeMap::new();
        for file in self.files()? {
            body.push((format!("// ---- wgsl/{}.wgsl", file.path), file.path, 0));
            for (i, line) in file.text.lines().enumerate() {
                let number = i as u32 + 1;
                if line.starts_with("enable ") {
                    let wanted = dialect == Dialect::Web || line.trim() != "enable subgroups;";
                    let seen = head.iter().any(|(text, _, _): &(String, _, _)| text == line);
                    if wanted && !seen {
                        head.push((line.to_owned(), file.path, number));
                    }
                    continue;
                }
                if let Some(name) = line.strip_prefix("fn ").and_then(|r| r.split('(').next())
                    && let Some(other) = functions.insert(name, file.path)
                {
                    return Err(self.error(format!("{}: function `{name}` is also in {other}", file.path)));
                }
                let mut text = line.to_owned();
                if let Some(name) = declared(line, "override ").filter(|n| unset.contains_key(n)) {
                    if let Some((name, value)) = unset.remove_entry(name) {
                        overrides.push((name, f64::from(value)));
                    }
                } else if let Some(name) = declared(line, "const ").filter(|n| unset.contains_key(n))
                    && let Some(value) = unset.remove(name)
                {
                    let head = line.split('=').next().unwrap_or(line).trim_end();
                    text = format!("{head} = {value};");
                }
                body.push((text, file.path, number));
            }
        }
        if let Some(name) = unset.keys().next() {
            return Err(self.error(format!("no `override` or `const` named `{name}`")));
        }
        let mut linked = Linked {
            text: String::new(),
            overrides,
            lines: Vec::new(),
        };
        for (text, path, number) in head.into_iter().chain(body) {
            linked.text += &text;
            linked.text.push('\n');
            linked.lines.push((path, number));
        }
        Ok(linked)
    }

    fn error(&self, message: String) -> LinkError {
        LinkError {
            kernel: self.to_string(),
            message,
        }
    }
}

fn uses(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines()
        .filter_map(|line| line.strip_prefix("// use ")?.split_whitespace().next())
}

/// The name that a line declares with `keyword`.
fn declared<'a>(line: &'a str, keyword: &str) -> Option<&'a str> {
    let rest = line.strip_prefix(keyword)?.trim_start();
    rest.split(|c: char| c == ':' || c == '=' || c.is_whitespace()).next()
}

impl fmt::Display for KernelSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file.path.strip_prefix("ops/").unwrap_or(self.file.path))?;
        for (name, choice) in &self.slots {
            write!(f, " {name}={choice}")?;
        }
        for (name, value) in &self.values {
            write!(f, " {name}={value}")?;
        }
        Ok(())
    }
}

/// A shader ready for `create_shader_module`.
#[derive(Clone, Debug)]
pub struct Linked {
    /// Plain WGSL.
    pub text: String,
    /// For `PipelineCompilationOptions::constants`.
    pub overrides: Vec<(&'static str, f64)>,
    lines: Vec<(&'static str, u32)>,
}

impl Linked {
    /// File and line that line `number` (from 1) of the text came from.
    pub fn locate(&self, number: u32) -> (&'static str, u32) {
        let index = (number as usize).saturating_sub(1);
        self.lines.get(index).copied().unwrap_or(("?", 0))
    }
}

/// A kernel that names something that is not there: a bug in the crate.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{kernel}: {message}")]
pub struct LinkError {
    /// The kernel.
    pub kernel: String,
    /// What is missing.
    pub message: String,
}

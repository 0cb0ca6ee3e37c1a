//! What a run takes of a device's memory: what is known before, and what adapter and driver add, which is measured.
//!
//! A plan is exact to the byte, and [`peak`](super::peak) says what its session takes in the allocator's blocks and in host memory.
//! What a driver takes besides it tells nobody. `rotile calibrate` measures it, where the memory is the machine's, and fits a line for each kind of [`Work`]: `overhead = base + slope * known`, the line above all points with the smallest sum of
//! excess, and 5 % on top. The 5 % are on what is added only, since the rest is known. Compiled kernels are apart: where the adapter is
//! the CPU they take far more than small pictures do, whatever the size, but only once. Points and lines are stored together.

use crate::error::{PlanError, Result};
use crate::gpu::Caps;
use crate::ops::OPS;
use crate::plan::Policy;
use crate::tensor::DType;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Operators whose ways decide how much memory kernels take: the heavy ones.
const HEAVY: [&str; 3] = ["attention", "conv2d", "matmul"];

/// On the overhead of the fitted line.
const MARGIN: f64 = 1.05;

/// Kinds of work, each with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// A latent to a picture.
    Decode,
    /// A picture to a latent.
    Encode,
    /// As [`Work::Decode`], tile by tile.
    DecodeTiled,
    /// As [`Work::Encode`], tile by tile.
    EncodeTiled,
    /// A denoising step.
    Denoise,
    /// A prompt to its embeddings.
    Text,
}

impl Work {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Decode,
        Self::Encode,
        Self::DecodeTiled,
        Self::EncodeTiled,
        Self::Denoise,
        Self::Text,
    ];

    /// Word for people and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Encode => "encode",
            Self::DecodeTiled => "decode-tiled",
            Self::EncodeTiled => "encode-tiled",
            Self::Denoise => "denoise",
            Self::Text => "text",
        }
    }
}

/// Adapters that are priced alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A GPU.
    Hardware,
    /// An adapter that computes on the CPU: its kernels and buffers lie in the machine's memory.
    Software,
    /// The CPU without an adapter.
    Cpu,
}

/// What a line is measured for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Name of the adapter, or `CPU`.
    pub adapter: String,
    /// API, or `cpu`.
    pub backend: String,
    /// Kind.
    pub class: Class,
    /// The ways of the heavy operators that are chosen there, over all shapes; empty on the CPU.
    pub ways: String,
    /// Storage of activations: the name of a [`DType`].
    pub dtype: String,
}

impl Key {
    /// Of an adapter with the ways that `policy` chooses there; `caps` is none for the CPU.
    ///
    /// # Errors
    /// If the policy forces a way that does not exist.
    pub fn of(caps: Option<&Caps>, policy: &Policy, dtype: DType) -> Result<Self> {
        let Some(caps) = caps else {
            return Ok(Self {
                adapter: "CPU".into(),
                backend: "cpu".into(),
                class: Class::Cpu,
                ways: String::new(),
                dtype: dtype.name().into(),
            });
        };
        let class = if caps.software {
            Class::Software
        } else {
            Class::Hardware
        };
        Ok(Self {
            adapter: caps.adapter.clone(),
            backend: caps.backend.into(),
            class,
            ways: ways(caps, policy)?,
            dtype: dtype.name().into(),
        })
    }
}

/// As `attention=lanes conv2d=columns+lanes matmul=lanes`.
fn ways(caps: &Caps, policy: &Policy) -> Result<String> {
    let mut list = Vec::new();
    for entry in OPS.iter().filter(|entry| HEAVY.contains(&entry.name)) {
        let mut found = BTreeSet::new();
        for case in (entry.cases)() {
            let output = case.op.infer(&case.inputs)?;
            let (_, choice) = policy.choose(entry.name, &case.op.ways(&case.inputs, &output, caps), caps)?;
            found.insert(choice.way);
        }
        let found: Vec<_> = found.into_iter().collect();
        list.push(format!("{}={}", entry.name, found.join("+")));
    }
    Ok(list.join(" "))
}

/// High-water marks of a run, as growth since the device was open and idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Buffers, where the allocator tells.
    pub allocated: Option<u64>,
    /// Memory taken from the driver for buffers, where the allocator tells.
    pub reserved: Option<u64>,
    /// Anonymous resident memory of the process, where the device's memory is the machine's; [`Marks::compiled`] aside.
    pub driver: Option<u64>,
    /// What compiling the kernels left in that memory, before anything ran.
    pub compiled: Option<u64>,
}

impl Marks {
    /// The largest that is known.
    pub fn demand(&self) -> u64 {
        let known = [self.allocated, self.reserved, self.driver];
        known.into_iter().flatten().max().unwrap_or(0)
    }
}

/// A measurement: some work at a size, in fresh processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// What ran.
    pub work: Work,
    /// Model.
    pub model: String,
    /// Pixels a side; for [`Work::Text`], tokens.
    pub size: u32,
    /// Bytes of the plan; in tiles, of the weights and the largest session, and in host memory.
    pub planned: u64,
    /// Bytes that [`peak`](super::peak) knows of.
    pub known: u64,
    /// One for each process.
    pub runs: Vec<Marks>,
}

impl Point {
    /// The largest of all runs.
    pub fn demand(&self) -> u64 {
        self.runs.iter().map(Marks::demand).max().unwrap_or(0)
    }

    /// The most that compiling took.
    pub fn compiled(&self) -> u64 {
        self.runs.iter().filter_map(|run| run.compiled).max().unwrap_or(0)
    }
}

/// What is added to what is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Kind of work.
    pub work: Work,
    /// Bytes.
    pub base: u64,
    /// Bytes per known byte.
    pub slope: f64,
    /// Bytes that the kernels take, once they are compiled.
    pub kernels: u64,
}

impl Line {
    /// Bytes added to `known` ones.
    pub fn overhead(&self, known: u64) -> u64 {
        self.base.saturating_add((self.slope * known as f64).ceil() as u64)
    }
}

/// Points of an adapter and the lines through them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was measured.
    #[serde(flatten)]
    pub key: Key,
    /// Driver, with its version; threads, for the CPU.
    pub driver: String,
    /// One for each kind of work that has points.
    pub lines: Vec<Line>,
    /// What was measured.
    pub points: Vec<Point>,
}

impl Measured {
    /// Fits the lines.
    pub fn new(key: Key, driver: String, points: Vec<Point>) -> Self {
        let line = |work: Work| fit(work, &points);
        Self {
            lines: Work::ALL.into_iter().filter_map(line).collect(),
            key,
            driver,
            points,
        }
    }

    fn line(&self, work: Work) -> Option<&Line> {
        self.lines.iter().find(|line| line.work == work)
    }
}

/// The line above all points of `work` with the smallest sum of excess, and 5 % on top; none without points. It goes through two
/// points, or through one and is level or goes through the origin: no other line is the best.
pub fn fit(work: Work, points: &[Point]) -> Option<Line> {
    let own = points.iter().filter(|point| point.work == work);
    let kernels = own.clone().map(Point::compiled).max().unwrap_or(0);
    let over = |p: &Point| (p.known as f64, p.demand().saturating_sub(p.known) as f64);
    let points: Vec<(f64, f64)> = own.map(over).collect();
    let mut candidates: Vec<(f64, f64)> = Vec::new();
    for (i, &(x, y)) in points.iter().enumerate() {
        candidates.push((y, 0.0));
        candidates.extend((x > 0.0).then(|| (0.0, y / x)));
        for &(x2, y2) in &points[i + 1..] {
            let slope = (y2 - y) / (x2 - x);
            candidates.push((y - slope * x, slope));
        }
    }
    let valid = |&(base, slope): &(f64, f64)| {
        // What rounding leaves is below a byte of the margin.
        let above = |&(x, y): &(f64, f64)| base + slope * x >= y - 0.5;
        slope.is_finite() && slope >= 0.0 && base >= 0.0 && points.iter().all(above)
    };
    let excess = |&(base, slope): &(f64, f64)| points.iter().map(|(x, y)| base + slope * x - y).sum::<f64>();
    let best = candidates
        .into_iter()
        .filter(valid)
        .min_by(|a, b| excess(a).total_cmp(&excess(b)));
    let (base, slope) = best?;
    Some(Line {
        work,
        base: (base * MARGIN).ceil() as u64,
        // Few digits, rounded up, so that files stay readable.
        slope: (slope * MARGIN * 1e6).ceil() / 1e6,
        kernels: (kernels as f64 * MARGIN).ceil() as u64,
    })
}

/// Whether a price was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// On this adapter, with these ways and this storage.
    Measured,
    /// Not here: the dearest of its class, or of all where its class has none.
    Rule,
}

/// What a run is said to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// Bytes with kernels in place.
    pub bytes: u64,
    /// What compiling them adds, the first time: at most, since some may be there already.
    pub kernels: u64,
    /// On what grounds.
    pub basis: Basis,
}

/// All that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// One for each key.
    pub measured: Vec<Measured>,
}

impl Calibration {
    /// What comes with the crate.
    pub fn embedded() -> Self {
        // A test reads it too.
        serde_json::from_str(include_str!("calibration.json")).unwrap_or_default()
    }

    /// From the text of a file that `rotile calibrate` has written.
    ///
    /// # Errors
    /// If it is something else.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// Takes what `other` has, in place of what was measured for the same keys.
    pub fn merge(mut self, other: Self) -> Self {
        let known = |key: &Key| other.measured.iter().any(|m| m.key == *key);
        self.measured.retain(|m| !known(&m.key));
        self.measured.extend(other.measured);
        self
    }

    /// What `work` takes in all, if [`peak`](super::peak) knows of `known` bytes.
    ///
    /// An adapter, way or kind of work that was not measured is priced by one rule: the dearest line of its class, whatever its
    /// adapter and storage, for the same work where there is one, else for any. Where nothing of its class was measured, the dearest of all.
    ///
    /// # Errors
    /// If nothing at all was measured with this storage; the message says with which.
    pub fn price(&self, known: u64, key: &Key, work: Work) -> Result<Price, PlanError> {
        let dtypes: BTreeSet<&str> = self.measured.iter().map(|m| m.key.dtype.as_str()).collect();
        if !dtypes.contains(key.dtype.as_str()) {
            return Err(PlanError::Unpriced {
                dtype: key.dtype.clone(),
                known: dtypes.into_iter().collect::<Vec<_>>().join(", "),
            });
        }
        let own = self.measured.iter().find(|m| m.key == *key);
        let price = |(overhead, kernels): (u64, u64), basis| Price {
            bytes: known.saturating_add(overhead),
            kernels,
            basis,
        };
        if let Some(line) = own.and_then(|measured| measured.line(work)) {
            return Ok(price((line.overhead(known), line.kernels), Basis::Measured));
        }
        let lines = |class: Option<Class>, work: Option<Work>| {
            let of_class = move |m: &&Measured| class.is_none_or(|class| m.key.class == class);
            let lines = self.measured.iter().filter(of_class).flat_map(|m| &m.lines);
            let lines = lines.filter(move |line| work.is_none_or(|work| line.work == work));
            let costs = lines.map(|line| (line.overhead(known), line.kernels));
            costs.reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)))
        };
        let class = Some(key.class);
        let dearest = lines(class, Some(work))
            .or_else(|| lines(class, None))
            .or_else(|| lines(None, None));
        Ok(price(dearest.unwrap_or_default(), Basis::Rule))
    }
}

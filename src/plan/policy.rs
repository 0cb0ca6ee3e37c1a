//! Which way of an operator runs: the fastest that is validated on this adapter, and why.

use super::ConvrotMode;
use crate::error::PlanError;
use crate::gpu::Caps;
use crate::op::Way;
use std::collections::BTreeSet;

/// Adapters on which the suite has compared a faster way with its reference. Rows are added when `tests/ops.rs` has passed there.
const VALIDATED: &[Validated] = &[
    Validated::on_llvmpipe("attention", "lanes"),
    Validated::on_llvmpipe("conv2d", "columns"),
    Validated::on_llvmpipe("conv2d", "lanes"),
    Validated::on_llvmpipe("matmul", "lanes"),
    Validated::on_llvmpipe("matmul", "rows"),
];

/// A row of the table: a way of an operator, and the adapters where it has been compared with its reference.
struct Validated {
    op: &'static str,
    way: &'static str,
    backend: &'static str,
    /// Part of the adapter's name.
    adapter: &'static str,
}

impl Validated {
    const fn on_llvmpipe(op: &'static str, way: &'static str) -> Self {
        Self {
            op,
            way,
            backend: "vulkan",
            adapter: "llvmpipe",
        }
    }
}

/// Rules for choosing ways.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// `(op, way)` pairs that are taken whatever the table says, for diagnosis.
    pub forced: Vec<(String, String)>,
    /// How int8 layers run.
    pub convrot: ConvrotMode,
}

/// What was chosen for an operator, and on what grounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// Operator.
    pub op: &'static str,
    /// Way.
    pub way: &'static str,
    /// Why this one, and why not the ones before it.
    pub reason: String,
}

impl Policy {
    /// Index of the way to run among `ways`, which are ordered best guess first.
    ///
    /// # Errors
    /// If a forced way does not exist.
    pub fn choose(&self, op: &'static str, ways: &[Way], caps: &Caps) -> Result<(usize, Choice), PlanError> {
        if let Some((_, wanted)) = self.forced.iter().find(|(name, _)| name == op) {
            let index = ways.iter().position(|w| w.name == wanted);
            // A way may exist only for some shapes: where it does not, the rules go on.
            if let Some(index) = index {
                return Ok(choice(op, ways, index, "forced by --kernel".into()));
            }
        }
        let mut refused = String::new();
        for (index, way) in ways.iter().enumerate() {
            if way.name == Way::BASELINE {
                let reason = if refused.is_empty() {
                    "runs everywhere".into()
                } else {
                    format!("runs everywhere; {refused}")
                };
                return Ok(choice(op, ways, index, reason));
            }
            if validated(op, way.name, caps) {
                return Ok(choice(op, ways, index, format!("validated on {}", caps.adapter)));
            }
            if !refused.is_empty() {
                refused += ", ";
            }
            refused += &format!("`{}` is not validated on this adapter", way.name);
        }
        Err(PlanError::UnknownWay {
            op: op.into(),
            way: Way::BASELINE.into(),
            known: ways.iter().map(|w| w.name).collect::<Vec<_>>().join(", "),
        })
    }
}

fn choice(op: &'static str, ways: &[Way], index: usize, reason: String) -> (usize, Choice) {
    let way = ways[index].name;
    (index, Choice { op, way, reason })
}

fn validated(op: &str, way: &str, caps: &Caps) -> bool {
    VALIDATED
        .iter()
        .any(|row| row.op == op && row.way == way && row.backend == caps.backend && caps.adapter.contains(row.adapter))
}

/// A forced way must exist for at least one case of its operator.
pub(super) fn check_forced(op: &str, way: &str, caps: &Caps) -> Result<(), PlanError> {
    let mut known = BTreeSet::new();
    for entry in crate::ops::OPS.iter().filter(|entry| entry.name == op) {
        for case in (entry.cases)() {
            let Ok(output) = case.op.infer(&case.inputs) else {
                continue;
            };
            known.extend(case.op.ways(&case.inputs, &output, caps).iter().map(|w| w.name));
        }
    }
    if known.contains(way) {
        return Ok(());
    }
    let known: Vec<_> = known.into_iter().collect();
    Err(PlanError::UnknownWay {
        op: op.into(),
        way: way.into(),
        known: if known.is_empty() {
            "no ways: it is no operator (see `rotile kernels`)".into()
        } else {
            known.join(", ")
        },
    })
}

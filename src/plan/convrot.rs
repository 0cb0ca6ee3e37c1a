//! How int8 layers with rotated weights run: the fastest path that is validated on the adapter, and why.

use super::Choice;
use crate::gpu::Caps;
use std::fmt;
use std::str::FromStr;

/// A way of multiplying with an int8 layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ConvrotPath {
    /// Activations are rotated and rounded to codes row by row; products of codes are summed in integers.
    Native,
    /// Activations are rotated by an operator; codes are decoded in the product.
    #[default]
    Op,
    /// Activations are rotated by a product with the matrix itself.
    Dense,
    /// Weights are brought back to the true basis in half precision when they are loaded.
    Compat,
}

impl ConvrotPath {
    /// Every path, by the memory and the work that they take, least first.
    pub const ALL: [Self; 4] = [Self::Native, Self::Op, Self::Dense, Self::Compat];

    /// Name on the command line and in metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Op => "op",
            Self::Dense => "dense",
            Self::Compat => "compat",
        }
    }

    /// Why it is not taken by itself, for reasons that no adapter changes.
    const fn drawback(self) -> Option<&'static str> {
        match self {
            Self::Native => Some("rounds activations to 8 bits"),
            Self::Compat => Some("takes twice the memory"),
            _ => None,
        }
    }
}

impl fmt::Display for ConvrotPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which path is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConvrotMode {
    /// The fastest that is validated on the adapter and as exact as the weights.
    #[default]
    Auto,
    /// This one.
    Forced(ConvrotPath),
}

impl FromStr for ConvrotMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        let path = ConvrotPath::ALL
            .into_iter()
            .find(|path| text.eq_ignore_ascii_case(path.name()));
        path.map(Self::Forced)
            .ok_or_else(|| format!("`{text}` is none of auto, native, op, dense, compat"))
    }
}

/// A row of the table: where a path has been compared with the true weights by `tests/convrot_paths.rs` and is the fastest.
struct Fastest {
    path: ConvrotPath,
    backend: &'static str,
    /// Part of the adapter's name.
    adapter: &'static str,
}

/// Rows are added when `tests/convrot_paths.rs` has passed there and `benches/packed.rs` has shown the path to be faster.
const FASTEST: &[Fastest] = &[Fastest {
    path: ConvrotPath::Op,
    backend: "vulkan",
    adapter: "llvmpipe",
}];

impl ConvrotMode {
    /// The path on an adapter, or on the CPU, and on what grounds.
    pub fn resolve(self, caps: Option<&Caps>) -> (ConvrotPath, Choice) {
        let (path, reason) = match self {
            Self::Forced(path) => (path, "forced by --convrot-mode".to_owned()),
            Self::Auto => automatic(caps),
        };
        let choice = Choice {
            op: "convrot",
            way: path.name(),
            reason,
        };
        (path, choice)
    }
}

fn automatic(caps: Option<&Caps>) -> (ConvrotPath, String) {
    let fastest = |caps: &Caps| {
        FASTEST
            .iter()
            .find(|row| row.backend == caps.backend && caps.adapter.contains(row.adapter))
    };
    let (path, grounds) = match caps.and_then(fastest) {
        Some(row) => (row.path, "the fastest that is validated on this adapter"),
        None => (ConvrotPath::Op, "runs everywhere"),
    };
    let refused = ConvrotPath::ALL
        .into_iter()
        .filter(|other| *other != path)
        .map(|other| {
            let why = other.drawback().unwrap_or("is not known to be faster here");
            format!("`{other}` {why}")
        });
    let refused: Vec<_> = refused.collect();
    (path, format!("{grounds}; {}", refused.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_modes_are_refused_by_name() {
        for path in ConvrotPath::ALL {
            assert_eq!(path.name().parse(), Ok(ConvrotMode::Forced(path)));
        }
        assert_eq!("AUTO".parse(), Ok(ConvrotMode::Auto));
        let error = "q8".parse::<ConvrotMode>().expect_err("no such mode");
        assert_eq!(error, "`q8` is none of auto, native, op, dense, compat");
    }

    #[test]
    fn auto_names_every_path_that_it_leaves() {
        for caps in [None, Some(Caps::baseline())] {
            let (path, choice) = ConvrotMode::Auto.resolve(caps.as_ref());
            assert_eq!((path, choice.op), (ConvrotPath::Op, "convrot"));
            for other in ["native", "dense", "compat"] {
                assert!(choice.reason.contains(other), "{}", choice.reason);
            }
        }
    }
}

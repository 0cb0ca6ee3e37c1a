//! Standard output: text for people, or one JSON object.

use anyhow::Result;
use serde_json::Value;
use std::io::{self, Write as _};

/// Writes text and a line break.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes a value on several lines.
pub(crate) fn json(value: &Value) -> Result<()> {
    line(format_args!("{value:#}"))
}

/// A number for JSON, which has no infinity: `null` then.
pub(crate) fn number(value: f64, decimals: i32) -> Value {
    let scale = 10f64.powi(decimals);
    serde_json::json!((value * scale).round() / scale)
}

/// Whether the reader of standard output went away, as `head` does.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// A JSON value as indented text.
pub(crate) fn tree(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let scalar = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let entry = |name: &str, value: &Value, text: &mut String| match value {
        Value::Object(map) if !map.is_empty() => {
            *text += &format!("{indent}{name}\n");
            tree(value, depth + 1, text);
        }
        Value::Array(list) if list.iter().any(|v| v.is_object() || v.is_array()) => {
            *text += &format!("{indent}{name}\n");
            tree(value, depth + 1, text);
        }
        Value::Array(list) => {
            *text += &format!(
                "{indent}{name}: {}\n",
                list.iter().map(scalar).collect::<Vec<_>>().join(", ")
            )
        }
        other => *text += &format!("{indent}{name}: {}\n", scalar(other)),
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| entry(name, value, text)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(i, value)| entry(&i.to_string(), value, text)),
        other => *text += &format!("{indent}{}\n", scalar(other)),
    }
}

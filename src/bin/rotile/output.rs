//! Standard output: text for people, or one JSON object. Files: whole, whatever the moment of a Ctrl-C.

use anyhow::Result;
use rotile::media;
use serde_json::Value;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Held while a file is written.
static WRITING: Mutex<()> = Mutex::new(());

/// Writes a file. [`exit`] waits until it is done.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> Result<()> {
    let _held = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(media::write(path, bytes)?)
}

/// Ends the program from another thread, with no file half written.
pub(crate) fn exit(code: i32) -> ! {
    let _held = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
    std::process::exit(code)
}

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

//! `rotile inspect`.

use crate::args::InspectArgs;
use crate::output;
use anyhow::{Context as _, Result};
use rotile::engine::Engine;
use rotile::media::Image;
use serde_json::{Map, Value, json};
use std::path::Path;

pub(crate) fn run(args: &InspectArgs, as_json: bool) -> Result<()> {
    let path = args.path.as_ref().or(args.model.model.as_ref());
    let found = match path {
        Some(path) if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("png")) => picture(path)?,
        Some(path) => pollster::block_on(Engine::load(path, &args.model.device.options()))?.describe(),
        None => args.model.open()?.describe(),
    };
    if as_json {
        return output::json(&found);
    }
    let mut text = String::new();
    output::tree(&found, 0, &mut text);
    output::line(text.trim_end())
}

/// Size and text chunks of a PNG.
fn picture(path: &Path) -> Result<Value> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| name.clone())?;
    let image = Image::from_bytes(&bytes, &name)?;
    let text: Map<_, _> = Image::png_text(&bytes, &name)?
        .into_iter()
        .map(|(k, v)| (k, v.into()))
        .collect();
    Ok(json!({ "width": image.width(), "height": image.height(), "text": text }))
}

//! `rotile decode`.

use crate::args::DecodeArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, latent, output};
use anyhow::Result;
use rotile::media::{self, Format};
use serde_json::json;

pub(crate) fn run(args: &DecodeArgs, as_json: bool) -> Result<()> {
    let format = Format::of(&args.out.to_string_lossy()).map_err(|e| Usage(e.to_string()))?;
    media::check_writable(&args.out)?;
    let latent = latent::read(&args.latent, &args.tensor)?;
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("decode");
    let mut engine = args.model.open_with(args.vae.options())?;
    let image = pollster::block_on(engine.decode_with(&latent, |event| progress.show(event), &cancel))?;
    let notes = std::mem::take(&mut progress.notes);
    drop(progress);
    output::file(&args.out, &image.to_bytes(format, &[])?)?;
    if as_json {
        return output::json(&json!({
            "file": args.out.to_string_lossy(),
            "width": image.width(),
            "height": image.height(),
            "notes": notes,
        }));
    }
    output::line(args.out.display())
}

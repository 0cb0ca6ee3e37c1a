//! `rotile decode`.

use crate::args::DecodeArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, latent, output};
use anyhow::Result;
use rotile::engine::Event;
use rotile::media::{self, Format};
use serde_json::json;

pub(crate) fn run(args: &DecodeArgs, as_json: bool) -> Result<()> {
    let format = Format::of(&args.out.to_string_lossy()).map_err(|e| Usage(e.to_string()))?;
    media::check_writable(&args.out)?;
    let (latent, size) = latent::read(&args.latent, &args.tensor)?;
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("decode");
    let mut autoencoder = args.model.open()?;
    let mut image = pollster::block_on(autoencoder.decode(&latent, |event| progress.show(event), &cancel))?;
    if let Some((width, height)) = size {
        let missing = [(image.width(), width), (image.height(), height)].map(|(of, n)| of.checked_sub(n));
        // A size of something else is no size of this picture.
        if width > 0
            && height > 0
            && missing
                .iter()
                .all(|n| n.is_some_and(|n| (n as usize) < autoencoder.factor()))
        {
            let note = format!("cropped to {width}x{height}, the size of the picture that was encoded");
            progress.show(Event::Note(note));
            image = image.crop(width, height);
        }
    }
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

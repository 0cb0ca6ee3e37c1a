//! `rotile encode`.

use crate::args::EncodeArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, latent, output};
use anyhow::Result;
use rotile::media;
use serde_json::json;

/// Pixels that a picture is brought to at most: beyond, the memory for it ends the program without a word.
const MAX_PIXELS: u64 = 1 << 28;

pub(crate) fn run(args: &EncodeArgs, as_json: bool) -> Result<()> {
    if args.out.extension().is_none_or(|e| e != "safetensors") {
        return Err(Usage(format!("{}: a latent's name ends in .safetensors", args.out.display())).into());
    }
    if let (Some(width), Some(height)) = (args.width, args.height)
        && u64::from(width) * u64::from(height) > MAX_PIXELS
    {
        return Err(Usage(format!("{width}x{height} is more than {MAX_PIXELS} pixels")).into());
    }
    media::check_writable(&args.out)?;
    let mut image = media::read(&args.image)?;
    if let (Some(width), Some(height)) = (args.width, args.height) {
        image = image.resize(width, height);
    }
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("encode");
    let mut engine = args.model.open_with(args.vae.options())?;
    let latent = pollster::block_on(engine.encode_with(&image, |event| progress.show(event), &cancel))?;
    let notes = std::mem::take(&mut progress.notes);
    drop(progress);
    output::file(&args.out, &latent::to_bytes(&latent)?)?;
    if as_json {
        return output::json(&json!({
            "file": args.out.to_string_lossy(),
            "tensor": latent::NAME,
            "shape": latent.ty.shape.to_vec(),
            "notes": notes,
        }));
    }
    output::line(args.out.display())
}

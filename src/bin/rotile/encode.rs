//! `rotile encode`.

use crate::args::EncodeArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, latent, output};
use anyhow::Result;
use rotile::media::{self, Image};
use serde_json::json;

pub(crate) fn run(args: &EncodeArgs, as_json: bool) -> Result<()> {
    if args.out.extension().is_none_or(|e| e != "safetensors") {
        return Err(Usage(format!("{}: a latent's name ends in .safetensors", args.out.display())).into());
    }
    if let (Some(width), Some(height)) = (args.width, args.height)
        && u64::from(width) * u64::from(height) > Image::MAX_PIXELS
    {
        return Err(Usage(format!("{width}x{height} is more than {} pixels", Image::MAX_PIXELS)).into());
    }
    media::check_writable(&args.out)?;
    let mut image = media::read(&args.image)?;
    if let (Some(width), Some(height)) = (args.width, args.height) {
        image = image.resize(width, height);
    }
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("encode");
    let mut autoencoder = args.model.open()?;
    let latent = pollster::block_on(autoencoder.encode(&image, |event| progress.show(event), &cancel))?;
    let notes = std::mem::take(&mut progress.notes);
    drop(progress);
    let size = (image.width(), image.height());
    output::file(&args.out, &latent::to_bytes(&latent, size, autoencoder.factor())?)?;
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

//! `rotile encode`.

use crate::args::EncodeArgs;
use crate::progress::Progress;
use crate::{latent, output};
use anyhow::Result;
use rotile::media;
use serde_json::json;

pub(crate) fn run(args: &EncodeArgs, as_json: bool) -> Result<()> {
    media::check_writable(&args.out)?;
    let mut image = media::read(&args.image)?;
    if let (Some(width), Some(height)) = (args.width, args.height) {
        image = image.resize(width, height);
    }
    let progress = Progress::new("encode");
    let mut engine = args.model.open()?;
    let latent = pollster::block_on(engine.encode(&image))?;
    drop(progress);
    media::write(&args.out, &latent::to_bytes(&latent)?)?;
    if as_json {
        return output::json(&json!({
            "file": args.out.to_string_lossy(),
            "tensor": latent::NAME,
            "shape": latent.ty.shape.to_vec(),
        }));
    }
    output::line(args.out.display())
}

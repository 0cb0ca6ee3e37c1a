//! `rotile roundtrip`.

use crate::args::RoundtripArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, output};
use anyhow::Result;
use rotile::media::compare::difference;
use rotile::media::{self, Comparison, Format, Image};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(args: &RoundtripArgs, as_json: bool) -> Result<()> {
    let place = |path: &Path| -> Result<Format> {
        let format = Format::of(&path.to_string_lossy()).map_err(|e| Usage(e.to_string()))?;
        media::check_writable(path)?;
        Ok(format)
    };
    let out = args.out.as_deref().map(place).transpose()?;
    let diff = args.diff.as_deref().map(place).transpose()?;
    let image = media::read(&args.image)?;
    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("load");
    let mut autoencoder = args.model.open()?;
    let start = Instant::now();
    let run = autoencoder.round_trip(&image, |event| progress.show(event), &cancel);
    let back = pollster::block_on(run)?;
    let seconds = start.elapsed().as_secs_f64();
    let notes = std::mem::take(&mut progress.notes);
    drop(progress);
    let found = Comparison::of(&image, &back)?;
    let write = |path: Option<&Path>, format: Option<Format>, image: &Image| -> Result<()> {
        match path.zip(format) {
            Some((path, format)) => output::file(path, &image.to_bytes(format, &[])?),
            None => Ok(()),
        }
    };
    write(args.out.as_deref(), out, &back)?;
    if diff.is_some() {
        write(args.diff.as_deref(), diff, &difference(&image, &back)?)?;
    }
    let (device, _) = autoencoder.device();
    if as_json {
        // JSON has no infinity: the PSNR of equal pictures is null.
        return output::json(&json!({
            "psnr": output::number(found.psnr, 4),
            "ssim": output::number(found.ssim, 6),
            "max_difference": found.max,
            "mean_difference": output::number(found.mean, 6),
            "width": image.width(),
            "height": image.height(),
            "model": autoencoder.name(),
            "device": device,
            "seconds": output::number(seconds, 3),
            "notes": notes,
        }));
    }
    output::line(format_args!("PSNR  {:.2} dB", found.psnr))?;
    output::line(format_args!("SSIM  {:.6}", found.ssim))
}

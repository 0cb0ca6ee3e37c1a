//! `rotile compare`.

use crate::args::CompareArgs;
use crate::{Usage, output};
use anyhow::{Result, bail};
use rotile::media::compare::difference;
use rotile::media::{self, Comparison, Format};
use serde_json::json;

pub(crate) fn run(args: &CompareArgs, as_json: bool) -> Result<()> {
    if let Some(diff) = &args.diff {
        Format::of(&diff.to_string_lossy()).map_err(|e| Usage(e.to_string()))?;
        media::check_writable(diff)?;
    }
    let (a, b) = (media::read(&args.a)?, media::read(&args.b)?);
    let found = Comparison::of(&a, &b)?;
    if let Some(diff) = &args.diff {
        let format = Format::of(&diff.to_string_lossy())?;
        output::file(diff, &difference(&a, &b)?.to_bytes(format, &[])?)?;
    }
    if as_json {
        // JSON has no infinity: the PSNR of equal pictures is null.
        output::json(&json!({
            "identical": found.identical(),
            "psnr": output::number(found.psnr, 4),
            "ssim": output::number(found.ssim, 6),
            "max_difference": found.max,
            "mean_difference": output::number(found.mean, 6),
            "width": a.width(),
            "height": a.height(),
        }))?;
    } else {
        let psnr = if found.identical() {
            "identical".into()
        } else {
            format!("{:.2} dB", found.psnr)
        };
        output::line(format_args!("PSNR             {psnr}"))?;
        output::line(format_args!("SSIM             {:.6}", found.ssim))?;
        output::line(format_args!("max difference   {} of 255", found.max))?;
        output::line(format_args!("mean difference  {:.4} of 255", found.mean))?;
    }
    match args.min_psnr {
        Some(least) if found.psnr < least => bail!("PSNR is {:.2} dB, wanted {least} dB", found.psnr),
        _ => Ok(()),
    }
}

//! `rotile generate`.

use crate::args::GenerateArgs;
use crate::progress::Progress;
use crate::{cancel_on_signal, latent, output, proceed};
use anyhow::{Result, bail};
use rotile::diffusion::Rng;
use rotile::engine::{Engine, Request};
use rotile::error::Error;
use rotile::media::{self, Format, Image};
use rotile::tensor::Tensor;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

pub(crate) fn run(args: &GenerateArgs, as_json: bool, verbose: bool) -> Result<()> {
    let out = args
        .out
        .clone()
        .unwrap_or_else(|| format!("rotile-{}.png", args.seed).into());
    let files = numbered(&out, args.batch);
    let latents = match &args.save_latent {
        Some(path) if !path.as_os_str().is_empty() => numbered(path, args.batch),
        _ => files
            .iter()
            .map(|file| file.with_extension("latent.safetensors"))
            .collect(),
    };
    let save = args.save_latent.is_some();
    let format = Format::of(&out.to_string_lossy()).map_err(|e| crate::Usage(e.to_string()))?;
    // Nothing is computed for a place that cannot be written.
    for file in files.iter().chain(latents.iter().filter(|_| save)) {
        media::check_writable(file)?;
    }
    let request = Request {
        cfg_normalization: args.cfg_normalization,
        cfg_truncation: args.cfg_truncation,
        prompt: args.prompt()?.to_owned(),
        negative_prompt: args.negative_prompt.clone(),
        width: args.width,
        height: args.height,
        steps: args.steps,
        guidance: args.guidance,
        seed: args.seed,
        batch: args.batch,
        rng: Rng::from(args.rng),
        init_image: args.init_image.as_deref().map(media::read).transpose()?,
        strength: args.strength,
    };

    let cancel = cancel_on_signal()?;
    let mut progress = Progress::new("load");
    let start = Instant::now();
    let mut engine = args.open()?;
    proceed(&cancel)?;
    let loaded = start.elapsed();
    let result = pollster::block_on(engine.generate(&request, |event| progress.show(event), &cancel));
    let pictures = match result {
        Ok(pictures) => pictures,
        Err(Error::Undecoded { latents: kept, source }) => {
            drop(progress);
            for ((_, latent), file) in kept.iter().zip(&latents) {
                write_latent(&engine, latent, file)?;
                eprintln!("latent kept: {0}; go on with: rotile decode {0}", file.display());
            }
            return Err(Error::Undecoded { latents: kept, source }.into());
        }
        Err(error) => return Err(error.into()),
    };
    let seconds = start.elapsed();
    let notes = std::mem::take(&mut progress.notes);
    drop(progress);
    let (planned, allocated) = engine.bytes();
    let (device, reason) = engine.device();
    if verbose {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        eprintln!(
            "device: {device}; {reason}\nmemory: {planned}; allocated {:.2} MiB",
            mib(allocated.total())
        );
        if let Some(engaged) = engine.engaged() {
            let of = engaged
                .budget
                .map_or("an unknown amount".into(), |b| format!("{:.2} MiB", mib(b.bytes)));
            eprintln!(
                "tier: {}; {:.2} MiB at most of {of}",
                engaged.tier.name(),
                mib(engaged.peak)
            );
        }
        for file in &engine.adapters().files {
            for line in &file.lines {
                let targets = line.targets.join(", ");
                eprintln!(
                    "lora: {} ({}): {} {targets}",
                    line.module,
                    line.kind,
                    line.status.name()
                );
            }
        }
        for choice in engine.choices() {
            eprintln!("kernel: {}={}: {}", choice.op, choice.way, choice.reason);
        }
    }

    // All are encoded before the first is written.
    let encode = |image: &Image, text: &[(String, String)]| image.to_bytes(format, text);
    let encoded = pictures
        .iter()
        .map(|p| encode(&p.image, &p.settings))
        .collect::<Result<Vec<_>, _>>()?;
    let mut list = Vec::new();
    for (((picture, file), bytes), latent) in pictures.iter().zip(&files).zip(encoded).zip(&latents) {
        proceed(&cancel)?;
        output::file(file, &bytes)?;
        if save {
            write_latent(&engine, &picture.latent, latent)?;
        }
        if !as_json {
            output::line(file.display())?;
        }
        let settings: Map<_, _> = picture
            .settings
            .iter()
            .map(|(k, v)| (k.clone(), Value::from(v.as_str())))
            .collect();
        list.push(json!({
            "file": file.to_string_lossy(),
            "latent": save.then(|| latent.to_string_lossy()),
            "width": picture.image.width(),
            "height": picture.image.height(),
            "seed": picture.seed,
            "settings": settings,
        }));
    }
    if as_json {
        output::json(&json!({
            "pictures": list,
            "notes": notes,
            "adapters": engine.adapters().files,
            "device": device,
            "device_reason": reason,
            "bytes": { "planned": planned.total(), "allocated": allocated.total() },
            "memory": engine.engaged().map(|engaged| json!({
                "tier": engaged.tier.name(),
                "peak": engaged.peak,
                "driver": engaged.added,
                "budget": engaged.budget.map(|budget| budget.bytes),
                "capped": engaged.budget.is_some_and(|budget| budget.cap),
            })),
            "seconds": {
                "load": output::number(loaded.as_secs_f64(), 3),
                "generate": output::number((seconds - loaded).as_secs_f64(), 3),
            },
        }))?;
    }
    Ok(())
}

/// Writes a latent that `rotile decode` takes up again.
fn write_latent(engine: &Engine, latent: &Tensor, file: &Path) -> Result<()> {
    let factor = engine.factor();
    let [.., height, width] = latent.ty.shape[..] else {
        bail!("a latent has shape [1, c, h, w], not {}", latent.ty.shape);
    };
    let size = ((width * factor) as u32, (height * factor) as u32);
    output::file(file, &latent::to_bytes(latent, size, factor)?)
}

/// `a.png` for one picture, `a-1.png`, `a-2.png` for two.
fn numbered(out: &Path, batch: u32) -> Vec<PathBuf> {
    if batch == 1 {
        return vec![out.to_owned()];
    }
    let stem = out.file_stem().unwrap_or_default();
    let name = |i| {
        // Pieces of the name as they are: they may be no Unicode.
        let mut name = stem.to_owned();
        name.push(format!("-{i}"));
        if let Some(ending) = out.extension() {
            name.push(".");
            name.push(ending);
        }
        out.with_file_name(name)
    };
    (1..=batch).map(name).collect()
}

//! `rotile convert`.

use crate::args::ConvertArgs;
use crate::progress::Progress;
use crate::{Usage, cancel_on_signal, output};
use anyhow::Result;
use rotile::Error;
use rotile::checkpoint::Checkpoint;
use rotile::convert::{Container, Conversion, Planned, WeightType};
use rotile::media;
use serde_json::json;
use std::collections::BTreeMap;

pub(crate) fn run(args: &ConvertArgs, as_json: bool) -> Result<()> {
    let name = args.output.display().to_string();
    let container = Container::of(&name).ok_or_else(|| Usage(format!("{name}: name it .safetensors or .gguf")))?;
    if args.input.join("model_index.json").is_file() {
        let part = args.input.join("transformer");
        return Err(Usage(format!(
            "{} is a whole model: convert its parts one by one, such as {}",
            args.input.display(),
            part.display()
        ))
        .into());
    }
    let target = match args.to {
        WeightType::ConvrotInt8 { group } => WeightType::ConvrotInt8 {
            group: args.group_size.unwrap_or(group),
        },
        other if args.group_size.is_some() => {
            return Err(Usage(format!("--group-size is for convrot-int8, not {other}")).into());
        }
        other => other,
    };
    let cancel = cancel_on_signal()?;
    let checkpoint = Checkpoint::open(&args.input)?;
    let conversion = Conversion::plan(&checkpoint, target, container)?;
    let progress = Progress::new("convert");
    media::write_file_with(&args.output, |file| {
        conversion.write(file, &mut |at| progress.bytes(at.of, at.bytes), &cancel)?;
        Ok::<_, Error>(())
    })?;
    drop(progress);
    report(&conversion, &name, as_json)
}

fn report(conversion: &Conversion<'_>, name: &str, as_json: bool) -> Result<()> {
    let tensors = conversion.tensors();
    let before: u64 = tensors.iter().map(|p| p.info.byte_len() as u64).sum();
    let mut fates: BTreeMap<String, usize> = BTreeMap::new();
    for planned in tensors {
        *fates.entry(planned.fate.to_string()).or_default() += 1;
    }
    if as_json {
        let line = |p: &Planned<'_>| json!({ "name": p.info.stored, "fate": p.fate.to_string(), "reason": p.reason });
        return output::json(&json!({
            "file": name,
            "bytes": conversion.byte_len(),
            "bytes_before": before,
            "tensors": tensors.iter().map(line).collect::<Vec<_>>(),
        }));
    }
    for planned in tensors {
        if let Some(reason) = &planned.reason {
            output::line(format_args!("{}: {}: {reason}", planned.info.stored, planned.fate))?;
        }
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let counts: Vec<_> = fates.iter().map(|(fate, count)| format!("{count} {fate}")).collect();
    output::line(format_args!(
        "{name}: {} tensors ({}), {:.2} MiB from {:.2}",
        tensors.len(),
        counts.join("; "),
        mib(conversion.byte_len()),
        mib(before)
    ))
}

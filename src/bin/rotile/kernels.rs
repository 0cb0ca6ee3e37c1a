//! `rotile kernels`.

use crate::args::{KernelsAction, KernelsArgs};
use crate::{Usage, output};
use anyhow::Result;
use rotile::gpu::Caps;
use rotile::gpu::wgsl::KernelSpec;
use rotile::ops::OPS;
use serde_json::json;
use std::collections::BTreeMap;

/// Kernels by name, each with the operators and ways that launch it.
type Kernels = BTreeMap<String, (KernelSpec, Vec<(&'static str, &'static str)>)>;

pub(crate) fn run(args: &KernelsArgs, as_json: bool) -> Result<()> {
    let kernels = kernels()?;
    if let Some(KernelsAction::Show { spec }) = &args.action {
        return show(&kernels, &spec.join(" "), as_json);
    }
    let users = |users: &[(&str, &str)]| users.iter().map(|(op, way)| format!("{op}={way}")).collect::<Vec<_>>();
    if as_json {
        let list: Vec<_> = kernels
            .iter()
            .map(|(name, (_, by))| json!({ "kernel": name, "ways": users(by) }))
            .collect();
        return output::json(&json!({ "kernels": list }));
    }
    let by: Vec<_> = kernels.values().map(|(_, by)| users(by).join(" ")).collect();
    // A few kernels have many users: those lines are longer.
    let width = by.iter().map(String::len).max().unwrap_or(0).min(32);
    for (by, name) in by.iter().zip(kernels.keys()) {
        output::line(format_args!("{by:<width$}  {name}"))?;
    }
    Ok(())
}

fn show(kernels: &Kernels, wanted: &str, as_json: bool) -> Result<()> {
    let mut fitting: Vec<_> = kernels.iter().filter(|(name, _)| name.starts_with(wanted)).collect();
    if let Some(exact) = kernels.get_key_value(wanted) {
        fitting = vec![exact];
    }
    let [(name, (spec, _))] = fitting[..] else {
        let names: Vec<_> = fitting.iter().map(|(name, _)| format!("\n  {name}")).collect();
        return Err(match names.len() {
            0 => Usage(format!("no kernel `{wanted}`; `rotile kernels` lists them")),
            n => Usage(format!("{n} kernels begin with `{wanted}`:{}", names.concat())),
        }
        .into());
    };
    let linked = spec.link()?;
    if as_json {
        let overrides: BTreeMap<_, _> = linked.overrides.iter().copied().collect();
        return output::json(&json!({ "kernel": name, "overrides": overrides, "wgsl": linked.text }));
    }
    for (name, value) in &linked.overrides {
        output::line(format_args!("// override {name} = {value}"))?;
    }
    output::line(linked.text.trim_end())
}

/// Every kernel that the cases of the operators launch on adapters with all features: a GPU and a software adapter.
fn kernels() -> Result<Kernels> {
    let gpu = Caps {
        f16: true,
        subgroups: true,
        packed_dot: true,
        ..Caps::baseline()
    };
    let software = Caps {
        software: true,
        subgroup_size: (8, 8),
        ..gpu.clone()
    };
    let mut kernels = Kernels::new();
    for (caps, entry) in [gpu, software]
        .iter()
        .flat_map(|caps| OPS.iter().map(move |entry| (caps, entry)))
    {
        for case in (entry.cases)() {
            let output = case.op.infer(&case.inputs)?;
            for way in case.op.ways(&case.inputs, &output, caps) {
                for launch in way.launches {
                    let (_, users) = kernels
                        .entry(launch.kernel.to_string())
                        .or_insert((launch.kernel, Vec::new()));
                    if !users.contains(&(entry.name, way.name)) {
                        users.push((entry.name, way.name));
                    }
                }
            }
        }
    }
    Ok(kernels)
}

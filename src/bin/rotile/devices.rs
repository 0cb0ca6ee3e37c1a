//! `rotile devices`.

use crate::args::DevicesArgs;
use crate::output;
use anyhow::Result;
use rotile::engine::DeviceChoice;
use rotile::gpu::{Adapter, AdapterChoice, Caps, adapters, choose};
use rotile::op::Way;
use rotile::ops::OPS;
use rotile::plan::{Choice, Policy};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(crate) fn run(args: &DevicesArgs, as_json: bool, verbose: bool) -> Result<()> {
    let options = args.device.options();
    let list = pollster::block_on(adapters());
    let chosen = chosen(&list, &options.device)?;
    let reason = match (&chosen, &options.device) {
        (Some((_, reason)), _) => reason.as_str(),
        (None, DeviceChoice::Cpu) => "asked for",
        (None, _) => "there is no GPU adapter",
    };
    let used = chosen.as_ref().map_or("cpu".into(), |(index, _)| index.to_string());
    let mut choices = match (&chosen, verbose) {
        (Some((index, _)), true) => ways(&list[*index].caps.limited(&options.limits), &options.kernels)?,
        _ => BTreeSet::new(),
    };
    if verbose {
        let caps = chosen.as_ref().map(|(index, _)| &list[*index].caps);
        choices.insert(options.convrot.resolve(caps).1);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if as_json {
        return output::json(&json!({
            "adapters": list.iter().enumerate().map(|(i, a)| describe(i, a)).collect::<Vec<_>>(),
            "cpu": { "threads": threads },
            "used": used,
            "reason": reason,
            "kernels": choices.iter().map(|c| json!({ "op": c.op, "way": c.way, "reason": c.reason })).collect::<Vec<_>>(),
        }));
    }
    for (index, adapter) in list.iter().enumerate() {
        text(index, adapter)?;
    }
    output::line(format_args!("cpu: {threads} threads"))?;
    output::line(format_args!("\nused: {used} ({reason})"))?;
    for choice in choices {
        output::line(format_args!("  {}={}: {}", choice.op, choice.way, choice.reason))?;
    }
    Ok(())
}

/// Index of the adapter that would be opened, and why; `None` is the CPU.
pub(crate) fn chosen(list: &[Adapter], device: &DeviceChoice) -> rotile::Result<Option<(usize, String)>> {
    // A wish that nothing fits is an error; without a wish, no adapter at all is a finding.
    let choice = match device {
        DeviceChoice::Cpu => return Ok(None),
        DeviceChoice::Auto if list.is_empty() => return Ok(None),
        DeviceChoice::Auto => &AdapterChoice::Best,
        DeviceChoice::Gpu(choice) => choice,
    };
    Ok(Some(choose(list, choice)?))
}

/// The way that each operator runs, over all the shapes of its cases.
fn ways(caps: &Caps, forced: &[(String, String)]) -> Result<BTreeSet<Choice>> {
    let policy = Policy {
        forced: forced.to_vec(),
        ..Policy::default()
    };
    let mut found = BTreeSet::new();
    for entry in OPS {
        for case in (entry.cases)() {
            let output = case.op.infer(&case.inputs)?;
            let ways: Vec<Way> = case.op.ways(&case.inputs, &output, caps);
            let (_, choice) = policy.choose(entry.name, &ways, caps).map_err(rotile::Error::from)?;
            found.insert(choice);
        }
    }
    Ok(found)
}

fn features(caps: &Caps) -> Vec<&'static str> {
    let all = [
        ("shader-f16", caps.f16),
        ("subgroups", caps.subgroups),
        ("packed dot products", caps.packed_dot),
    ];
    all.into_iter().filter_map(|(name, has)| has.then_some(name)).collect()
}

fn describe(index: usize, adapter: &Adapter) -> Value {
    let caps = &adapter.caps;
    json!({
        "index": index,
        "name": caps.adapter,
        "kind": adapter.kind.name(),
        "backend": caps.backend,
        "driver": caps.driver,
        "features": features(caps),
        "subgroup_size": [caps.subgroup_size.0, caps.subgroup_size.1],
        "limits": {
            "max_buffer_size": caps.max_buffer,
            "max_storage_buffer_binding_size": caps.max_binding,
            "max_compute_workgroups_per_dimension": caps.max_workgroups,
            "max_compute_workgroup_storage_size": caps.workgroup_memory,
            "max_compute_invocations_per_workgroup": caps.workgroup_invocations,
        },
    })
}

fn text(index: usize, adapter: &Adapter) -> Result<()> {
    let (caps, mib) = (&adapter.caps, 1 << 20);
    output::line(format_args!(
        "{index}: {} ({}, {})",
        caps.adapter,
        adapter.kind.name(),
        caps.backend
    ))?;
    if !caps.driver.is_empty() {
        output::line(format_args!("   driver    {}", caps.driver))?;
    }
    let features = match features(caps) {
        list if list.is_empty() => "none that is used".into(),
        list => list.join(", "),
    };
    output::line(format_args!(
        "   features  {features}; subgroups of {} to {}",
        caps.subgroup_size.0, caps.subgroup_size.1
    ))?;
    output::line(format_args!(
        "   limits    buffer {} MiB, binding {} MiB, workgroup {} invocations and {} KiB, {} workgroups per axis",
        caps.max_buffer / mib,
        caps.max_binding / mib,
        caps.workgroup_invocations,
        caps.workgroup_memory >> 10,
        caps.max_workgroups,
    ))
}

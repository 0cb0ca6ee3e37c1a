//! Every kernel variant links, parses, validates and translates; parameters and bindings match; limits hold; no dead files.
//! Needs no GPU.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use rotile::gpu::Caps;
use rotile::gpu::wgsl::{Dialect, KernelSpec, LIBRARY, Linked};
use rotile::op::{Launch, Way};
use rotile::ops::OPS;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

struct Variant {
    launch: Launch,
    baseline: bool,
}

/// Every distinct kernel that the cases of the op table lead to, on several kinds of adapter.
fn variants() -> BTreeMap<String, Variant> {
    let rich = Caps {
        f16: true,
        subgroups: true,
        packed_dot: true,
        subgroup_size: (32, 32),
        workgroup_memory: 32_768,
        workgroup_invocations: 1024,
        ..Caps::baseline()
    };
    let software = Caps {
        software: true,
        subgroup_size: (8, 8),
        ..rich.clone()
    };
    let mut found = BTreeMap::new();
    for caps in [Caps::baseline(), rich, software] {
        for entry in OPS {
            for case in (entry.cases)() {
                let output = case.op.infer(&case.inputs).expect("a case fits its operator");
                let ways = case.op.ways(&case.inputs, &output, &caps);
                let baselines = ways.iter().filter(|w| w.name == Way::BASELINE).count();
                assert_eq!(baselines, 1, "{}: one way is the baseline", entry.name);
                for way in ways {
                    for launch in way.launches {
                        let baseline = way.name == Way::BASELINE;
                        let variant = Variant { launch, baseline };
                        found.insert(variant.launch.kernel.to_string(), variant);
                    }
                }
            }
        }
    }
    found
}

fn link(kernel: &KernelSpec, dialect: Dialect) -> Linked {
    kernel.link_for(dialect).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_variant_validates_and_translates() {
    let variants = variants();
    for (name, variant) in &variants {
        let linked = link(&variant.launch.kernel, Dialect::Naga);
        let module = naga::front::wgsl::parse_str(&linked.text)
            .unwrap_or_else(|e| panic!("{name}\n{}", e.emit_to_string(&linked.text)));
        let validate = |module: &naga::Module| {
            naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all())
                .validate(module)
                .unwrap_or_else(|e| panic!("{name}\n{}", e.emit_to_string(&linked.text)))
        };
        let info = validate(&module);
        check_bindings(name, &module, &variant.launch);

        let values = linked.overrides.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect();
        let (module, _) = naga::back::pipeline_constants::process_overrides(&module, &info, None, &values)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let info = validate(&module);
        check_limits(name, &module, variant);
        translate(name, &module, &info);
    }
    println!("{} kernel variants, each to SPIR-V, MSL and HLSL", variants.len());
}

/// `Params` in the shader and in Rust agree in size, and each storage binding is one of the launch.
fn check_bindings(name: &str, module: &naga::Module, launch: &Launch) {
    let mut bound = BTreeSet::new();
    for (_, variable) in module.global_variables.iter() {
        let Some(binding) = &variable.binding else { continue };
        assert_eq!(binding.group, 0, "{name}: one bind group");
        if binding.binding == 0 {
            let size = module.types[variable.ty].inner.size(module.to_ctx()) as usize;
            assert_eq!(size, launch.params.len(), "{name}: size of Params");
            continue;
        }
        let naga::AddressSpace::Storage { access } = variable.space else {
            panic!("{name}: binding {} is no storage buffer", binding.binding)
        };
        let written = access.contains(naga::StorageAccess::STORE);
        assert_eq!(
            written,
            binding.binding == 1,
            "{name}: binding 1 is written, the others are read"
        );
        bound.insert(binding.binding);
    }
    let given: BTreeSet<u32> = launch.operands.iter().map(|(n, _)| *n).collect();
    assert_eq!(bound, given, "{name}: bindings of the shader and of the launch");
}

fn check_limits(name: &str, module: &naga::Module, variant: &Variant) {
    let limits = Caps::baseline();
    assert!(variant.launch.operands.len() <= 8, "{name}: over 8 storage buffers");
    if !variant.baseline {
        return;
    }
    let group: u32 = module.entry_points[0].workgroup_size.iter().product();
    assert!(group <= limits.workgroup_invocations, "{name}: {group} invocations");
    let memory: u32 = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup)
        .map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx()))
        .sum();
    assert!(
        memory <= limits.workgroup_memory,
        "{name}: {memory} bytes of workgroup memory"
    );
    let text = link(&variant.launch.kernel, Dialect::Web).text;
    assert!(
        !text.contains("enable subgroups"),
        "{name}: a baseline needs no features"
    );
}

fn translate(name: &str, module: &naga::Module, info: &naga::valid::ModuleInfo) {
    use naga::back::{hlsl, msl, spv};
    spv::write_vec(module, info, &spv::Options::default(), None).unwrap_or_else(|e| panic!("{name}: SPIR-V: {e}"));
    let options = msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        ..Default::default()
    };
    msl::write_string(module, info, &options, &msl::PipelineOptions::default())
        .unwrap_or_else(|e| panic!("{name}: MSL: {e}"));
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_2,
        fake_missing_bindings: true,
        ..Default::default()
    };
    let mut text = String::new();
    hlsl::Writer::new(&mut text, &options, &hlsl::PipelineOptions::default())
        .write(module, info, None)
        .unwrap_or_else(|e| panic!("{name}: HLSL: {e}"));
}

/// Tint is what browsers use. CI requires it.
#[test]
fn tint_accepts_every_variant() {
    let found = std::process::Command::new("tint").arg("--help").output().is_ok();
    if !found {
        assert!(
            !support::required("REQUIRE_TINT"),
            "REQUIRE_TINT is set, but there is no tint on the PATH"
        );
        println!("skipped: no tint on the PATH");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let variants = variants();
    for (i, (name, variant)) in variants.iter().enumerate() {
        let file = folder.path().join(format!("{i}.wgsl"));
        let linked = link(&variant.launch.kernel, Dialect::Web);
        std::fs::write(&file, &linked.text).expect("a writable folder");
        let output = std::process::Command::new("tint")
            .args(["--format", "wgsl"])
            .arg(&file)
            .output()
            .expect("tint runs");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}\n{message}");
    }
    println!("{} kernel variants accepted by tint", variants.len());
}

#[test]
fn no_dead_files() {
    let mut used = BTreeSet::new();
    for variant in variants().values() {
        used.extend(
            variant
                .launch
                .kernel
                .files()
                .expect("links")
                .iter()
                .map(|f| format!("{}.wgsl", f.path)),
        );
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut there = BTreeSet::new();
    walk(&root.join("wgsl"), &mut |path| {
        let relative = path.strip_prefix(root.join("wgsl")).expect("below wgsl");
        there.insert(relative.to_string_lossy().replace('\\', "/"));
    });
    assert_eq!(
        there, used,
        "files under wgsl/ (left) and files that a case uses (right)"
    );
    for file in LIBRARY {
        assert!(
            used.contains(&format!("{}.wgsl", file.path)),
            "{} is in LIBRARY but unused",
            file.path
        );
    }

    let table = std::fs::read_to_string(root.join("src/ops/mod.rs")).expect("the op table");
    walk(&root.join("src/ops"), &mut |path| {
        let text = std::fs::read_to_string(path).expect("a source file");
        for line in text.lines().filter_map(|l| l.strip_prefix("impl Op for ")) {
            let op = line.trim_end_matches(" {");
            assert!(
                table.contains(&format!("OpEntry::of::<{op}>(")),
                "{op} has no row in the op table"
            );
        }
    });
}

#[test]
fn names_of_rows_and_ops_agree() {
    for entry in OPS {
        let cases = (entry.cases)();
        assert!(!cases.is_empty(), "{} has no cases", entry.name);
        assert!(cases.iter().all(|c| c.op.name() == entry.name), "{}", entry.name);
    }
}

#[test]
fn a_kernel_that_names_what_is_not_there_is_refused() {
    let kernel = variants().into_values().next().expect("a kernel").launch.kernel;
    let refused = |kernel: KernelSpec| kernel.link().expect_err("refused").to_string();
    assert!(refused(kernel.clone().slot("elem", "f64")).contains("slot/elem/f64"));
    assert!(refused(kernel.clone().slot("nothing", "f32")).contains("`nothing` is filled but not used"));
    assert!(refused(kernel.set("NO_SUCH", 1)).contains("`NO_SUCH`"));
}

fn walk(folder: &Path, visit: &mut dyn FnMut(&Path)) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, visit);
        } else {
            visit(&path);
        }
    }
}

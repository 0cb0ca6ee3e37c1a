//! ConvRot int8 layers against what comfy-kitchen computes (`goldens/scripts/gen_convrot.py`), file by file and path by path.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;
#[path = "support/vectors.rs"]
mod vectors;

use proptest::prelude::*;
use rotile::checkpoint::{Checkpoint, CheckpointError, FileDType};
use rotile::quant::convrot::{Audit, Marker, reconstruct};
use rotile::quant::rotation::{self, entry, matrix, quantize_row, rotate};
use rotile::tensor::{DType, decode};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use vectors::{Parts, Vectors, bits, written};

#[test]
fn the_matrix_is_theirs_to_the_bit() {
    let vectors = Vectors::open("hadamard");
    for group in [4, 16, 64] {
        assert_eq!(
            bits(&matrix(group)),
            bits(&vectors.floats(&format!("ck.H{group}"))),
            "{group}"
        );
    }
    let rows = |group: usize, name: &str, rows: &[usize]| {
        let want = vectors.floats(name);
        assert_eq!(want.len(), rows.len() * group);
        for (row, want) in rows.iter().zip(want.chunks_exact(group)) {
            let got: Vec<f32> = (0..group).map(|j| entry(group, *row, j)).collect();
            assert_eq!(bits(&got), bits(want), "{name}, row {row}");
        }
    };
    rows(256, "ck.H256.rows", &(0..256).step_by(15).collect::<Vec<_>>());
    rows(1024, "ck.H1024.first2rows", &[0, 1]);
    rows(1024, "ck.H1024.row_1023", &[1023]);
    // The rotation of a unit vector is a row of the matrix.
    let vectors = Vectors::open("rotation");
    let mut one_hot = vectors.floats("in.onehot16");
    rotate(&mut one_hot, 256);
    assert_eq!(
        bits(&one_hot),
        bits(&vectors.floats("ck.rotate_activation.onehot16.g256"))
    );
}

/// Largest error in units of `sum |x| / sqrt(group)` over the group that it lies in.
fn rotation_error(got: &[f32], want: &[f64], x: &[f32], group: usize) -> f64 {
    let mut worst = 0.0f64;
    for ((got, want), x) in got.chunks(group).zip(want.chunks(group)).zip(x.chunks(group)) {
        let unit = x.iter().map(|v| f64::from(v.abs())).sum::<f64>() / (group as f64).sqrt();
        for (g, w) in got.iter().zip(want) {
            let error = (f64::from(*g) - w).abs();
            worst = worst.max(if error == 0.0 { 0.0 } else { error / unit });
        }
    }
    worst
}

#[test]
fn rotations_are_theirs() {
    let vectors = Vectors::open("rotation");
    let turned = |name: &str, group: usize| {
        let x = vectors.floats(name);
        let mut y = x.clone();
        rotate(&mut y, group);
        (x, y)
    };
    for group in [4, 16, 64, 256] {
        let (x, y) = turned("in.x_f32", group);
        let theirs = vectors.wide(&format!("ck.rotate_activation.f32.g{group}"));
        let exact = vectors.wide(&format!("ref64.rotate.g{group}"));
        let [a, b] = [&theirs, &exact].map(|want| rotation_error(&y, want, &x, group));
        println!("rotation of activations, group {group}: {a:.1e} from theirs, {b:.1e} from f64");
        assert!(a <= 5e-7 && b <= 3.1e-7, "{group}: {a:.1e}, {b:.1e}");

        let (x, y) = turned("in.x_f16", group);
        let theirs = vectors.wide(&format!("ck.rotate_activation.f16.g{group}"));
        let error = rotation_error(&y, &theirs, &x, group);
        assert!(error <= 2e-3, "f16, {group}: {error:.1e}");
    }
    for group in [16, 64, 256, 1024] {
        let (x, y) = turned("in.w_f32", group);
        let theirs = vectors.wide(&format!("ck.rotate_weight.f32.g{group}"));
        let error = rotation_error(&y, &theirs, &x, group);
        println!("rotation of weights, group {group}: {error:.1e} from theirs");
        assert!(error <= 5e-7, "{group}: {error:.1e}");
    }
}

/// Codes and scales of rows of `k` values, turned in groups where there are any.
fn quantized(values: &[f32], k: usize, group: Option<usize>) -> (Vec<i8>, Vec<f32>, Vec<f32>) {
    let mut values = values.to_vec();
    if let Some(group) = group {
        rotate(&mut values, group);
    }
    let mut codes = vec![0; values.len()];
    let rows = values.chunks_exact(k).zip(codes.chunks_exact_mut(k));
    let scales = rows.map(|(row, codes)| quantize_row(row, codes)).collect();
    (codes, scales, values)
}

#[test]
fn weight_codes_are_theirs() {
    let vectors = Vectors::open("weight_quant");
    let k = 512;
    let w = vectors.floats("in.W_f32");
    for (group, name) in [
        (Some(16), "g16"),
        (Some(64), "g64"),
        (Some(256), "g256"),
        (None, "norot_row"),
    ] {
        let (codes, scales, turned) = quantized(&w, k, group);
        let theirs = vectors.floats(&format!("ck.q.f32.{name}"));
        let their_scales = vectors.floats(&format!("ck.scale.f32.{name}"));
        let mut ties = 0;
        for (i, (code, want)) in codes.iter().zip(&theirs).enumerate() {
            let (difference, ratio) = ((f32::from(*code) - want).abs(), turned[i] / scales[i / k]);
            let tie = ((ratio - ratio.floor()) - 0.5).abs() < 1e-4;
            ties += usize::from(difference == 1.0);
            assert!(
                difference == 0.0 || (difference == 1.0 && tie),
                "{name}, {i}: {code}, theirs {want}"
            );
        }
        let worst = scales
            .iter()
            .zip(&their_scales)
            .map(|(a, b)| ((a - b) / b).abs())
            .fold(0.0, f32::max);
        println!(
            "weight codes, {name}: {ties} of {} one off at ties, scales {worst:.1e} off",
            codes.len()
        );
        assert!(worst <= 1e-6, "{name}: {worst:.1e}");
        assert_eq!(scales[0], rotation::MIN_SCALE, "a row of zeros");
    }
    // Their codes of f16 and bf16 weights are rounded in that type: one off at most.
    for dtype in ["f16", "bf16"] {
        let (codes, scales, _) = quantized(&vectors.floats(&format!("in.W_{dtype}")), k, Some(256));
        let theirs = vectors.floats(&format!("ck.q.{dtype}.g256"));
        let mut count = 0;
        for (i, (code, want)) in codes.iter().zip(&theirs).enumerate() {
            // They rotate, and divide by the scale, in that type: rows of values near its limits come out otherwise.
            if dtype == "f16" && !(6.2e-5..400.0).contains(&scales[i / k]) {
                continue;
            }
            let off = (f32::from(*code) - want).abs();
            count += usize::from(off > 0.0);
            assert!(off <= 1.0, "{dtype}, {i}: {code}, theirs {want}");
        }
        println!("weight codes of {dtype} weights: {count} of {} one off", codes.len());
    }
}

#[test]
fn weights_are_reconstructed_as_theirs() {
    let vectors = Vectors::open("weight_quant");
    let (_, shape, codes) = vectors.raw("ck.q.f32.g256");
    let k = shape[1];
    let scales = vectors.floats("ck.scale.f32.g256");
    let got = reconstruct(&codes, k, &scales, Some(256));
    let want = vectors.wide("ck.dequant_f32.f32.g256");
    // Rows differ by many orders of magnitude, so each is compared by its own scale.
    for (row, (got, want)) in got.chunks_exact(k).zip(want.chunks_exact(k)).enumerate() {
        let largest = want
            .iter()
            .fold(0.0f64, |m, v| m.max(v.abs()))
            .max(f64::from(scales[row]));
        let worst = got
            .iter()
            .zip(want)
            .map(|(g, w)| (f64::from(*g) - w).abs())
            .fold(0.0, f64::max);
        assert!(worst <= 1e-6 * largest, "row {row}: {worst:e} of {largest:e}");
    }
    for (dtype, name) in [(DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "f32")] {
        let want = vectors.floats(&format!("ck.dequant_dtype.{name}.g256"));
        let got = rotile::tensor::Tensor::new([24, k], got.clone()).to_dtype(dtype);
        let off = got
            .data
            .iter()
            .zip(&want)
            .filter(|(g, w)| g != w && (*g - *w).abs() > 8e-3 * w.abs())
            .count();
        // A value near zero may round the other way.
        assert!(off <= got.data.len() / 100, "{name}: {off} values differ");
    }
    let ids = vectors.wide("in.embedding_indices");
    let rows: Vec<f32> = ids
        .iter()
        .flat_map(|id| got[*id as usize * k..][..k].to_vec())
        .collect();
    let want = vectors.floats("ck.dequant_embedding.f32.g256");
    let worst = rows.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-6, "{worst:e}");
    assert_eq!(vectors.shape("ck.dequant_embedding.f32.g256"), [2, 2, k]);
}

#[test]
fn scales_are_audited_as_f16_would_have_them() {
    let table = Vectors::open("q8_0");
    let (scales, bits) = (table.floats("scale_table.f32"), table.wide("scale_table.f16_bits"));
    for (scale, bits) in scales.iter().zip(bits) {
        let audit = Audit::of(&[*scale]);
        let bits = bits as i64 as u16;
        let empty = *scale <= rotation::MIN_SCALE;
        assert_eq!(audit.zero == 1, bits == 0 && !empty, "{scale:e}");
        assert_eq!(audit.infinite == 1, bits == 0x7c00, "{scale:e}");
        assert_eq!(audit.subnormal == 1, (1..0x400).contains(&bits), "{scale:e}");
    }
    let audit = Audit::of(&Vectors::open("linear").floats("ck.scale.g256"));
    println!("scales of the test layer in f16: {audit:?}");
    assert!(audit.worst <= 4.9e-4 && audit.subnormal + audit.zero + audit.infinite == 0);
}

const LAYER: &str = "model.diffusion_model.blocks.0.attn.qkv_proj";

fn parts_of(path: &PathBuf) -> Parts {
    let bytes = std::fs::read(path).expect("there");
    let file = SafeTensors::deserialize(&bytes).expect("valid");
    let tensors = file.tensors().into_iter();
    tensors
        .map(|(n, t)| (n, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect()
}

/// What a file does: the error, or the marker and how far the values are from those of `native_g256`.
fn outcome(checkpoint: Result<Checkpoint, CheckpointError>) -> String {
    let checkpoint = match checkpoint {
        Ok(checkpoint) => checkpoint,
        Err(error) => return error.to_string(),
    };
    let Some(info) = checkpoint.tensors().find(|t| t.dtype == FileDType::Weight(DType::I8)) else {
        return "no codes".into();
    };
    let Marker {
        group,
        full_precision,
        experts,
    } = info.int8().expect("a layer").marker;
    let values = match checkpoint.load(&info.name, DType::F32) {
        Ok(values) => values,
        Err(error) => return error.to_string(),
    };
    let expected = Vectors::open("fixtures/expected_native_g256");
    let reference = match experts {
        Some(_) => "in.moe_W_f32",
        None => "in.W_f32",
    };
    let largest = values.data.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let off = support::relative_rms(&values.data, &expected.floats(reference));
    let close = if off < 0.02 {
        "the weight".into()
    } else {
        format!("up to {largest:.1e}")
    };
    let rest = checkpoint.tensors().filter(|t| t.name.contains("comfy_quant")).count();
    assert_eq!(rest, 0, "markers are taken out");
    format!(
        "group {} {close}{}{}",
        group.map_or("none".into(), |g| g.to_string()),
        if full_precision { ", full precision" } else { "" },
        experts.map_or(String::new(), |e| format!(", {e} experts")),
    )
}

/// Every file of the fixtures, and those that differ from `native_g256` in the marker or the header only.
#[test]
fn files_are_read_or_refused_as_specified() {
    let mut found = BTreeMap::new();
    for kind in ["valid", "malformed"] {
        let folder = fixtures::path("convrot/fixtures").join(kind);
        for entry in std::fs::read_dir(&folder).expect("there") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let bytes = std::fs::read(&path).expect("there");
            let checkpoint = Checkpoint::from_bytes(&format!("{name}.safetensors"), bytes.into());
            found.insert(format!("{kind}/{name}"), outcome(checkpoint));
        }
    }
    let native = parts_of(&fixtures::path("convrot/fixtures/valid/native_g256.safetensors"));
    let marked = |marker: &[u8]| {
        let mut parts = native.clone();
        parts.insert(
            format!("{LAYER}.comfy_quant"),
            (Dtype::U8, vec![marker.len()], marker.to_vec()),
        );
        parts
    };
    let mut bare = native.clone();
    bare.remove(&format!("{LAYER}.comfy_quant"));
    let mut add = |name: &str, parts: &Parts, header: Option<&str>| {
        let bytes = written(parts, header);
        let checkpoint = Checkpoint::from_bytes(&format!("{name}.safetensors"), bytes.into());
        found.insert(format!("made/{name}"), outcome(checkpoint));
    };
    let good = r#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256}"#;
    let header = |layer: &str, marker: &str| format!(r#"{{"format_version":"1.0","layers":{{"{layer}":{marker}}}}}"#);
    add("header_only", &bare, Some(&header(LAYER, good)));
    add("header_and_tensor", &native, Some(&header(LAYER, good)));
    let other = r#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":64}"#;
    add("header_disagrees", &native, Some(&header(LAYER, other)));
    add("header_of_another_layer", &bare, Some(&header("blocks.7", good)));
    add("header_no_json", &bare, Some("{"));
    add("header_layers_array", &bare, Some(r#"{"layers":[]}"#));
    add(
        "quarot_marker",
        &marked(br#"{"quarot":true,"quarot_groupsize":256}"#),
        None,
    );
    add("json_trailing_nul", &marked(&[good.as_bytes(), b"\0"].concat()), None);
    add("invalid_utf8", &marked(b"{\"format\":\"int8_tensorwise\xff\"}"), None);
    add(
        "convrot_int1",
        &marked(br#"{"format":"int8_tensorwise","convrot":1}"#),
        None,
    );
    add(
        "groupsize_negative",
        &marked(br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":-256}"#),
        None,
    );
    add(
        "groupsize_null",
        &marked(br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":null}"#),
        None,
    );
    add(
        "repeated_key_disagrees",
        &marked(br#"{"format":"int8_tensorwise","convrot":false,"convrot":true}"#),
        None,
    );
    add(
        "repeated_key_agrees",
        &marked(br#"{"format":"int8_tensorwise","convrot":true,"convrot":true}"#),
        None,
    );
    add(
        "marker_huge",
        &marked(format!("{good}{}", " ".repeat(70_000)).as_bytes()),
        None,
    );
    add(
        "w4a4",
        &marked(br#"{"format":"convrot_w4a4","convrot_groupsize":256}"#),
        None,
    );
    add("asym_w4a8", &marked(br#"{"format":"asym_w4a8_int8"}"#), None);
    let mut experts = native.clone();
    let weight = experts.get_mut(&format!("{LAYER}.weight")).expect("there");
    weight.1 = vec![2, 4, 256];
    add("weight_3d_without_experts", &experts, None);
    let mut codes = native.clone();
    codes.get_mut(&format!("{LAYER}.weight")).expect("there").2[261] = 0x80;
    add("code_minus128", &codes, None);
    let mut scale = native.clone();
    scale.get_mut(&format!("{LAYER}.weight_scale")).expect("there").1 = vec![1, 8];
    add("scale_transposed_1xN", &scale, None);
    let scale_of = |dtype, data: Vec<u8>| {
        let mut parts = native.clone();
        parts.insert(format!("{LAYER}.weight_scale"), (dtype, vec![8, 1], data));
        parts
    };
    add("scale_i32_dtype", &scale_of(Dtype::I32, vec![1; 32]), None);
    add("scale_bf16", &scale_of(Dtype::BF16, [0x80, 0x3f].repeat(8)), None);

    // What no loader takes is refused, with its name; ComfyUI reads these two.
    let read = ["malformed/groupsize_16", "malformed/groupsize_without_convrot"];
    for (name, outcome) in &found {
        let (kind, file) = name.split_once('/').expect("a kind");
        match kind {
            "valid" => assert!(outcome.starts_with("group "), "{name}: {outcome}"),
            "malformed" if read.contains(&name.as_str()) => assert!(outcome.starts_with("group "), "{name}: {outcome}"),
            "malformed" => assert!(
                outcome.starts_with(&format!("{file}.safetensors: ")),
                "{name}: {outcome}"
            ),
            _ => {}
        }
    }
    let text: String = found
        .iter()
        .map(|(name, outcome)| format!("{name}\n    {outcome}\n"))
        .collect();
    insta::assert_snapshot!("files", text);
}

#[test]
fn scalar_scales_become_one_for_each_row() {
    let name = "convrot/fixtures/valid/plain_tensor_scalar_scale.safetensors";
    let checkpoint = Checkpoint::open(fixtures::path(name)).expect("valid");
    let weight = format!("{LAYER}.weight");
    let info = checkpoint.info(&weight).expect("there");
    assert!(info.is_int8_tensorwise() && info.int8().expect("a layer").is_per_tensor());
    let scales = checkpoint.load(&format!("{weight}_scale"), DType::F32).expect("there");
    assert_eq!(&*scales.ty.shape, [8]);
    assert!(
        scales.data.iter().all(|&s| s == scales.data[0] && s > 0.0),
        "{:?}",
        scales.data
    );
}

/// Rows of a fused weight keep their own scales, and converted rows are those of the whole.
#[test]
fn split_weights_keep_their_scales() {
    let k = 64;
    let (rows, third) = (12, 4);
    let codes: Vec<u8> = (0..rows * k).map(|i| (i * 31 % 255) as u8).collect();
    let scales: Vec<f32> = (0..rows).map(|i| 0.01 * (i + 1) as f32).collect();
    let marker = br#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":16}"#;
    let mut parts = Parts::new();
    let block = "layers.0.attention.qkv";
    parts.insert(format!("{block}.weight"), (Dtype::I8, vec![rows, k], codes.clone()));
    let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    parts.insert(format!("{block}.weight_scale"), (Dtype::F32, vec![rows, 1], bytes));
    parts.insert(
        format!("{block}.comfy_quant"),
        (Dtype::U8, vec![marker.len()], marker.to_vec()),
    );
    for name in ["x_embedder.weight", "cap_embedder.1.weight"] {
        parts.insert(name.into(), (Dtype::F32, vec![1, 1], vec![0; 4]));
    }
    let prefixed: Parts = parts
        .iter()
        .map(|(n, t)| (format!("model.diffusion_model.{n}"), t.clone()))
        .collect();
    for parts in [parts, prefixed] {
        let checkpoint = Checkpoint::from_bytes("fused.safetensors", written(&parts, None).into()).expect("valid");
        let whole = reconstruct(&codes, k, &scales, Some(16));
        for (i, part) in ["to_q", "to_k", "to_v"].iter().enumerate() {
            let name = format!("layers.0.attention.{part}.weight");
            let found = checkpoint.load(&format!("{name}_scale"), DType::F32).expect("there");
            assert_eq!(found.data, scales[i * third..][..third], "{part}");
            let values = checkpoint.load(&name, DType::F32).expect("there");
            assert_eq!(values.data, whole[i * third * k..][..third * k], "{part}");
            let rows = checkpoint.rows(&name, DType::F16, 1..3).expect("there");
            let want = values.to_dtype(DType::F16).data[k..3 * k].to_vec();
            assert_eq!(decode(DType::F16, &rows), want, "{part}");
            let half = checkpoint
                .load(&format!("{name}[0:2..4]"), DType::F32)
                .expect("rows of a part");
            assert_eq!(half.data, values.data[2 * k..]);
            assert!(
                checkpoint.load(&format!("{name}[1:0..16]"), DType::F32).is_err(),
                "no whole groups"
            );
            assert_eq!(
                checkpoint.load(&name, DType::I8).expect("there").blocks,
                codes[i * third * k..][..third * k]
            );
            let packed = checkpoint.load(&name, DType::Q8_0).expect("there");
            assert_eq!(
                checkpoint.rows(&name, DType::Q8_0, 0..4).expect("there").to_vec(),
                packed.to_bytes()
            );
        }
        assert!(checkpoint.tensors().all(|t| !t.name.contains("comfy_quant")));
        assert_eq!(checkpoint.audits().expect("values").len(), 3);
    }
}

#[test]
fn described_files_are_planned_without_values() {
    let description = json!({ "tensors": {
        "a.weight": ["I8", [8, 256]], "a.weight_scale": ["F32", [8, 1]], "a.comfy_quant": ["U8", [60]],
    }});
    let checkpoint = Checkpoint::describe("a.json", &description.to_string()).expect("valid");
    assert!(checkpoint.info("a.weight").expect("there").is_int8_tensorwise());
    assert!(checkpoint.audits().expect("nothing to read").is_empty());
}

/// A fixture with some bytes changed and the end cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let folder = fixtures::path("convrot/fixtures/valid");
    let entries = std::fs::read_dir(folder).expect("there");
    let files: Vec<Vec<u8>> = entries
        .map(|entry| std::fs::read(entry.expect("an entry").path()).expect("there"))
        .collect();
    let changes = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let whole = prop_oneof![3 => Just(true), 1 => Just(false)];
    let cut = any::<prop::sample::Index>();
    (prop::sample::select(files), changes, (whole, cut)).prop_map(|(mut bytes, changes, (whole, cut))| {
        // Most of the file is codes, which cannot be wrong.
        let interesting = bytes.len().min(800);
        for (at, value) in changes {
            bytes[at.index(interesting)] = value;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn damaged_files_never_panic(bytes in damaged()) {
        if let Ok(checkpoint) = Checkpoint::from_bytes("damaged.safetensors", bytes.into()) {
            for info in checkpoint.tensors() {
                let _ = checkpoint.load(&info.name, DType::F32);
                let _ = checkpoint.load(&info.name, DType::I8);
            }
            let _ = checkpoint.audits();
        }
    }

    #[test]
    fn damaged_headers_never_panic(text in "\\PC{0,60}", layers in any::<bool>()) {
        let path = fixtures::path("convrot/fixtures/malformed/int8_without_marker.safetensors");
        let parts = parts_of(&path);
        let header = match layers {
            true => format!(r#"{{"layers":{{"{LAYER}":{text}}}}}"#),
            false => text,
        };
        let opened = Checkpoint::from_bytes("header.safetensors", written(&parts, Some(&header)).into());
        prop_assert!(opened.is_err() || layers);
    }
}

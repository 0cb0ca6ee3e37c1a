//! Conversions of model files: what is written is what the formats' own definitions say, reads back with the same codes, and is
//! whole or not there.

use rotile::checkpoint::{Checkpoint, CheckpointError};
use rotile::convert::{Container, Conversion, WeightType, Written};
use rotile::engine::Cancel;
use rotile::error::Error;
use rotile::quant::{self, rotation};
use rotile::tensor::DType;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

mod support;

/// A matrix of 40 x 512, one of 33 x 96, one of 12 x 682, a table, a vector and ids.
fn source() -> Checkpoint {
    let mut uniform = support::uniform("source");
    let mut floats = |count: usize| -> Vec<u8> { (0..count).flat_map(|_| uniform().to_le_bytes()).collect() };
    let tensors = [
        ("layers.0.w1.weight", Dtype::F32, vec![40, 512], floats(40 * 512)),
        ("layers.0.w2.weight", Dtype::F32, vec![33, 96], floats(33 * 96)),
        ("layers.0.w3.weight", Dtype::F32, vec![12, 682], floats(12 * 682)),
        ("embed_tokens.weight", Dtype::F32, vec![64, 256], floats(64 * 256)),
        ("layers.0.norm.weight", Dtype::F32, vec![40], floats(40)),
        ("small.weight", Dtype::F32, vec![2, 256], floats(512)),
    ];
    from(&tensors)
}

fn from(tensors: &[(&str, Dtype, Vec<usize>, Vec<u8>)]) -> Checkpoint {
    let view =
        |(name, dtype, shape, bytes): &'_ (&str, Dtype, Vec<usize>, Vec<u8>)| -> (String, Dtype, Vec<usize>, Vec<u8>) {
            ((*name).to_owned(), *dtype, shape.clone(), bytes.clone())
        };
    let owned: Vec<_> = tensors.iter().map(view).collect();
    let views = owned.iter().map(|(n, d, s, b)| {
        (
            n.as_str(),
            TensorView::new(*d, s.clone(), b).expect("bytes fill the shape"),
        )
    });
    let bytes = serialize(views, None).expect("serialises");
    let config = serde_json::json!({ "eps": 1e-6, "name": "source" });
    Checkpoint::from_bytes("source.safetensors", bytes.into())
        .expect("valid")
        .with_config(Some(config))
}

fn write(checkpoint: &Checkpoint, to: &str, container: Container) -> Result<Vec<u8>, Error> {
    let target: WeightType = to.parse().expect("a target");
    let conversion = Conversion::plan(checkpoint, target, container)?;
    let mut bytes = Vec::new();
    let mut last = None;
    conversion.write(&mut bytes, &mut |at: Written| last = Some(at), &Cancel::new())?;
    let last = last.expect("progress");
    assert_eq!(
        (last.bytes, last.of),
        (conversion.byte_len(), conversion.byte_len()),
        "progress ends at the end"
    );
    Ok(bytes)
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.load(name, DType::F32).expect("there").data
}

#[test]
fn plain_types_are_rounded_and_keep_the_configuration() {
    let source = source();
    for (to, dtype) in [("f16", DType::F16), ("bf16", DType::BF16), ("f32", DType::F32)] {
        for container in [Container::Safetensors, Container::Gguf] {
            let bytes = write(&source, to, container).expect("converts");
            if container == Container::Safetensors {
                assert_eq!(SafeTensors::deserialize(&bytes).expect("the crate reads it").len(), 6);
            }
            let read = Checkpoint::from_bytes(container.name(), bytes.into()).expect("reads back");
            assert_eq!(read.config(), source.config(), "{to} {container:?}");
            assert_eq!(read.tensors().len(), 6);
            for info in source.tensors() {
                let want = source.load(&info.name, dtype).expect("there").to_dtype(DType::F32).data;
                // Readers of GGUF take vectors as F32, so they stay.
                let vector = container == Container::Gguf && info.shape.len() < 2;
                let want = if vector { values(&source, &info.name) } else { want };
                assert_eq!(values(&read, &info.name), want, "{to} {container:?} {}", info.name);
                assert_eq!(read.shape(&info.name), Some(&info.shape[..]));
            }
        }
    }
}

#[test]
fn blocks_are_those_of_the_encoder_and_others_are_listed() {
    let source = source();
    for dtype in DType::BLOCKS {
        let target: WeightType = dtype.name().parse().expect("a target");
        let conversion = Conversion::plan(&source, target, Container::Gguf).expect("planned");
        let fate = |name: &str| {
            let planned = conversion.tensors().iter().find(|p| p.info.stored == name);
            let planned = planned.expect("every tensor has a fate");
            (planned.fate.to_string(), planned.reason.is_some())
        };
        assert_eq!(fate("layers.0.w1.weight"), (dtype.name().to_owned(), false));
        assert_eq!(
            fate("layers.0.w2.weight").1,
            dtype.block().0 == 256,
            "{dtype}: 96 inputs"
        );
        assert_eq!(fate("layers.0.w3.weight"), ("kept".into(), true), "682 inputs");
        assert_eq!(fate("layers.0.norm.weight"), ("kept".into(), false));
        assert_eq!(fate("small.weight"), ("kept".into(), true));

        let bytes = write(&source, dtype.name(), Container::Gguf).expect("converts");
        let read = Checkpoint::from_bytes("blocks.gguf", bytes.into()).expect("reads back");
        let codes = read.load("layers.0.w1.weight", dtype).expect("blocks").blocks;
        assert_eq!(
            codes,
            quant::encode(dtype, &values(&source, "layers.0.w1.weight")),
            "{dtype}"
        );
        assert_eq!(
            values(&read, "layers.0.norm.weight"),
            values(&source, "layers.0.norm.weight")
        );
        // Once more: nothing is quantised twice.
        let again = write(&read, dtype.name(), Container::Gguf).expect("converts again");
        let again = Checkpoint::from_bytes("again.gguf", again.into()).expect("reads back");
        assert_eq!(again.load("layers.0.w1.weight", dtype).expect("blocks").blocks, codes);
    }
}

#[test]
fn rotated_int8_is_what_comfyui_stores() {
    let source = source();
    let bytes = write(&source, "convrot-int8", Container::Safetensors).expect("converts");
    let file = SafeTensors::deserialize(&bytes).expect("the crate reads it");
    for (name, group, [n, k]) in [("layers.0.w1", 256, [40, 512]), ("layers.0.w2", 16, [33, 96])] {
        let tensor = |part: &str| file.tensor(&format!("{name}.{part}")).expect("there");
        let marker: serde_json::Value = serde_json::from_slice(tensor("comfy_quant").data()).expect("JSON");
        let want = serde_json::json!({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": group});
        assert_eq!(marker, want);
        assert_eq!(
            (tensor("weight").dtype(), tensor("weight").shape()),
            (Dtype::I8, &[n, k][..])
        );
        assert_eq!(
            (tensor("weight_scale").dtype(), tensor("weight_scale").shape()),
            (Dtype::F32, &[n, 1][..])
        );
        // The definition: W R in f64, rows over max / 127. A code may differ by one where its quotient is nearly a half.
        let w = values(&source, &format!("{name}.weight"));
        let scales: Vec<f32> = bytemuck::pod_collect_to_vec(tensor("weight_scale").data());
        for (row, (w, codes)) in w
            .chunks_exact(k)
            .zip(tensor("weight").data().chunks_exact(k))
            .enumerate()
        {
            let rotated = |j: usize| -> f64 {
                let first = j / group * group;
                let term = |i: usize| f64::from(w[first + i]) * f64::from(rotation::entry(group, i, j - first));
                (0..group).map(term).sum()
            };
            let rotated: Vec<f64> = (0..k).map(rotated).collect();
            let scale = rotated.iter().fold(0.0f64, |m, v| m.max(v.abs())) / 127.0;
            assert!((f64::from(scales[row]) / scale - 1.0).abs() < 1e-6, "{name} row {row}");
            for (v, &q) in rotated.iter().zip(codes) {
                assert!((v / scale - f64::from(q as i8)).abs() < 0.5001, "{name} row {row}");
            }
        }
    }
    for kept in [
        "layers.0.w3.weight",
        "embed_tokens.weight",
        "layers.0.norm.weight",
        "small.weight",
    ] {
        let bytes: Vec<u8> = values(&source, kept).iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(file.tensor(kept).expect("there").data(), bytes, "{kept}");
    }
}

#[test]
fn what_a_file_cannot_hold_is_refused() {
    let source = source();
    let plan = |to: &str, container| {
        let target: WeightType = to.parse().expect("a target");
        Conversion::plan(&source, target, container)
            .map(drop)
            .expect_err("refused")
            .to_string()
    };
    assert!(plan("q8_0", Container::Safetensors).contains(".gguf"));
    assert!(plan("convrot-int8", Container::Gguf).contains(".safetensors"));
    let group = Conversion::plan(&source, WeightType::ConvrotInt8 { group: 128 }, Container::Safetensors);
    assert!(group.map(drop).expect_err("refused").to_string().contains("power of 4"));
    let ids = from(&[("ids", Dtype::I64, vec![2], vec![0; 16])]);
    assert!(
        write(&ids, "f16", Container::Safetensors).is_ok(),
        "safetensors files hold ids"
    );
    let error = write(&ids, "f16", Container::Gguf).expect_err("no weight");
    assert!(
        matches!(error, Error::Checkpoint(CheckpointError::DType { .. })),
        "{error}"
    );
}

#[test]
fn values_that_do_not_fit_or_are_not_finite_are_errors() {
    let matrix = |v: f32| {
        let mut bytes: Vec<u8> = (0..64 * 64).flat_map(|_| 1f32.to_le_bytes()).collect();
        bytes[400..404].copy_from_slice(&v.to_le_bytes());
        from(&[("w.weight", Dtype::F32, vec![64, 64], bytes)])
    };
    let error = write(&matrix(7e4), "f16", Container::Safetensors)
        .expect_err("over 65504")
        .to_string();
    assert!(
        error.contains("w.weight") && error.contains("element 100") && error.contains("bf16"),
        "{error}"
    );
    assert!(write(&matrix(7e4), "bf16", Container::Safetensors).is_ok());
    for (to, container) in [
        ("q8_0", Container::Gguf),
        ("convrot-int8", Container::Safetensors),
        ("f16", Container::Gguf),
    ] {
        let error = write(&matrix(f32::NAN), to, container).expect_err("a NaN");
        assert!(
            matches!(error, Error::Checkpoint(CheckpointError::NonFinite { index: 100, .. })),
            "{to}: {error}"
        );
    }
}

#[test]
fn cancelling_stops_between_rows() {
    let source = source();
    let cancel = Cancel::new();
    let conversion = Conversion::plan(&source, WeightType::Blocks(DType::Q8_0), Container::Gguf).expect("planned");
    let mut bytes = Vec::new();
    let result = conversion.write(&mut bytes, &mut |_| cancel.cancel(), &cancel);
    assert!(matches!(result, Err(Error::Cancelled)));
    assert!((bytes.len() as u64) < conversion.byte_len());
}

#[test]
fn int8_layers_become_plain_again() {
    let source = source();
    let int8 = write(&source, "convrot-int8", Container::Safetensors).expect("converts");
    let int8 = Checkpoint::from_bytes("int8.safetensors", int8.into()).expect("reads back");
    for (to, dtype) in [("f32", DType::F32), ("bf16", DType::BF16)] {
        let bytes = write(&int8, to, Container::Safetensors).expect("converts back");
        let plain = Checkpoint::from_bytes("plain.safetensors", bytes.into()).expect("reads back");
        assert_eq!(plain.tensors().len(), 6, "scales and markers are gone");
        for info in plain.tensors() {
            let want = int8.load(&info.name, dtype).expect("there").to_dtype(DType::F32).data;
            assert_eq!(values(&plain, &info.name), want, "{to} {}", info.name);
        }
    }
    // What is int8 stays as it is, to the byte.
    let again = write(&int8, "convrot-int8", Container::Safetensors).expect("converts");
    let again = Checkpoint::from_bytes("again.safetensors", again.into()).expect("reads back");
    for name in ["layers.0.w1.weight", "layers.0.w2.weight"] {
        let codes = |c: &Checkpoint| c.load(name, DType::I8).expect("codes").blocks;
        assert_eq!(codes(&again), codes(&int8));
    }
    let blocks = write(&int8, "q8_0", Container::Gguf)
        .expect_err("GGUF has no int8 rows")
        .to_string();
    assert!(blocks.contains("f16 first"), "{blocks}");
}

/// Loading in half precision is checked as converting is.
#[test]
fn values_that_half_precision_cannot_hold_are_named_when_loaded() {
    let mut bytes: Vec<u8> = (0..64 * 64).flat_map(|_| 1f32.to_le_bytes()).collect();
    bytes[400..404].copy_from_slice(&7e4f32.to_le_bytes());
    let checkpoint = from(&[("w.weight", Dtype::F32, vec![64, 64], bytes)]);
    let error = checkpoint
        .rows("w.weight", DType::F16, 0..64)
        .map(drop)
        .expect_err("over 65504");
    assert!(error.to_string().contains("`w.weight`"), "{error}");
    assert!(checkpoint.rows("w.weight", DType::BF16, 0..64).is_ok());
}

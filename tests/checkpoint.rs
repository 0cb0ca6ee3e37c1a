//! Parsers on good, cut and mutated bytes, and name maps: every layout gives the same bytes under the same names.

#[path = "support/fixtures.rs"]
mod fixtures;

use proptest::prelude::*;
use rotile::checkpoint::{Checkpoint, CheckpointError, Layout, Part, Weights};
use rotile::tensor::DType;
use safetensors::{Dtype, tensor::TensorView};
use std::fs;
use std::sync::Arc;

fn file(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("valid")));
    safetensors::serialize(views, None).expect("valid")
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_bytes("a.safetensors", bytes.into())
}

fn raw_file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn sample() -> Vec<u8> {
    file(&[
        ("a.weight", Dtype::F32, &[2, 2], &[0; 16]),
        ("b.weight", Dtype::BF16, &[3], &[0x80, 0x3f, 0, 0, 0, 0xc0]),
        ("c", Dtype::I8, &[5], &[1; 5]),
        ("d", Dtype::F8_E4M3, &[2], &[1; 2]),
    ])
}

#[test]
fn values_are_read_and_converted() {
    let checkpoint = open(sample()).expect("valid");
    assert_eq!(checkpoint.tensors().len(), 4);
    assert_eq!(
        checkpoint.load("b.weight", DType::F32).expect("there").data,
        [1.0, 0.0, -2.0]
    );
    let (dtype, bytes) = checkpoint.raw("b.weight").expect("there");
    assert_eq!((dtype, &*bytes), (DType::BF16, &[0x80u8, 0x3f, 0, 0, 0, 0xc0][..]));
    let w = Weights::new(Arc::new(checkpoint)).at("b");
    assert_eq!(w.shape("weight"), Some(&[3][..]));
    assert!(w.has("weight") && !w.has("bias"));
}

#[test]
fn unusable_types_are_listed_but_refused() {
    let checkpoint = open(sample()).expect("valid");
    for name in ["c", "d"] {
        let error = checkpoint
            .load(name, DType::F32)
            .expect_err("no float that kernels read");
        assert!(
            matches!(&error, CheckpointError::DType { name: n, .. } if n == name),
            "{error}"
        );
    }
}

#[test]
fn missing_tensors_name_the_nearest() {
    let error = open(sample())
        .expect("valid")
        .load("a.wieght", DType::F32)
        .expect_err("misspelt");
    assert_eq!(
        error.to_string(),
        "a.safetensors: no tensor `a.wieght`; the nearest is `a.weight`"
    );
}

#[test]
fn nan_and_infinity_are_refused_in_every_type() {
    let cases: [(Dtype, &[u8]); 4] = [
        (Dtype::F32, &[0, 0, 0, 0, 0, 0, 0xc0, 0x7f]),
        (Dtype::F32, &[0, 0, 0, 0, 0, 0, 0x80, 0xff]),
        (Dtype::F16, &[0, 0, 0, 0x7c]),
        (Dtype::BF16, &[0, 0, 0xc0, 0x7f]),
    ];
    for (dtype, bytes) in cases {
        let checkpoint = open(file(&[("w", dtype, &[2], bytes)])).expect("valid");
        for error in [
            checkpoint.load("w", DType::F32).expect_err("not finite"),
            checkpoint
                .rows("w", DType::BF16, 0..2)
                .map(|_| ())
                .expect_err("not finite"),
        ] {
            assert!(matches!(error, CheckpointError::NonFinite { index: 1, .. }), "{error}");
        }
    }
}

#[test]
fn every_cut_is_reported_with_both_sizes() {
    let whole = sample();
    for length in 0..whole.len() {
        let error = open(whole[..length].to_vec()).expect_err("cut");
        match error {
            CheckpointError::Truncated { wanted, found, .. } => {
                assert_eq!(found, length as u64);
                assert!(wanted > found && wanted <= whole.len() as u64);
            }
            other => panic!("cut at {length}: {other}"),
        }
    }
}

#[test]
fn absurd_headers_are_typed_errors() {
    let many = "18446744073709551615";
    let headers = [
        String::new(),
        "[]".into(),
        "{\"a\":1}".into(),
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}".into(),
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}".into(),
        "{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]}}".into(),
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}".into(),
        format!("{{\"a\":{{\"dtype\":\"F32\",\"shape\":[{many},{many}],\"data_offsets\":[0,4]}}}}"),
        format!("{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{many}],\"data_offsets\":[0,{many}]}}}}"),
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}"
            .into(),
        "[".repeat(100_000),
    ];
    for header in headers {
        let error = open(raw_file(&header, 8)).expect_err("absurd");
        assert!(error.to_string().starts_with("a.safetensors: "), "{error}");
        assert!(
            matches!(
                error,
                CheckpointError::Header { .. } | CheckpointError::Truncated { .. }
            ),
            "{error}"
        );
    }
    let mut endless = vec![0xff; 8];
    endless.extend([0; 32]);
    assert!(matches!(open(endless), Err(CheckpointError::Header { .. })));
    let mut trailing = sample();
    trailing.push(0);
    assert!(matches!(open(trailing), Err(CheckpointError::Header { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn mutated_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(checkpoint) = open(bytes) {
            for info in checkpoint.tensors() {
                let _ = checkpoint.load(&info.name, DType::F32);
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), length in 0u64..220) {
        let _ = open(bytes.clone());
        let _ = open([&length.to_le_bytes()[..], &bytes].concat());
        let _ = Checkpoint::describe("x", &String::from_utf8_lossy(&bytes));
    }
}

/// Every tensor of `a` is in `b` with the same shape and bytes, and the other way round.
fn assert_same(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.tensors().len(), b.tensors().len());
    for info in a.tensors() {
        let other = b.info(&info.name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((&info.shape, info.dtype), (&other.shape, other.dtype), "{}", info.name);
        assert!(
            a.raw(&info.name).expect("there") == b.raw(&info.name).expect("there"),
            "{}",
            info.name
        );
    }
}

#[test]
fn original_layouts_equal_diffusers_in_every_byte() {
    for (part, layout) in [("dit_zimage", Layout::ZImage), ("vae_flux1", Layout::Ldm)] {
        let diffusers = Checkpoint::open(fixtures::path(part)).expect("there");
        let original = Checkpoint::open(fixtures::path(part).join("original.safetensors")).expect("there");
        assert_eq!((diffusers.layout(), original.layout()), (Layout::Diffusers, layout));
        assert_same(&diffusers, &original);
    }
}

#[test]
fn prefixes_are_dropped() {
    let plain = Checkpoint::open(fixtures::path("text_qwen3")).expect("there");
    let prefixed = Checkpoint::open(fixtures::path("pipe_zimage/text_encoder")).expect("there");
    assert!(
        prefixed
            .tensors()
            .all(|info| info.stored == format!("model.{}", info.name))
    );
    assert_same(&plain, &prefixed);
    for (part, prefix) in [
        ("dit_zimage", "model.diffusion_model."),
        ("vae_flux1", "first_stage_model."),
    ] {
        let path = fixtures::path(part).join("original.safetensors");
        let bytes = fs::read(&path).expect("there");
        let parsed = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
        let tensors = parsed
            .tensors()
            .into_iter()
            .map(|(name, view)| (format!("{prefix}{name}"), view));
        let prefixed = open(safetensors::serialize(tensors, None).expect("valid")).expect("valid");
        assert_same(&Checkpoint::open(path).expect("there"), &prefixed);
    }
}

#[test]
fn shards_equal_the_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = fixtures::path("text_qwen3/model.safetensors");
    let bytes = fs::read(&whole).expect("there");
    let parsed = safetensors::SafeTensors::deserialize(&bytes).expect("valid");
    let mut names = parsed.names();
    names.sort_unstable();
    let mut weight_map = serde_json::Map::new();
    for (i, part) in names.chunks(names.len().div_ceil(3)).enumerate() {
        let shard = format!("model-{:05}-of-00003.safetensors", i + 1);
        let tensors = part.iter().map(|name| (*name, parsed.tensor(name).expect("there")));
        fs::write(
            folder.path().join(&shard),
            safetensors::serialize(tensors, None).expect("valid"),
        )
        .expect("written");
        weight_map.extend(part.iter().map(|name| ((*name).to_owned(), shard.clone().into())));
    }
    let index = folder.path().join("model.safetensors.index.json");
    let write = |map: &serde_json::Map<_, _>| {
        fs::write(
            &index,
            serde_json::json!({ "metadata": {}, "weight_map": map }).to_string(),
        )
        .expect("written");
    };
    write(&weight_map);
    fs::write(folder.path().join("config.json"), "{\"rope_theta\": 5}").expect("written");
    let whole = Checkpoint::open(whole).expect("there");
    let sharded = Checkpoint::open(folder.path()).expect("valid");
    assert_same(&whole, &sharded);
    assert_eq!(sharded.config().expect("there")["rope_theta"], 5);
    assert_same(&whole, &Checkpoint::open(&index).expect("valid"));

    let mut promised = weight_map.clone();
    promised.insert("extra".into(), "model-00001-of-00003.safetensors".into());
    write(&promised);
    let error = Checkpoint::open(&index).expect_err("the shard lacks it");
    assert!(
        matches!(&error, CheckpointError::MissingTensor { name, .. } if name == "extra"),
        "{error}"
    );
    for outside in ["../model.safetensors", "/etc/passwd", "..", "absent.safetensors"] {
        let mut map = weight_map.clone();
        map.insert("extra".into(), outside.into());
        write(&map);
        let error = Checkpoint::open(&index).expect_err("outside or absent");
        assert!(
            matches!(error, CheckpointError::Config { .. } | CheckpointError::Io { .. }),
            "{error}"
        );
    }
}

#[test]
fn descriptions_have_shapes_and_no_values() {
    let checkpoint = Checkpoint::open(fixtures::path("manifests/qwen3_4b_text_encoder.json")).expect("there");
    assert_eq!(checkpoint.shape("embed_tokens.weight"), Some(&[151_936, 2560][..]));
    assert_eq!(checkpoint.config().expect("there")["num_attention_heads"], 32);
    assert!(!checkpoint.has_values());
    let error = checkpoint.load("norm.weight", DType::F32).expect_err("no values");
    assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
    let absurd = "{\"tensors\": {\"a\": [\"F32\", [4294967295, 4294967295, 4294967295]]}}";
    assert!(matches!(
        Checkpoint::describe("x", absurd),
        Err(CheckpointError::Header { .. })
    ));
}

#[test]
fn files_that_are_not_there_are_typed_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(matches!(
        Checkpoint::open(folder.path()),
        Err(CheckpointError::Config { .. })
    ));
    assert!(matches!(
        Checkpoint::open(folder.path().join("a.safetensors")),
        Err(CheckpointError::Io { .. })
    ));
    fs::write(folder.path().join("a.safetensors"), "").expect("written");
    assert!(matches!(
        Checkpoint::open(folder.path()),
        Err(CheckpointError::Truncated { .. })
    ));
    fs::write(folder.path().join("b.safetensors"), "").expect("written");
    let error = Checkpoint::open(folder.path()).expect_err("two candidates");
    assert!(matches!(error, CheckpointError::Config { .. }), "{error}");
}

#[test]
fn parts_of_tensors_are_cut_when_loaded() {
    let values: Vec<u8> = (0..24).map(|v| v as f32).flat_map(f32::to_le_bytes).collect();
    let checkpoint = open(file(&[("w", Dtype::F32, &[2, 3, 4], &values)])).expect("opens");
    let part = |axis, range| {
        let name = "w".to_owned();
        Part { name, axis, range }.to_string()
    };
    for (name, shape, wanted) in [
        (part(0, 1..2), vec![1, 3, 4], (12..24).collect::<Vec<_>>()),
        (part(1, 2..3), vec![2, 1, 4], vec![8, 9, 10, 11, 20, 21, 22, 23]),
        (part(2, 3..4), vec![2, 3, 1], vec![3, 7, 11, 15, 19, 23]),
        (part(2, 0..4), vec![2, 3, 4], (0..24).collect()),
    ] {
        let tensor = checkpoint.load(&name, DType::F32).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(*tensor.ty.shape, shape[..], "{name}");
        let wanted: Vec<_> = wanted.into_iter().map(|v| v as f32).collect();
        assert_eq!(tensor.data, wanted, "{name}");
        assert_eq!(checkpoint.raw(&name).expect("bytes").1.len(), 4 * wanted.len());
    }
    for name in [
        "w[3:0..1]",
        "w[0:1..1]",
        "w[0:2..1]",
        "w[1:2..4]",
        "v[0:0..1]",
        "w[0:0..]",
        "w[]",
        "w]",
        "w[0:0..1]x",
    ] {
        let error = checkpoint.load(name, DType::F32).expect_err(name);
        assert!(
            matches!(error, CheckpointError::MissingTensor { .. }),
            "{name}: {error}"
        );
    }
}

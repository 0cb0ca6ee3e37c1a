//! GGUF files: what the reader takes, and what it refuses and how.

#[path = "support/gguf.rs"]
mod written;

use rotile::checkpoint::gguf::MetaValue;
use rotile::checkpoint::{Checkpoint, CheckpointError, FileDType, Weights};
use rotile::graph::Graph;
use rotile::tensor::{DType, TensorType};
use std::sync::Arc;
use written::{File, list, text};

fn open(file: &File) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_bytes("a.gguf", file.bytes().into())
}

/// The message that a file is refused with.
fn refused(file: &File) -> String {
    let error = open(file).expect_err("refused");
    assert!(matches!(error, CheckpointError::Header { .. }), "{error}");
    error.to_string()
}

fn small() -> File {
    File::new()
        .with_text("general.architecture", "test")
        .with("a.list", 9, list(4, 3, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]))
        .values("a.weight", DType::Q8_0, &[2, 64], &[0.5; 128])
        .values("b", DType::F32, &[3], &[1.0, 2.0, 3.0])
        .tensor("c", 23, &[1, 256], vec![7; 136])
}

#[test]
fn tensors_are_read() {
    for version in [2, 3] {
        for alignment in [1u32, 8, 32, 256] {
            let mut file = small().with("general.alignment", 4, alignment.to_le_bytes());
            (file.version, file.alignment) = (version, alignment as usize);
            let checkpoint = open(&file).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(checkpoint.tensors().len(), 3);
            let a = checkpoint.info("a.weight").expect("there");
            assert_eq!((a.dtype, &a.shape[..]), (FileDType::Weight(DType::Q8_0), &[2, 64][..]));
            assert_eq!(checkpoint.raw("a.weight").expect("there").1, file.tensors[0].bytes);
            assert_eq!(checkpoint.load("b", DType::F32).expect("there").data, [1.0, 2.0, 3.0]);
        }
    }
}

#[test]
fn types_that_no_kernel_reads_are_listed_but_refused() {
    let checkpoint = open(&small()).expect("valid");
    let error = checkpoint.load("c", DType::F32).expect_err("IQ4_XS");
    let want = "a.gguf: `c` is IQ4_XS; wanted F32, F16, BF16, I8 or blocks from Q8_0 to Q6_K";
    assert_eq!(error.to_string(), want);
    // The next version of ggml may have types that nobody knows: their sizes come from their neighbours.
    let unknown = small()
        .tensor("d", 77, &[5], vec![1; 9])
        .tensor("e", 0, &[1], vec![0; 4]);
    let checkpoint = open(&unknown).expect("valid");
    assert_eq!(checkpoint.info("d").expect("there").dtype.to_string(), "ggml type 77");
    assert!(checkpoint.load("d", DType::F32).is_err());
    assert_eq!(checkpoint.load("e", DType::F32).expect("there").data, [0.0]);
}

#[test]
fn every_kind_of_metadata_is_read() {
    let nested = [list(0, 2, &[5, 6]), list(0, 0, &[])].concat();
    let words = [text("ab"), text(""), text("ü")].concat();
    let file = File::new()
        .with("u8", 0, [200])
        .with("i8", 1, [200])
        .with("u16", 2, 65_535u16.to_le_bytes())
        .with("i16", 3, (-2i16).to_le_bytes())
        .with("u32", 4, u32::MAX.to_le_bytes())
        .with("i32", 5, (-3i32).to_le_bytes())
        .with("f32", 6, 0.5f32.to_le_bytes())
        .with("flag", 7, [1])
        .with_text("text", "words")
        .with("list", 9, list(8, 3, &words))
        .with("nested", 9, list(9, 2, &nested))
        .with("u64", 10, u64::MAX.to_le_bytes())
        .with("i64", 11, i64::MIN.to_le_bytes())
        .with("f64", 12, 0.1f64.to_le_bytes());
    let checkpoint = open(&file).expect("valid");
    let metadata = checkpoint.metadata().expect("GGUF has it");
    let shown: Vec<_> = metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(
        shown.join(" "),
        "f32=0.5 f64=0.1 flag=true i16=-2 i32=-3 i64=-9223372036854775808 i8=-56 list=[\"ab\", \"\", \"ü\"] \
         nested=[[5, 6], []] text=\"words\" u16=65535 u32=4294967295 u64=18446744073709551615 u8=200"
    );
    assert_eq!((metadata.text("text"), metadata.text("u8")), (Some("words"), None));
    assert_eq!((metadata.count("u8"), metadata.count("i8")), (Some(200), None));
    assert_eq!((metadata.float("f32"), metadata.float("text")), (Some(0.5), None));
    assert_eq!((metadata.flag("flag"), metadata.flag("u8")), (Some(true), None));
    assert!(matches!(metadata.get("list"), Some(MetaValue::List(list)) if list.len() == 3 && !list.is_empty()));
}

#[test]
fn malformed_files_are_refused_with_the_reason() {
    let with_version = |version| File { version, ..small() };
    let first = |change: &dyn Fn(&mut written::Stored)| {
        let mut file = small();
        change(&mut file.tensors[0]);
        file
    };
    let deep = (0..6).fold(list(0, 0, &[]), |inner, _| list(9, 1, &inner));
    let cases = [
        (with_version(1), "version 1; only 2 and 3 can be read"),
        (with_version(4), "version 4; only 2 and 3 can be read"),
        (with_version(3 << 24), "its numbers are big-endian"),
        (small().with("x", 13, []), "`x` is of the unknown kind 13"),
        (
            small().with("x", 9, list(99, 0, &[])),
            "`x` is a list of the unknown kind 99",
        ),
        (small().with("x", 9, deep), "`x` has lists in lists more than 4 deep"),
        (small().with("x", 7, [2]), "`x` is the flag 2, not 0 or 1"),
        (small().with("x", 9, list(7, 2, &[1, 2])), "`x` has the flag 2"),
        (small().with("x", 0, [1]).with("x", 0, [1]), "`x` is there twice"),
        (
            small().with("general.alignment", 4, 24u32.to_le_bytes()),
            "`general.alignment` is 24, not a power of two",
        ),
        (
            small().with("general.alignment", 4, [0; 4]),
            "`general.alignment` is 0, not a power of two",
        ),
        (
            small().with_text("general.alignment", "32"),
            "`general.alignment` is \"32\", not a power of two",
        ),
        (
            small().with("split.count", 2, 3u16.to_le_bytes()),
            "one of 3 parts of a model; join them",
        ),
        (first(&|t| t.shape = vec![1; 9]), "`a.weight` has 9 axes"),
        (
            first(&|t| t.shape = vec![2, 33]),
            "`a.weight` of shape [2, 33] is Q8_0, whose rows are multiples of 32",
        ),
        (
            first(&|t| t.shape = vec![1 << 40, 1 << 40]),
            "of shape [1099511627776, 1099511627776] is too large",
        ),
        (
            first(&|t| t.shift = 1),
            "`a.weight` is at 1, no multiple of the alignment 32",
        ),
        (
            first(&|t| t.shift = 128),
            "the bytes of `a.weight` reach into those of another tensor",
        ),
        (first(&|t| t.name = "b".into()), "`b` is in a.gguf too"),
    ];
    for (file, reason) in cases {
        let message = refused(&file);
        assert!(
            message.starts_with("a.gguf: not a valid safetensors or GGUF header: ") && message.contains(reason),
            "{message}"
        );
    }
    let mut name = small().bytes();
    let at = name.windows(8).position(|w| w == b"a.weight").expect("there");
    name[at] = 0xff;
    let error = Checkpoint::from_bytes("a.gguf", name.into()).expect_err("no UTF-8");
    assert!(error.to_string().contains("is no UTF-8"), "{error}");
}

#[test]
fn every_cut_is_reported_with_both_sizes() {
    let whole = small().bytes();
    for length in 0..whole.len() {
        let error = Checkpoint::from_bytes("a.gguf", whole[..length].into()).expect_err("cut");
        match error {
            CheckpointError::Truncated { wanted, found, .. } => {
                assert_eq!(found, length as u64);
                assert!(wanted > found && wanted <= whole.len() as u64, "{wanted} at {found}");
            }
            other => panic!("cut at {length}: {other}"),
        }
    }
}

/// Counts and lengths that no file holds: each is noticed before anything is reserved for it.
#[test]
fn absurd_counts_are_cut_files() {
    let valid = small().bytes();
    let key = valid.windows(6).position(|w| w == b"a.list").expect("there");
    // Tensors, entries, length of the first key, length of the list.
    for at in [8, 16, 24, key + 6 + 4 + 4] {
        for absurd in [1u64 << 20, 1 << 40, u64::MAX] {
            let mut bytes = valid.clone();
            bytes[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
            let error = Checkpoint::from_bytes("a.gguf", bytes.into()).expect_err("absurd");
            assert!(
                matches!(error, CheckpointError::Truncated { .. }),
                "{at} {absurd}: {error}"
            );
        }
    }
}

/// ComfyUI-GGUF reshapes what has no rows of whole blocks, and says how it was. What kernels cannot read is decoded.
#[test]
fn reshaped_and_ragged_tensors_are_decoded() {
    let values: Vec<f32> = (0..512).map(|i| (i % 37) as f32 - 18.0).collect();
    let shape = |dims: &[i32]| {
        list(
            5,
            dims.len() as u64,
            &dims.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<_>>(),
        )
    };
    let file = File::new()
        .with("comfy.gguf.orig_shape.conv.weight", 9, shape(&[8, 16, 2, 2]))
        .with("comfy.gguf.orig_shape.ragged.weight", 9, shape(&[32, 16]))
        .with("comfy.gguf.orig_shape.nothing", 9, shape(&[1]))
        .values("conv.weight", DType::Q4_0, &[2, 256], &values)
        .values("ragged.weight", DType::Q4K, &[2, 256], &values)
        .values("bias", DType::Q8_0, &[512], &values)
        .values("matrix.weight", DType::Q5_1, &[4, 128], &values);
    let checkpoint = Arc::new(open(&file).expect("valid"));
    let w = Weights::new(checkpoint.clone());
    let mut g = Graph::new(DType::F32);
    let mut weight = |name: &str, shape: &[usize]| {
        let value = g.weight(&w.at(name), "weight", shape).expect("there");
        g.ty(value).clone()
    };
    assert_eq!(
        weight("conv", &[8, 16, 2, 2]),
        TensorType::new(DType::F32, [8, 16, 2, 2])
    );
    assert_eq!(weight("ragged", &[32, 16]), TensorType::new(DType::F32, [32, 16]));
    assert_eq!(weight("matrix", &[4, 128]), TensorType::new(DType::Q5_1, [4, 128]));
    for tensor in &file.tensors {
        let FileDType::Weight(dtype) = checkpoint.info(&tensor.name).expect("there").dtype else {
            panic!("a weight")
        };
        let want = rotile::quant::decode(dtype, &tensor.bytes);
        let got = checkpoint.load(&tensor.name, DType::F32).expect("decodes");
        assert_eq!(got.data, want, "{}", tensor.name);
        let rows = got.ty.shape[0];
        let row = want.len() / rows;
        for range in [0..1, 1..rows, rows - 1..rows] {
            let bytes = checkpoint
                .rows(&tensor.name, DType::F32, range.clone())
                .expect("decodes");
            let want: Vec<u8> = want[range.start * row..range.end * row]
                .iter()
                .flat_map(|v| v.to_le_bytes())
                .collect();
            assert!(*bytes == *want, "{} {range:?}", tensor.name);
        }
    }
    // Parts along the rows stay packed, parts of rows are decoded.
    let (dtype, bytes) = checkpoint.raw("matrix.weight[0:1..3]").expect("rows");
    assert_eq!((dtype, &bytes[..]), (DType::Q5_1, &file.tensors[3].bytes[96..288]));
    let (dtype, bytes) = checkpoint.raw("matrix.weight[1:3..5]").expect("columns");
    assert_eq!((dtype, bytes.len()), (DType::F32, 4 * 2 * 4));
    let wrong = small().with("comfy.gguf.orig_shape.b", 9, shape(&[2, 2]));
    assert!(refused(&wrong).contains("`comfy.gguf.orig_shape.b` is [2, 2], which is no shape for the elements of [3]"));
}

/// The converter decodes them in pieces, which are no whole blocks either.
#[test]
fn ragged_tensors_are_converted() {
    use rotile::convert::{Container, Conversion};
    let values: Vec<f32> = (0..512).map(|i| (i % 37) as f32 - 18.0).collect();
    let shape: Vec<u8> = [8i32, 16, 2, 2].iter().flat_map(|d| d.to_le_bytes()).collect();
    let file = File::new()
        .with("comfy.gguf.orig_shape.conv.weight", 9, list(5, 4, &shape))
        .values("conv.weight", DType::Q4K, &[2, 256], &values)
        .values("bias", DType::Q8_0, &[512], &values);
    let source = open(&file).expect("valid");
    let conversion =
        Conversion::plan(&source, "f32".parse().expect("a target"), Container::Safetensors).expect("plans");
    let mut bytes = Vec::new();
    let cancel = rotile::engine::Cancel::new();
    conversion.write(&mut bytes, &mut |_| {}, &cancel).expect("converts");
    let converted = Checkpoint::from_bytes("b.safetensors", bytes.into()).expect("valid");
    for (name, shape) in [("conv.weight", &[8, 16, 2, 2][..]), ("bias", &[512])] {
        let [got, want] = [&converted, &source].map(|c| c.load(name, DType::F32).expect("there"));
        assert_eq!((&got.ty.shape[..], got.data), (shape, want.data), "{name}");
    }
}

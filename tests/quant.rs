//! Blocks of quantised weights: decoded as ggml does, bit for bit, on the host and on the GPU; encoded about as well as it does.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

#[path = "support/fixtures.rs"]
mod fixtures;

use fixtures::path;
use pollster::block_on;
use rotile::quant;
use rotile::tensor::{DType, Tensor, TensorType};
use safetensors::SafeTensors;
use support::relative_rms;

/// Blocks of a fixture, and what gguf-py decodes them to.
struct Blocks {
    name: String,
    dtype: DType,
    bytes: Vec<u8>,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let four = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(four).collect()
}

fn file_name(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

/// Every fixture; `quant` ones were encoded from [`source`], `random` ones are random bytes.
fn fixtures() -> Vec<Blocks> {
    let file = std::fs::read(path("gguf/blocks.safetensors")).expect("the fixture is in the repository");
    let file = SafeTensors::deserialize(&file).expect("the fixture is valid");
    let mut found = Vec::new();
    for dtype in DType::BLOCKS {
        for kind in ["quant", "random"] {
            let name = format!("{}.{kind}", file_name(dtype));
            let (Ok(bytes), Ok(values)) = (
                file.tensor(&format!("{name}.bytes")),
                file.tensor(&format!("{name}.f32")),
            ) else {
                continue;
            };
            found.push(Blocks {
                name,
                dtype,
                bytes: bytes.data().to_vec(),
                shape: values.shape().to_vec(),
                values: floats(values.data()),
            });
        }
    }
    assert_eq!(found.len(), 18, "two of each type but Q2_K and Q3_K");
    found
}

/// Normal values in `[6, 512]`, larger from row to row; one block is zero.
fn source() -> Vec<f32> {
    let file = std::fs::read(path("gguf/blocks.safetensors")).expect("the fixture is in the repository");
    let file = SafeTensors::deserialize(&file).expect("the fixture is valid");
    floats(file.tensor("source_f32").expect("the source").data())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn the_host_decodes_as_ggml() {
    for blocks in fixtures() {
        let got = quant::decode(blocks.dtype, &blocks.bytes);
        assert_eq!(bits(&got), bits(&blocks.values), "{}", blocks.name);
        assert_eq!(quant::first_non_finite(blocks.dtype, &blocks.bytes), None);
    }
}

/// The five formats without groups have one encoding that ggml defines, so files are the same as those of its tools.
#[test]
fn plain_formats_are_encoded_as_ggml() {
    let source = source();
    let plain = [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1];
    let fixtures = fixtures();
    for dtype in plain {
        let name = format!("{}.quant", file_name(dtype));
        let want = fixtures.iter().find(|f| f.name == name).expect("a fixture");
        assert!(quant::encode(dtype, &source) == want.bytes, "{dtype}");
    }
}

#[test]
fn errors_of_encoding_are_those_of_ggml_or_less() {
    let source = source();
    for blocks in fixtures().iter().filter(|b| b.name.ends_with("quant")) {
        let got = quant::decode(blocks.dtype, &quant::encode(blocks.dtype, &source));
        let (ours, theirs) = (relative_rms(&got, &source), relative_rms(&blocks.values, &source));
        println!("{}: relative RMS {ours:.5}, of the fixture {theirs:.5}", blocks.name);
        assert!(ours <= theirs * 1.0001, "{}: {ours} > {theirs}", blocks.name);
    }
}

/// Sums of uniform values are nearly normal.
fn normal(count: usize) -> Vec<f32> {
    let mut uniform = support::uniform("normal");
    (0..count)
        .map(|_| (0..12).map(|_| uniform()).sum::<f32>() / 2.0)
        .collect()
}

/// J. Max, "Quantizing for minimum distortion" (1960), table II: mean squared error of the best equally spaced levels for a normal
/// variable, of one scale for all. Scales per group must do better; 2 and 3 bits have no fixture.
#[test]
fn groups_beat_one_scale_for_all() {
    let values = normal(256 * 400);
    let limits = [
        (DType::Q2K, 0.1188f64),
        (DType::Q3K, 0.03744),
        (DType::Q4K, 0.01154),
        (DType::Q5K, 0.00349),
        (DType::Q6K, 0.00104),
    ];
    for (dtype, distortion) in limits {
        let error = relative_rms(&quant::decode(dtype, &quant::encode(dtype, &values)), &values);
        println!(
            "{dtype}: relative RMS {error:.5}, of the best single scale {:.5}",
            distortion.sqrt()
        );
        assert!(error < distortion.sqrt(), "{dtype}: {error}");
    }
}

#[test]
fn every_input_gives_finite_blocks() {
    let mut uniform = support::uniform("edges");
    let mut with = |f: &dyn Fn(usize, f32) -> f32| -> Vec<f32> { (0..256).map(|i| f(i, uniform())).collect() };
    let cases = [
        ("zero", with(&|_, _| 0.0)),
        ("minus zero", with(&|_, _| -0.0)),
        ("constant", with(&|_, _| 0.7)),
        ("negative constant", with(&|_, _| -0.7)),
        ("one", with(&|i, _| f32::from(u8::from(i == 100)))),
        ("tiny", with(&|_, v| v * 1e-7)),
        ("subnormal", with(&|_, v| v * 1e-41)),
        ("huge", with(&|_, v| v * 3e38)),
        ("infinite", with(&|i, v| if i == 7 { f32::INFINITY } else { v })),
        (
            "both infinite",
            with(&|i, v| if i < 2 { f32::INFINITY * (i as f32 - 0.5) } else { v }),
        ),
        ("all infinite", with(&|_, _| f32::NEG_INFINITY)),
        ("NaN", with(&|i, v| if i == 7 { f32::NAN } else { v })),
        ("all NaN", with(&|_, _| f32::NAN)),
    ];
    for dtype in DType::BLOCKS {
        for (name, values) in &cases {
            let blocks = quant::encode(dtype, values);
            assert_eq!(quant::first_non_finite(dtype, &blocks), None, "{dtype} of {name}");
            let got = quant::decode(dtype, &blocks);
            assert!(got.iter().all(|v| v.is_finite()), "{dtype} of {name}");
            if name.ends_with("zero") {
                assert!(got.iter().all(|&v| v == 0.0), "{dtype} of {name}");
            }
            if name.ends_with("constant") {
                assert!(relative_rms(&got, values) < 0.02, "{dtype} of {name}: {}", got[0]);
            }
        }
    }
}

/// Scales too small for normal `f16` are rounded coarsely; the codes must be those for the rounded scale.
#[test]
fn small_values_keep_their_accuracy() {
    let values: Vec<f32> = normal(256 * 8).iter().map(|v| v * 1e-4).collect();
    for dtype in DType::BLOCKS {
        let error = |values: &[f32]| relative_rms(&quant::decode(dtype, &quant::encode(dtype, values)), values);
        let (small, usual) = (error(&values), error(&normal(256 * 8)));
        println!("{dtype}: relative RMS {small:.4} at 1e-4, {usual:.4} at 1");
        assert!(small < 2.0 * usual, "{dtype}: {small}, {usual}");
    }
}

#[test]
fn scales_that_are_not_finite_are_found() {
    for blocks in fixtures().iter().filter(|b| b.name.ends_with("random")) {
        let (elements, size) = blocks.dtype.block();
        let scales = match blocks.dtype {
            DType::Q2K => vec![80, 82],
            DType::Q3K => vec![108],
            DType::Q6K => vec![208],
            DType::Q8_0 | DType::Q4_0 | DType::Q5_0 => vec![0],
            _ => vec![0, 2],
        };
        for at in scales {
            let mut bytes = blocks.bytes.clone();
            bytes[size + at..size + at + 2].copy_from_slice(&[0x00, 0xfc]);
            assert_eq!(
                quant::first_non_finite(blocks.dtype, &bytes),
                Some(elements),
                "{}",
                blocks.name
            );
        }
    }
}

/// Rows of a table of blocks, read by the kernel of the embedding.
#[test]
fn the_gpu_decodes_as_ggml() {
    use rotile::op::Op;
    let Some(gpu) = support::gpu() else { return };
    for blocks in fixtures() {
        let table = Tensor::packed(TensorType::new(blocks.dtype, &blocks.shape[..]), blocks.bytes.clone());
        let rows = blocks.shape[0];
        let ids = Tensor::ids([rows], &(0..rows as u32).collect::<Vec<_>>());
        let op = rotile::ops::Embedding { dtype: DType::F32 };
        let inputs = [table, ids];
        let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
        let output = op.infer(&types).expect("a table and ids");
        for way in op.ways(&types, &output, gpu.caps()) {
            let got = block_on(gpu.run_way(&way, &inputs, &output, gpu.caps())).expect("it runs");
            assert_eq!(bits(&got.data), bits(&blocks.values), "{}", blocks.name);
        }
    }
}

/// Products with the blocks of fixtures, in every way, against `f64` sums over what gguf-py decodes. Errors are shares of the sum of
/// the magnitudes that are added up: roundings of `f32` sums, nothing more.
#[test]
fn products_are_those_of_the_decoded_values() {
    use rotile::op::Op;
    const LIMIT: f64 = 1e-6;
    let mut uniform = support::uniform("products");
    for blocks in fixtures() {
        let [n, k] = blocks.shape[..] else { panic!("no matrix") };
        let w = Tensor::packed(TensorType::new(blocks.dtype, [n, k]), blocks.bytes.clone());
        let mut worst = [0.0f64; 2];
        for m in [1, 3, 35] {
            let x = Tensor::new([m, k], (0..m * k).map(|_| uniform()).collect());
            let error = |got: &[f32]| {
                let share = |(at, &got): (usize, &f32)| {
                    let (a, b) = (&x.data[at / n * k..][..k], &blocks.values[at % n * k..][..k]);
                    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
                    let (want, sum) = products.fold((0.0, 0.0), |(w, s), p| (w + p, s + p.abs()));
                    (f64::from(got) - want).abs() / sum
                };
                // A NaN is the worst.
                let shares = got.iter().enumerate().map(share);
                shares.fold(0.0, |m: f64, e| if m.is_nan() || e <= m { m } else { e })
            };
            let op = rotile::ops::Matmul {
                fused: rotile::ops::Epilogue::default().fused(),
            };
            let inputs = [x.clone(), w.clone()];
            let types: Vec<_> = inputs.iter().map(|t| t.ty.clone()).collect();
            let output = op.infer(&types).expect("a matrix of blocks");
            let mut got = vec![f32::NAN; m * n];
            assert!(op.compute(&inputs.each_ref().map(Tensor::view), &mut got));
            worst[0] = worst[0].max(error(&got));
            assert!(error(&got) <= LIMIT, "{}: {}", blocks.name, error(&got));
            let Some(gpu) = support::gpu() else { continue };
            for way in op.ways(&types, &output, gpu.caps()) {
                let got = block_on(gpu.run_way(&way, &inputs, &output, gpu.caps())).expect("it runs");
                worst[1] = worst[1].max(error(&got.data));
                assert!(
                    error(&got.data) <= LIMIT,
                    "{} {}: {}",
                    blocks.name,
                    way.name,
                    error(&got.data)
                );
            }
        }
        let [cpu, gpu] = worst;
        println!(
            "{}: largest error {cpu:.1e} on the CPU, {gpu:.1e} on the GPU",
            blocks.name
        );
    }
}

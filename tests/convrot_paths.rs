//! The paths of int8 layers on every device, against comfy-kitchen's results and against one another.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

#[path = "support/fixtures.rs"]
mod fixtures;
mod support;
#[path = "support/vectors.rs"]
mod vectors;

use rotile::adapter::{self, Adapter, Apply};
use rotile::backend::Device;
use rotile::checkpoint::{Checkpoint, Weights};
use rotile::cpu::Cpu;
use rotile::graph::{Graph, Value};
use rotile::models::Role;
use rotile::models::linear::{Guard, embedding, linear, linear_guarded};
use rotile::ops::{Act, Epilogue};
use rotile::plan::{ConvrotPath, Policy};
use rotile::tensor::{DType, Tensor};
use safetensors::Dtype;
use std::sync::Arc;
use vectors::{Parts, Vectors, bits, written};

const N: usize = 37;
const K: usize = 512;

fn devices() -> Vec<Device> {
    let cpu = Device::Cpu(Cpu::default());
    let gpu = support::gpu().map(|gpu| Device::Gpu(gpu.clone()));
    [cpu].into_iter().chain(gpu).collect()
}

fn name(device: &Device) -> &'static str {
    if let Device::Cpu(_) = device { "cpu" } else { "gpu" }
}

/// The test layer as ComfyUI's file has it, `marker` included.
fn layer(codes: &str, scales: &str, marker: &str) -> Arc<Checkpoint> {
    let vectors = Vectors::open("linear");
    let mut parts = Parts::new();
    parts.insert("layer.weight".into(), vectors.raw(codes));
    parts.insert("layer.weight_scale".into(), vectors.raw(scales));
    parts.insert("layer.bias".into(), vectors.raw("in.bias_f32"));
    let marker = marker.as_bytes();
    parts.insert(
        "layer.comfy_quant".into(),
        (Dtype::U8, vec![marker.len()], marker.to_vec()),
    );
    let bytes = written(&parts, None);
    Arc::new(Checkpoint::from_bytes("layer.safetensors", bytes.into()).expect("a layer"))
}

fn rotated_layer(group: usize) -> Arc<Checkpoint> {
    let marker = format!(r#"{{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":{group}}}"#);
    layer(&format!("ck.q.g{group}"), &format!("ck.scale.g{group}"), &marker)
}

fn input() -> Tensor {
    let vectors = Vectors::open("linear");
    Tensor::new([7, K], vectors.floats("in.x_f32"))
}

type Build<'a> = &'a dyn Fn(&mut Graph, &Weights, Value) -> rotile::Result<Vec<Value>>;

/// Results of a graph over `x`, and the names of its operators.
fn run(
    device: &Device,
    checkpoint: &Arc<Checkpoint>,
    path: ConvrotPath,
    (x, dtype): (&Tensor, DType),
    build: Build<'_>,
) -> (Vec<Vec<f32>>, Vec<String>) {
    let weights = Weights::new(checkpoint.clone()).with_convrot(path);
    let mut g = Graph::new(dtype);
    let value = g.input("x", x.ty.clone());
    let value = if x.ty.dtype == DType::F32 {
        g.cast(value, dtype).expect("floats")
    } else {
        value
    };
    for (i, value) in build(&mut g, &weights, value).expect("a graph").into_iter().enumerate() {
        let value = g.cast(value, DType::F32).expect("floats");
        g.output(&i.to_string(), value);
    }
    let ops = g.nodes().iter().map(|node| node.op.name().to_owned()).collect();
    let session = pollster::block_on(device.prepare(&g, &weights, &Policy::default()));
    let mut session = session.unwrap_or_else(|e| panic!("{path}: {e}"));
    let outputs = pollster::block_on(session.run(&[("x", x)])).unwrap_or_else(|e| panic!("{path}: {e}"));
    let again = pollster::block_on(session.run(&[("x", x)])).unwrap_or_else(|e| panic!("{path}: {e}"));
    assert_eq!(outputs, again, "{path}: a second run gives the same bits");
    (outputs.into_iter().map(|t| t.data).collect(), ops)
}

/// `layer(x)` with a bias.
fn biased(device: &Device, checkpoint: &Arc<Checkpoint>, path: ConvrotPath, x: &Tensor, guard: Guard) -> Vec<f32> {
    let (mut outputs, _) = run(device, checkpoint, path, (x, DType::F32), &|g, w, x| {
        let bias = g.vector(&w.at("layer"), "bias", N)?;
        let y = linear_guarded(g, &w.at("layer"), x, N, Epilogue::default().bias(bias), guard)?;
        Ok(vec![y])
    });
    outputs.remove(0)
}

/// Largest error as a share of the largest value.
fn worst(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let error = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs());
    error.fold(0.0, f64::max) / largest
}

#[test]
fn integer_products_are_theirs_to_the_bit_given_the_codes() {
    let vectors = Vectors::open("linear");
    for group in [256, 64] {
        let checkpoint = rotated_layer(group);
        let codes = vectors.floats(&format!("ck.x_q.f32.g{group}"));
        let x = Tensor::new([7, K], codes).to_dtype(DType::I8);
        let scales = Tensor::new([7], vectors.floats(&format!("ck.x_scale.f32.g{group}")));
        for device in devices() {
            let (outputs, _) = run(
                &device,
                &checkpoint,
                ConvrotPath::Native,
                (&x, DType::F32),
                &|g, w, x| {
                    let w = w.at("layer");
                    let (codes, columns) = g.codes(&w, "weight", [N, K])?;
                    let rows = g.constant(scales.clone());
                    let ones = (
                        g.constant(Tensor::new([7], vec![1.0; 7])),
                        g.constant(Tensor::new([N], vec![1.0; N])),
                    );
                    let sums = g.matmul_i8((x, ones.0), (codes, ones.1), Epilogue::default())?;
                    let plain = g.matmul_i8((x, rows), (codes, columns), Epilogue::default())?;
                    let bias = g.vector(&w, "bias", N)?;
                    let whole = g.matmul_i8((x, rows), (codes, columns), Epilogue::default().bias(bias))?;
                    Ok(vec![sums, plain, whole])
                },
            );
            let names = ["acc_i32.f32", "linear_nobias.f32", "linear.f32"].map(|n| format!("ck.{n}.g{group}"));
            for (got, name) in outputs.iter().zip(&names) {
                let name = if name.contains("linear.f32") {
                    format!("{name}.m7")
                } else {
                    name.clone()
                };
                let want = vectors.floats(&name);
                assert_eq!(bits(got), bits(&want), "{name} on the {}", crate::name(&device));
            }
        }
    }
}

#[test]
fn activations_are_rounded_as_theirs() {
    let vectors = Vectors::open("linear");
    for group in [256, 64] {
        for (dtype, name) in [(DType::F32, "f32"), (DType::F16, "f16")] {
            let x = Tensor::new([7, K], vectors.floats(&format!("in.x_{name}")));
            let mut of_devices = Vec::new();
            for device in devices().into_iter().filter(|d| d.dtypes().contains(&dtype)) {
                let (outputs, _) = run(
                    &device,
                    &rotated_layer(group),
                    ConvrotPath::Native,
                    (&x, dtype),
                    &|g, _, x| {
                        let x = g.rotate(x, group)?;
                        let (codes, rows) = g.quantize_rows(x)?;
                        // Codes become values by a product with the unit matrix.
                        let unit = (0..K * K).map(|i| f32::from(u8::from(i % (K + 1) == 0))).collect();
                        let unit = g.constant(Tensor::new([K, K], unit).to_dtype(DType::I8));
                        let ones = (
                            g.constant(Tensor::new([7], vec![1.0; 7])),
                            g.constant(Tensor::new([K], vec![1.0; K])),
                        );
                        Ok(vec![
                            g.matmul_i8((codes, ones.0), (unit, ones.1), Epilogue::default())?,
                            rows,
                        ])
                    },
                );
                let theirs = vectors.floats(&format!("ck.x_q.{name}.g{group}"));
                let off = outputs[0].iter().zip(&theirs).filter(|(a, b)| a != b).count();
                let far = outputs[0]
                    .iter()
                    .zip(&theirs)
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f32::max);
                let scale = worst(&outputs[1], &vectors.wide(&format!("ck.x_scale.{name}.g{group}")));
                println!(
                    "{name} activations, group {group}, {}: {off} of {} codes differ, by {far}; scales {scale:.1e} off",
                    crate::name(&device),
                    theirs.len()
                );
                // In F16 they round the quotient to that type too.
                let (most, near) = if dtype == DType::F32 {
                    (0, 1e-6)
                } else {
                    (theirs.len() / 5, 2e-3)
                };
                assert!(off <= most && far <= 1.0 && scale <= near, "{name}, {group}");
                of_devices.push(outputs);
            }
            if let [cpu, gpu] = &of_devices[..] {
                assert_eq!(bits(&cpu[0]), bits(&gpu[0]), "devices agree to the bit");
                assert_eq!(bits(&cpu[1]), bits(&gpu[1]), "devices agree to the bit");
            }
        }
    }
}

#[test]
fn layers_are_theirs_on_every_path() {
    let vectors = Vectors::open("linear");
    for group in [256, 64] {
        let checkpoint = rotated_layer(group);
        let x = input();
        let exact = vectors.wide(&format!("ref64.weight_only_linear.g{group}"));
        let rounded = vectors.wide(&format!("ref64.w8a8_linear.g{group}"));
        let theirs = vectors.wide(&format!("ck.linear.f32.g{group}.m7"));
        for device in devices() {
            let of = |path| biased(&device, &checkpoint, path, &x, Guard::default());
            let name = name(&device);
            // Whether a path rounds weights to F16 is seen on the GPU only: the CPU widens them when it loads them.
            let floats = [
                (ConvrotPath::Op, 1e-6),
                (ConvrotPath::Dense, 1e-6),
                (ConvrotPath::Compat, 5e-4),
            ];
            let mut results = Vec::new();
            for (path, limit) in floats {
                let y = of(path);
                let error = worst(&y, &exact);
                println!("{path}, group {group}, {name}: {error:.1e} from f64");
                assert!(error <= limit, "{path}, {group}, {name}: {error:.1e}");
                results.push((path, y));
            }
            for (path, y) in &results[1..] {
                let rms = support::relative_rms(y, &results[0].1);
                println!("{path} and op, group {group}, {name}: relative RMS {rms:.1e}");
                assert!(rms <= 1e-3, "{path}, {group}, {name}: {rms:.1e}");
            }
            let native = of(ConvrotPath::Native);
            let [own, other] = [&rounded, &theirs].map(|want| worst(&native, want));
            println!("native, group {group}, {name}: {own:.1e} from f64, {other:.1e} from theirs");
            assert!(own <= 2e-6 && other <= 2e-6, "{group}, {name}: {own:.1e}, {other:.1e}");
            // A zero row of activations gives the bias and nothing else.
            let bias = vectors.floats("in.bias_f32");
            assert_eq!(native[5 * N..6 * N], bias);
            assert_eq!(results[0].1[5 * N..6 * N], bias);
            let one = biased(
                &device,
                &checkpoint,
                ConvrotPath::Native,
                &Tensor::new([1, K], x.data[..K].to_vec()),
                Guard::default(),
            );
            assert!(worst(&one, &vectors.wide(&format!("ck.linear.f32.g{group}.m1"))) <= 2e-6);
        }
    }
}

#[test]
fn half_precision_activations_stay_close() {
    let vectors = Vectors::open("linear");
    let x = Tensor::new([7, K], vectors.floats("in.x_f16"));
    for device in devices().into_iter().filter(|d| d.dtypes().contains(&DType::F16)) {
        for path in ConvrotPath::ALL {
            let (outputs, _) = run(&device, &rotated_layer(256), path, (&x, DType::F16), &|g, w, x| {
                let bias = g.vector(&w.at("layer"), "bias", N)?;
                Ok(vec![linear(g, &w.at("layer"), x, N, Epilogue::default().bias(bias))?])
            });
            let (want, limit) = match path {
                ConvrotPath::Native => ("ck.linear.f16.g256.m7", 5e-3),
                _ => ("ref64.weight_only_linear.g256", 2e-3),
            };
            let error = worst(&outputs[0], &vectors.wide(want));
            println!("{path} in f16: {error:.1e} from {want}");
            assert!(error <= limit, "{path}: {error:.1e}");
        }
    }
}

/// R6: a layer with a prescale and a bias, on every path, against the weight in single precision.
#[test]
fn prescaled_layers_keep_every_bit() {
    let checkpoint = rotated_layer(256);
    let x = input();
    let guard = |force_f32, prescale| Guard { force_f32, prescale };
    for device in devices() {
        let reference = biased(&device, &checkpoint, ConvrotPath::Op, &x, guard(true, 1.0));
        for path in ConvrotPath::ALL {
            let plain = biased(&device, &checkpoint, path, &x, guard(false, 1.0));
            let scaled = biased(&device, &checkpoint, path, &x, guard(false, 1.0 / 128.0));
            let rms = support::relative_rms(&scaled, &reference);
            println!(
                "{path} with prescale 1/128, {}: relative RMS {rms:.1e} from f32",
                name(&device)
            );
            let limit = if path == ConvrotPath::Native { 2e-2 } else { 1e-3 };
            assert!(rms <= limit && rms.is_finite(), "{path}: {rms:.1e}");
            let apart = support::relative_rms(&scaled, &plain);
            assert!(apart <= 1e-7, "{path}: a power of 2 changes nothing, but {apart:.1e}");
            let forced = biased(&device, &checkpoint, path, &x, guard(true, 1.0 / 128.0));
            assert!(support::relative_rms(&forced, &reference) <= 1e-7, "{path}");
        }
    }
}

#[test]
fn siblings_share_what_is_made_of_their_input() {
    let checkpoint = rotated_layer(256);
    let x = input();
    let counted = |path, guard: Guard| {
        let device = Device::Cpu(Cpu::default());
        let (outputs, ops) = run(&device, &checkpoint, path, (&x, DType::F32), &|g, w, x| {
            let three = (0..3).map(|_| linear_guarded(g, &w.at("layer"), x, N, Epilogue::default(), guard));
            three.collect()
        });
        assert!(outputs[0] == outputs[1] && outputs[1] == outputs[2]);
        let count = |op: &str| ops.iter().filter(|name| *name == op).count();
        ["scale", "rotate", "row_scales", "quantize_rows", "matmul", "matmul_i8"].map(count)
    };
    let plain = Guard::default();
    assert_eq!(counted(ConvrotPath::Native, plain), [0, 1, 1, 1, 0, 3]);
    assert_eq!(counted(ConvrotPath::Op, plain), [0, 1, 0, 0, 3, 0]);
    assert_eq!(counted(ConvrotPath::Dense, plain), [0, 0, 0, 0, 4, 0]);
    assert_eq!(counted(ConvrotPath::Compat, plain), [0, 0, 0, 0, 3, 0]);
    // One factor on the input; those on the scales are of N values.
    let guard = Guard { prescale: 0.5, ..plain };
    assert_eq!(counted(ConvrotPath::Op, guard), [4, 1, 0, 0, 3, 0]);
    let force_f32 = Guard {
        force_f32: true,
        ..plain
    };
    assert_eq!(counted(ConvrotPath::Native, force_f32), [0, 0, 0, 0, 3, 0]);
}

/// Layers that ask for float products, and codes in the true basis.
#[test]
fn markers_decide_about_the_path() {
    let vectors = Vectors::open("linear");
    let x = input();
    let marker =
        r#"{"format":"int8_tensorwise","convrot":true,"convrot_groupsize":256,"full_precision_matrix_mult":true}"#;
    let full = layer("ck.q.g256", "ck.scale.g256", marker);
    let plain = layer("ck.q.tensor", "ck.scale.tensor", r#"{"format":"int8_tensorwise"}"#);
    for device in devices() {
        for path in ConvrotPath::ALL {
            let y = biased(&device, &full, path, &x, Guard::default());
            let error = worst(&y, &vectors.wide("ref64.weight_only_linear.g256"));
            assert!(error <= 1e-6, "{path}: {error:.1e}");
        }
        let native = biased(&device, &plain, ConvrotPath::Native, &x, Guard::default());
        let error = worst(&native, &vectors.wide("ck.linear.f32.tensor"));
        println!("plain int8, native, {}: {error:.1e} from theirs", name(&device));
        assert!(error <= 2e-6, "{error:.1e}");
        let compat = biased(
            &device,
            &plain,
            ConvrotPath::Compat,
            &x,
            Guard {
                force_f32: true,
                prescale: 1.0,
            },
        );
        for path in [ConvrotPath::Op, ConvrotPath::Dense] {
            let y = biased(&device, &plain, path, &x, Guard::default());
            assert!(support::relative_rms(&y, &compat) <= 1e-6, "{path}");
        }
    }
}

/// An epilogue with every part, so that scales, bias, gate and residual come in their order.
#[test]
fn epilogues_come_after_the_scales() {
    let checkpoint = rotated_layer(64);
    let x = input();
    let parts = |seed: &str, shape: &[usize]| {
        let mut next = support::uniform(seed);
        Tensor::new(shape, (0..shape.iter().product()).map(|_| next()).collect())
    };
    for device in devices() {
        let of = |path, guard: Guard| {
            let (mut outputs, _) = run(&device, &checkpoint, path, (&x, DType::F32), &|g, w, x| {
                let bias = g.vector(&w.at("layer"), "bias", N)?;
                let epilogue = Epilogue {
                    scale: Some(g.constant(parts("scale", &[N]))),
                    ..Epilogue::default()
                };
                let epilogue = epilogue
                    .bias(bias)
                    .act(Act::Silu)
                    .residual(g.constant(parts("residual", &[7, N])));
                let epilogue = epilogue.gate(g.constant(parts("gate", &[N])));
                Ok(vec![linear_guarded(g, &w.at("layer"), x, N, epilogue, guard)?])
            });
            outputs.remove(0)
        };
        let guard = Guard {
            force_f32: true,
            prescale: 1.0,
        };
        let want = of(ConvrotPath::Op, guard);
        for path in ConvrotPath::ALL {
            for prescale in [1.0, 0.25] {
                let got = of(
                    path,
                    Guard {
                        force_f32: false,
                        prescale,
                    },
                );
                let rms = support::relative_rms(&got, &want);
                let limit = if path == ConvrotPath::Native { 3e-2 } else { 1e-3 };
                assert!(rms <= limit, "{path}, {prescale}: {rms:.1e}");
            }
        }
    }
}

#[test]
fn tables_of_codes_give_rows_in_the_true_basis() {
    let checkpoint = rotated_layer(256);
    let ids = Tensor::ids([4], &[3, 0, 36, 3]);
    let w = checkpoint.load("layer.weight", DType::F32).expect("values").data;
    let want: Vec<f64> = [3, 0, 36, 3]
        .iter()
        .flat_map(|&id| w[id * K..(id + 1) * K].iter().map(|&v| f64::from(v)))
        .collect();
    for device in devices() {
        for path in [ConvrotPath::Op, ConvrotPath::Compat] {
            let (outputs, ops) = run(&device, &checkpoint, path, (&ids, DType::F32), &|g, w, ids| {
                Ok(vec![embedding(g, &w.at("layer"), ids, [N, K])?])
            });
            let error = worst(&outputs[0], &want);
            assert!(error <= 1e-6, "{path}: {error:.1e}");
            assert_eq!(ops.contains(&"rotate".to_owned()), path == ConvrotPath::Op);
        }
    }
}

/// Scales that F16 cannot hold lose nothing on any path.
#[test]
fn tiny_and_huge_scales_lose_nothing() {
    for file in [
        "scale_f16_subnormal_1e-6",
        "scale_f16_underflow_1e-9",
        "scale_f16_overflow_1e5",
        "zero_row_scale_1e-30",
    ] {
        let path = fixtures::path(&format!("convrot/fixtures/valid/{file}.safetensors"));
        let checkpoint = Arc::new(Checkpoint::open(path).expect("valid"));
        let x = Tensor::new(
            [3, 256],
            Vectors::open("fixtures/expected_native_g256").floats("in.x_f32"),
        );
        let layer = "model.diffusion_model.blocks.0.attn.qkv_proj";
        for device in devices() {
            let of = |path, force_f32| {
                let (mut outputs, _) = run(&device, &checkpoint, path, (&x, DType::F32), &|g, w, x| {
                    let guard = Guard {
                        force_f32,
                        prescale: 1.0,
                    };
                    Ok(vec![linear_guarded(g, &w.at(layer), x, 8, Epilogue::default(), guard)?])
                });
                outputs.remove(0)
            };
            let want = of(ConvrotPath::Op, true);
            for path in ConvrotPath::ALL {
                let rms = support::relative_rms(&of(path, false), &want);
                let limit = if path == ConvrotPath::Native { 2e-2 } else { 1e-3 };
                assert!(rms <= limit && rms.is_finite(), "{file}, {path}: {rms:.1e}");
            }
        }
    }
}

#[test]
fn adapters_see_the_true_basis_on_every_path() {
    let vectors = Vectors::open("lora");
    let float = |name: &str| {
        let (dtype, shape, bytes) = vectors.raw(name);
        assert_eq!(dtype, Dtype::F32);
        (dtype, shape, bytes)
    };
    let mut lora = Parts::new();
    lora.insert("layer.lora_down.weight".into(), float("in.lora_down"));
    lora.insert("layer.lora_up.weight".into(), float("in.lora_up"));
    lora.insert(
        "layer.alpha".into(),
        (Dtype::F32, vec![], 2.0f32.to_le_bytes().to_vec()),
    );
    let mut diff = Parts::new();
    diff.insert("layer.diff".into(), float("in.diff"));
    diff.insert("layer.diff_b".into(), float("in.diff_b"));
    let open = |name, parts: &Parts, weight| {
        Adapter::from_bytes(name, written(parts, None).into(), weight).expect("an adapter")
    };
    let adapters = [open("lora", &lora, 0.75), open("diff", &diff, 1.0)];
    let mut parts = [(Role::Transformer, rotated_layer(256))];
    let packed = |_, info: &rotile::checkpoint::TensorInfo| info.is_int8_tensorwise();
    let report = adapter::apply(&mut parts, &adapters, Apply::Auto, &packed).expect("they fit");
    assert_eq!(report.how(), "runtime", "codes count as packed");
    let (want, wrong) = (
        vectors.wide("ref64.correct_total"),
        vectors.wide("ref64.WRONG_merge_rotated_basis"),
    );
    let merged = adapter::apply(
        &mut [(Role::Transformer, rotated_layer(256))],
        &adapters,
        Apply::Immediately,
        &|_, _| false,
    );
    assert!(merged.is_ok(), "weights in the true basis are merged");
    for device in devices() {
        for path in ConvrotPath::ALL {
            for prescale in [1.0, 1.0 / 128.0] {
                let y = biased(
                    &device,
                    &parts[0].1,
                    path,
                    &input(),
                    Guard {
                        force_f32: false,
                        prescale,
                    },
                );
                let error = worst(&y, &want);
                println!("adapters, {path}, {}: {error:.1e} from the right total", name(&device));
                let limit = match path {
                    ConvrotPath::Native => 1.1e-2,
                    ConvrotPath::Compat => 5e-4,
                    // A difference of weights is kept in F16 beside codes.
                    _ => 1e-4,
                };
                assert!(error <= limit, "{path}: {error:.1e}");
                assert!(worst(&y, &wrong) > 1e-2, "{path} is not the wrong basis");
            }
        }
    }
}

/// Merging into weights that are brought to the true basis when they are loaded.
#[test]
fn merged_adapters_are_right_on_compat() {
    let vectors = Vectors::open("lora");
    let mut diff = Parts::new();
    diff.insert("layer.diff".into(), vectors.raw("in.diff"));
    diff.insert("layer.diff_b".into(), vectors.raw("in.diff_b"));
    let diff = Adapter::from_bytes("diff", written(&diff, None).into(), 1.0).expect("an adapter");
    let mut parts = [(Role::Transformer, rotated_layer(256))];
    adapter::apply(&mut parts, &[diff], Apply::Auto, &|_, _| false).expect("it fits");
    let base = vectors.wide("ref64.base_weight_only");
    let delta = vectors.wide("ref64.delta_diff_runtime");
    let bias = vectors.wide("in.diff_b");
    let want: Vec<f64> = (0..base.len()).map(|i| base[i] + delta[i] + bias[i % N]).collect();
    for device in devices() {
        let y = biased(&device, &parts[0].1, ConvrotPath::Compat, &input(), Guard::default());
        let error = worst(&y, &want);
        println!("merged into compat, {}: {error:.1e}", name(&device));
        assert!(error <= 5e-4, "{error:.1e}");
    }
}

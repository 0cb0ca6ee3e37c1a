//! Every way of every operator against its reference, on every case of the table, in poisoned and guarded buffers; and the
//! fast paths of the CPU.

#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use rotile::gpu::{Caps, Gpu};
use rotile::op::{Launch, Op, Operand, Tolerance, Way};
use rotile::ops::OPS;
use rotile::tensor::{DType, Tensor, TensorType, View};
use std::collections::BTreeMap;
use std::sync::Arc;

fn main() {
    let args = Arguments::from_args();
    let gpu = support::gpu();
    let caps = gpu.map_or_else(Caps::baseline, |gpu| gpu.caps().clone());
    println!("adapter: {caps}");
    let mut trials = Vec::new();
    let mut combinations = 0;
    for entry in OPS {
        for case in (entry.cases)() {
            let op: Arc<dyn Op> = case.op.into();
            let (inputs, output) = match op.infer(&case.inputs) {
                Ok(output) => (case.inputs, output),
                Err(e) => panic!("a case that does not fit its own operator: {e}"),
            };
            let label = format!("{op:?} {}", describe(&inputs));
            let case = Arc::new(Run { op, inputs, output });
            let cpu = case.clone();
            let name = format!("{}/cpu/{label}", entry.name);
            trials.push(Trial::test(name, move || cpu.on_cpu()).with_kind("cpu"));

            for way in case.op.ways(&case.inputs, &case.output, &caps) {
                combinations += 1;
                let skip = gpu.is_none() || (!caps.f16 && wants_f16(&way));
                let (nan, own, name) = (case.clone(), caps.clone(), way.name);
                let trial = Trial::test(format!("{}/{name}/{label}/nan", entry.name), move || {
                    nan.keeps_nan(name, &own, gpu.ok_or("no GPU")?)
                });
                trials.push(trial.with_kind("gpu").with_ignored_flag(skip));
                for limit in limits(&way, caps.max_workgroups) {
                    let suffix = if limit == caps.max_workgroups {
                        String::new()
                    } else {
                        format!("/wrap={limit}")
                    };
                    let name = format!("{}/{}/{label}{suffix}", entry.name, way.name);
                    let (case, caps, way) = (case.clone(), caps.clone(), way.name);
                    let trial = Trial::test(name, move || {
                        let caps = Caps {
                            max_workgroups: limit,
                            ..caps
                        };
                        case.on_gpu(way, &caps, gpu.ok_or("no GPU")?)
                    });
                    trials.push(trial.with_kind("gpu").with_ignored_flag(skip));
                }
            }
            for (parts, caps) in case.split(&caps) {
                let skip =
                    gpu.is_none() || (!caps.f16 && case.way(Way::BASELINE, &caps).is_ok_and(|way| wants_f16(&way)));
                let name = format!("{}/{}/{label}/parts={parts}", entry.name, Way::BASELINE);
                let case = case.clone();
                let trial = Trial::test(name, move || case.on_gpu(Way::BASELINE, &caps, gpu.ok_or("no GPU")?));
                trials.push(trial.with_kind("gpu").with_ignored_flag(skip));
            }
        }
    }
    println!("{combinations} combinations of operator, way, element types and case on the GPU");
    libtest_mimic::run(&args, trials).exit();
}

/// Whether a kernel needs the feature. Weights in f16 are unpacked from words and do not: only activations do.
fn wants_f16(way: &Way) -> bool {
    let f16 = |launch: &Launch| {
        let files = launch.kernel.files().expect("kernels link");
        files
            .iter()
            .any(|f| ["slot/elem/f16", "slot/from/f16"].contains(&f.path))
    };
    way.launches.iter().any(f16)
}

/// The adapter's own limit on workgroups, and limits around the number that this way needs: one less, equal, one more, and few.
fn limits(way: &Way, own: u32) -> Vec<u32> {
    let needed = way.launches.iter().map(|l| l.grid[0] * l.grid[1]).max().unwrap_or(1);
    let mut limits = vec![own];
    if needed > 1 {
        limits.extend([needed - 1, needed, needed + 1, 7]);
    }
    limits.retain(|&l| l > 0 && l <= own);
    limits.sort_unstable();
    limits.dedup();
    // So small a limit would need more than it allows in y as well.
    limits.retain(|&l| u64::from(l) * u64::from(l) >= u64::from(needed));
    limits
}

struct Run {
    op: Arc<dyn Op>,
    inputs: Vec<TensorType>,
    output: TensorType,
}

impl Run {
    /// Adapters that bind so little that the operator takes a weight in two, three, and as many parts as it has rows, where it
    /// can; with the number of parts.
    fn split(&self, caps: &Caps) -> BTreeMap<usize, Caps> {
        let mut found = BTreeMap::new();
        for (i, ty) in self.inputs.iter().enumerate().filter(|(_, ty)| !ty.shape.is_empty()) {
            let row = ty.dtype.bytes(ty.count() / ty.shape[0]);
            for parts in [2, 3, ty.shape[0].min(100)] {
                let caps = Caps {
                    max_binding: (ty.shape[0].div_ceil(parts) * row).next_multiple_of(if row % 2 == 1 {
                        4 * row
                    } else {
                        2 * row
                    }) as u64,
                    ..caps.clone()
                };
                let ways = self.op.ways(&self.inputs, &self.output, &caps);
                let last = Operand::Part(i, caps.parts(ty).len() - 1);
                let takes = |w: &Way| w.launches.iter().any(|l| l.operands.iter().any(|(_, o)| *o == last));
                if last != Operand::Part(i, 0) && ways.iter().any(takes) {
                    assert_eq!(ways.len(), 1, "only the baseline takes parts");
                    found.insert(caps.parts(ty).len(), caps);
                }
            }
        }
        found
    }

    fn values(&self) -> (Vec<Tensor>, Vec<f32>) {
        let mut uniform = support::uniform(&format!("{:?}{:?}", self.op, self.inputs));
        let inputs = self.op.sample(&self.inputs, &mut uniform);
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        let want = self.op.reference(&views);
        assert!(
            want.iter().any(|v| v.is_finite() && *v != 0.0),
            "a reference of zeros and NaN proves nothing"
        );
        (inputs, want)
    }

    fn on_cpu(&self) -> Result<(), Failed> {
        let (inputs, want) = self.values();
        if want.len() != self.output.count() {
            return Err(format!("the reference has {} values for {}", want.len(), self.output).into());
        }
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        let mut got = vec![f32::NAN; want.len()];
        if self.op.compute(&views, &mut got) {
            support::within(&got, &want, self.op.tolerance(DType::F32))?;
        }
        Ok(())
    }

    fn way(&self, name: &str, caps: &Caps) -> Result<Way, Failed> {
        let mut ways = self.op.ways(&self.inputs, &self.output, caps).into_iter();
        let way = ways.find(|w| w.name == name);
        Ok(way.ok_or("the way depends on the limit of workgroups")?)
    }

    /// A NaN in an input is NaN wherever it is one in the reference, on the GPU and in the fast path of the CPU.
    fn keeps_nan(&self, name: &str, caps: &Caps, gpu: &Gpu) -> Result<(), Failed> {
        let way = self.way(name, caps)?;
        let (mut inputs, _) = self.values();
        let floats = (0..inputs.len()).filter(|&i| inputs[i].ty.dtype != DType::U32 && inputs[i].blocks.is_empty());
        for index in floats.collect::<Vec<_>>() {
            let at = inputs[index].data.len() / 2;
            let kept = std::mem::replace(&mut inputs[index].data[at], f32::NAN);
            let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
            let want = self.op.reference(&views);
            let mut cpu = vec![0.0; want.len()];
            if !self.op.compute(&views, &mut cpu) {
                cpu.clone_from(&want);
            }
            let gpu = pollster::block_on(gpu.run_way(&way, &inputs, &self.output, caps))?.data;
            for (device, got) in [("CPU", &cpu), ("GPU", &gpu)] {
                let lost = want
                    .iter()
                    .zip(got)
                    .position(|(want, got)| want.is_nan() && !got.is_nan());
                if let Some(lost) = lost {
                    return Err(format!("input {index}: NaN became {} at {lost} on the {device}", got[lost]).into());
                }
            }
            inputs[index].data[at] = kept;
        }
        Ok(())
    }

    fn on_gpu(&self, name: &str, caps: &Caps, gpu: &Gpu) -> Result<(), Failed> {
        let (inputs, want) = self.values();
        let way = self.way(name, caps)?;
        for launch in &way.launches {
            if launch.grid.iter().any(|&n| n > caps.max_workgroups) {
                return Err(format!("{}: grid {:?} over the limit", launch.kernel, launch.grid).into());
            }
        }
        let got = pollster::block_on(gpu.run_way(&way, &inputs, &self.output, caps))?;
        let tolerance = self.op.tolerance(self.output.dtype);
        // The reference is not rounded to the output's type, the result is.
        let want = if tolerance == Tolerance::EXACT {
            rounded(want, &self.output)
        } else {
            want
        };
        Ok(support::within(&got.data, &want, tolerance)?)
    }
}

fn rounded(values: Vec<f32>, ty: &TensorType) -> Vec<f32> {
    match ty.dtype {
        DType::F32 => values,
        dtype => Tensor::new(ty.shape.clone(), values).to_dtype(dtype).data,
    }
}

fn describe(types: &[TensorType]) -> String {
    types
        .iter()
        .map(|t| t.to_string().replace(", ", "x").replace(' ', ""))
        .collect::<Vec<_>>()
        .join(" ")
}

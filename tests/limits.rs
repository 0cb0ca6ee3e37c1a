//! Grids at the real limit of workgroups: one less, the limit, and one more, for each kind of kernel that can reach it.

mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use rotile::gpu::{Caps, Gpu};
use rotile::op::{Op, Tolerance, Way};
use rotile::ops::{
    Act, Attend, BatchedMatmul, Binary, Concat, Conv2d, Convolve, Embedding, Fused, GroupNorm, LayerNorm, Matmul,
    Permute, RmsNorm, Rotary, Scale, Slice, Softmax, Swiglu, Unary, UpsampleNearest,
};
use rotile::tensor::{DType, Tensor, TensorType, View};

/// An operator over `n` units of work.
struct Growing {
    op: Box<dyn Op>,
    inputs: fn(usize) -> Vec<TensorType>,
}

fn f32(shape: &[usize]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

fn growing() -> Vec<Growing> {
    let of = |op: Box<dyn Op>, inputs| Growing { op, inputs };
    vec![
        of(Box::new(Softmax { scale: 1.0 }), |n| vec![f32(&[n, 3])]),
        of(Box::new(RmsNorm { eps: 1e-6 }), |n| vec![f32(&[n, 3])]),
        of(
            Box::new(LayerNorm {
                eps: 1e-6,
                weight: false,
                bias: false,
            }),
            |n| vec![f32(&[n, 3])],
        ),
        of(
            Box::new(GroupNorm {
                groups: 1,
                eps: 1e-6,
                act: Act::Silu,
            }),
            |n| vec![f32(&[n, 1, 3]), f32(&[1]), f32(&[1])],
        ),
        of(Box::new(Unary::Silu), |n| vec![f32(&[n])]),
        of(Box::new(Scale { mul: 2.0, add: 1.0 }), |n| vec![f32(&[n])]),
        of(Box::new(Swiglu), |n| vec![f32(&[n]), f32(&[n])]),
        of(Box::new(Binary::Add), |n| vec![f32(&[n, 2]), f32(&[n, 1])]),
        of(Box::new(Permute { axes: vec![1, 0] }), |n| vec![f32(&[n, 2])]),
        of(
            Box::new(Slice {
                axis: 1,
                start: 1,
                len: 1,
            }),
            |n| vec![f32(&[n, 2])],
        ),
        of(Box::new(Concat { axis: 0 }), |n| vec![f32(&[n]), f32(&[3])]),
        of(Box::new(UpsampleNearest { factor: 2 }), |n| vec![f32(&[n, 1, 1, 1])]),
        of(Box::new(Rotary::Interleaved), |n| {
            vec![f32(&[1, n, 1, 2]), f32(&[n, 1]), f32(&[n, 1])]
        }),
        of(Box::new(Embedding { dtype: DType::F32 }), |n| {
            vec![f32(&[5, 3]), TensorType::new(DType::U32, [n])]
        }),
        of(
            Box::new(Matmul {
                fused: Fused::default(),
            }),
            |n| vec![f32(&[n, 2]), f32(&[1, 2])],
        ),
        of(
            Box::new(BatchedMatmul {
                transpose_b: true,
                scale: 1.0,
            }),
            |n| vec![f32(&[n, 1, 2]), f32(&[n, 1, 2])],
        ),
        of(
            Box::new(Attend {
                mask: false,
                causal: false,
                scale: 1.0,
            }),
            |n| vec![f32(&[n, 1, 1, 2]), f32(&[n, 2, 1, 2]), f32(&[n, 2, 1, 2])],
        ),
        of(
            Box::new(Convolve {
                conv: Conv2d::padded(0),
                fused: Fused::default(),
            }),
            |n| vec![f32(&[n, 1, 1, 1]), f32(&[1, 1, 1, 1])],
        ),
    ]
}

impl Growing {
    /// The baseline for `n` units.
    fn way(&self, n: usize, caps: &Caps) -> Option<(Vec<TensorType>, TensorType, Way)> {
        let inputs = (self.inputs)(n);
        let output = self.op.infer(&inputs).ok()?;
        let ways = self.op.ways(&inputs, &output, caps);
        let way = ways.into_iter().find(|w| w.name == Way::BASELINE)?;
        Some((inputs, output, way))
    }

    /// Workgroups of the largest launch for `n` units, were there no limit.
    fn groups(&self, n: usize, caps: &Caps) -> usize {
        let caps = Caps {
            max_workgroups: u32::MAX,
            ..caps.clone()
        };
        let way = self.way(n, &caps).map(|(_, _, way)| way);
        way.map_or(0, |way| {
            way.launches.iter().map(|l| l.grid[0] as usize).max().unwrap_or(0)
        })
    }

    /// The fewest units that take `groups` workgroups.
    fn units(&self, groups: usize, caps: &Caps) -> usize {
        let (mut low, mut high) = (0, 1 << 26);
        while low + 1 < high {
            let middle = (low + high) / 2;
            if self.groups(middle, caps) < groups {
                low = middle
            } else {
                high = middle
            }
        }
        high
    }

    fn check(&self, groups: usize, gpu: &Gpu) -> Result<(), Failed> {
        let caps = gpu.caps();
        let n = self.units(groups, caps);
        let (types, output, way) = self.way(n, caps).ok_or("a case that does not fit its operator")?;
        if self.groups(n, caps) != groups {
            return Err(format!("no size takes {groups} workgroups").into());
        }
        let mut uniform = support::uniform(&format!("{:?}", self.op));
        let inputs = self.op.sample(&types, &mut uniform);
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        let want = self.op.reference(&views);
        let got = pollster::block_on(gpu.run_way(&way, &inputs, &output, caps))?;
        let tolerance: Tolerance = self.op.tolerance(DType::F32);
        Ok(support::within(&got.data, &want, tolerance)?)
    }
}

fn main() {
    let args = Arguments::from_args();
    let gpu = support::gpu();
    let limit = gpu.map_or(65_535, |gpu| gpu.caps().max_workgroups as usize);
    let mut trials = Vec::new();
    for (index, case) in growing().into_iter().enumerate() {
        for groups in [limit - 1, limit, limit + 1] {
            let name = format!("{}/{groups} workgroups", case.op.name());
            let trial = Trial::test(name, move || growing()[index].check(groups, gpu.ok_or("no GPU")?));
            trials.push(trial.with_ignored_flag(gpu.is_none()));
        }
    }
    libtest_mimic::run(&args, trials).exit();
}

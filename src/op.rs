//! What an operator is: shape rule, kernels, CPU reference and test cases, in one place.

use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::KernelSpec;
use crate::tensor::{DType, Tensor, TensorType, View};
use std::fmt::Debug;

/// What a binding of a launch refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// The n-th input of the node.
    Input(usize),
    /// Of an input, the n-th of the parts that [`Caps::parts`] cuts a weight into: for operators that run part by part. What is
    /// not cut is part 0.
    Part(usize, usize),
    /// The n-th scratch buffer of the way.
    Scratch(usize),
    /// The output of the node.
    Output,
}

/// One dispatch: a kernel, its parameters, its grid and its buffers.
///
/// Binding 0 is `Params`, binding 1 is what the launch writes, bindings from 2 on are what it reads. With the output in front,
/// an optional input (a bias, a residual) never moves another binding.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What to compile.
    pub kernel: KernelSpec,
    /// The `Params` struct of the kernel.
    pub params: Vec<u8>,
    /// Workgroups per axis.
    pub grid: [u32; 3],
    /// Binding numbers from 1 on.
    pub operands: Vec<(u32, Operand)>,
}

impl Launch {
    /// A launch that writes the node's output; reads are added with [`Launch::read`].
    pub fn new(kernel: KernelSpec, params: &impl bytemuck::NoUninit, grid: [u32; 3]) -> Self {
        Self {
            kernel,
            params: bytemuck::bytes_of(params).to_vec(),
            grid,
            operands: vec![(1, Operand::Output)],
        }
    }

    /// Binds a read-only operand.
    pub fn read(mut self, binding: u32, operand: Operand) -> Self {
        self.operands.push((binding, operand));
        self
    }

    /// Binds inputs `0..n` at bindings `2..2 + n`.
    pub fn inputs(mut self, n: usize) -> Self {
        self.operands.extend((0..n).map(|i| (i as u32 + 2, Operand::Input(i))));
        self
    }

    /// Writes a scratch buffer in place of the output.
    pub fn writes_scratch(mut self, index: usize) -> Self {
        self.operands[0].1 = Operand::Scratch(index);
        self
    }
}

/// One way of running an operator: one launch mostly, several with scratch where it pays.
#[derive(Clone, Debug)]
pub struct Way {
    /// Name within the operator; one is [`Way::BASELINE`], which needs no features and only WebGPU's default limits.
    pub name: &'static str,
    /// Dispatches, in order.
    pub launches: Vec<Launch>,
    /// Bytes of each scratch buffer.
    pub scratch: Vec<u64>,
}

impl Way {
    /// Name of the way that runs everywhere.
    pub const BASELINE: &str = "baseline";

    /// A way of one launch.
    pub fn single(name: &'static str, launch: Launch) -> Self {
        Self {
            name,
            launches: vec![launch],
            scratch: Vec::new(),
        }
    }

    /// The baseline of one launch.
    pub fn baseline(launch: Launch) -> Self {
        Self::single(Self::BASELINE, launch)
    }

    /// The baseline of a launch for each part of a weight; each writes a part of the output that no other does.
    pub fn parts(launches: Vec<Launch>) -> Self {
        Self {
            name: Self::BASELINE,
            launches,
            scratch: Vec::new(),
        }
    }
}

/// Work of a node: what a roofline needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations; a multiply-add is two.
    pub flops: f64,
    /// Bytes that must cross the memory bus at least once.
    pub bytes: f64,
}

impl Cost {
    /// Every input and the output cross the bus once; `per_element` operations for each output element.
    pub fn streaming(inputs: &[TensorType], output: &TensorType, per_element: f64) -> Self {
        Self {
            flops: output.count() as f64 * per_element,
            bytes: inputs.iter().chain([output]).map(|ty| ty.byte_len() as f64).sum(),
        }
    }
}

/// How far a kernel may be from the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Largest normalised mean squared error: `sum (got - want)^2 / sum want^2`.
    pub nmse: f64,
    /// Largest absolute error, as a share of the largest magnitude of the reference.
    pub max: f64,
}

impl Tolerance {
    /// Values that are only moved.
    pub const EXACT: Self = Self { nmse: 0.0, max: 0.0 };

    /// The default for results stored as `dtype`: a few roundings of that type. The mean is squared.
    pub const fn of(dtype: DType) -> Self {
        match dtype {
            DType::F16 => Self { nmse: 1e-6, max: 4e-3 },
            DType::BF16 => Self { nmse: 6e-5, max: 3e-2 },
            _ => Self { nmse: 1e-12, max: 1e-5 },
        }
    }
}

/// One input set for tests and benches.
#[derive(Clone, Debug)]
pub struct Case<O> {
    /// The operator with its attributes.
    pub op: O,
    /// Types of the inputs.
    pub inputs: Vec<TensorType>,
}

/// An operator: what a node of the graph does.
pub trait Op: Debug + Send + Sync + 'static {
    /// Name in messages, tests and benches; that of its row in the op table.
    fn name(&self) -> &'static str;

    /// Output type. A [`Graph`](crate::graph::Graph) gives no input without elements.
    ///
    /// # Errors
    /// If the inputs do not fit; the message says the rule.
    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError>;

    /// Ways to run it on an adapter with `caps`, best guess first. Inputs have passed [`Op::infer`].
    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way>;

    /// The definition of the operator in plain Rust, with sums in `f64`.
    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32>;

    /// A fast path on the CPU that fills `output`; `false` where there is none, and the reference is run.
    fn compute(&self, _inputs: &[View<'_>], _output: &mut [f32]) -> bool {
        false
    }

    /// Largest error against the reference for an output of `dtype`. Override with a reason.
    fn tolerance(&self, dtype: DType) -> Tolerance {
        Tolerance::of(dtype)
    }

    /// Work for a roofline.
    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost;

    /// Shapes for tests and benches.
    fn cases() -> Vec<Case<Self>>
    where
        Self: Sized;

    /// Values for a case: uniform in -1..1, rounded to the element type. Override where values have a meaning, such as ids.
    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        inputs.iter().map(|ty| random_tensor(ty, uniform)).collect()
    }
}

/// A tensor of uniform values, rounded to its element type; codes are uniform over their range.
pub fn random_tensor(ty: &TensorType, uniform: &mut dyn FnMut() -> f32) -> Tensor {
    let range = if ty.dtype == DType::I8 { 128.0 } else { 1.0 };
    Tensor::of(ty.clone(), (0..ty.count()).map(|_| range * uniform()).collect()).rounded()
}

/// A case whose operator type is erased.
pub type AnyCase = Case<Box<dyn Op>>;

/// A row of the operator table.
#[derive(Debug)]
pub struct OpEntry {
    /// Name in tests, benches and docs.
    pub name: &'static str,
    /// Cases of the operator.
    pub cases: fn() -> Vec<AnyCase>,
}

impl OpEntry {
    /// The row of operator `T`.
    pub const fn of<T: Op>(name: &'static str) -> Self {
        Self {
            name,
            cases: || {
                T::cases()
                    .into_iter()
                    .map(|case| Case {
                        op: Box::new(case.op) as Box<dyn Op>,
                        inputs: case.inputs,
                    })
                    .collect()
            },
        }
    }
}

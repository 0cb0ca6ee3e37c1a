//! What a matmul or convolution does to its sums before it stores them.

use super::Act;
use crate::error::ShapeError;
use crate::gpu::wgsl::KernelSpec;
use crate::graph::Value;
use crate::op::{Launch, Operand};
use crate::tensor::{DType, TensorType, View};

/// `residual + gate * act(scale * sum + bias)`, fused into the op that makes the sum; each part is optional.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Epilogue {
    /// One `f32` per output channel.
    pub bias: Option<Value>,
    /// Activation function.
    pub act: Act,
    /// A tensor like the output.
    pub residual: Option<Value>,
    /// One activation per output channel; wants a residual.
    pub gate: Option<Value>,
    /// One `f32` per output channel: that of quantised weights with a scale for each row.
    pub scale: Option<Value>,
}

impl Epilogue {
    /// Multiplies the sums by `scale`, an `f32` vector, before the bias.
    pub fn scale(self, scale: Value) -> Self {
        Self {
            scale: Some(scale),
            ..self
        }
    }

    /// Adds `bias`, an `f32` vector.
    pub fn bias(self, bias: Value) -> Self {
        Self {
            bias: Some(bias),
            ..self
        }
    }

    /// Applies `act` after the bias.
    pub fn act(self, act: Act) -> Self {
        Self { act, ..self }
    }

    /// Adds `residual`, a tensor like the output, last.
    pub fn residual(self, residual: Value) -> Self {
        Self {
            residual: Some(residual),
            ..self
        }
    }

    /// Multiplies by `gate` before the residual is added.
    pub fn gate(self, gate: Value) -> Self {
        Self {
            gate: Some(gate),
            ..self
        }
    }

    /// Which parts there are.
    pub fn fused(&self) -> Fused {
        Fused {
            bias: self.bias.is_some(),
            act: self.act,
            residual: self.residual.is_some(),
            gate: self.gate.is_some(),
            scale: self.scale.is_some(),
        }
    }

    /// The inputs of a node: those of the op, then the parts that there are.
    pub(crate) fn inputs(&self, op: &[Value]) -> Vec<Value> {
        let parts = [self.bias, self.residual, self.gate, self.scale];
        op.iter().copied().chain(parts.into_iter().flatten()).collect()
    }
}

/// The parts of an [`Epilogue`], as an attribute of an op. Their tensors are the last inputs: bias, residual, gate, scale.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fused {
    /// Whether there is a bias.
    pub bias: bool,
    /// Activation function.
    pub act: Act,
    /// Whether there is a residual.
    pub residual: bool,
    /// Whether there is a gate.
    pub gate: bool,
    /// Whether there is a scale.
    pub scale: bool,
}

impl Fused {
    /// Number of inputs that the parts add.
    pub(crate) fn count(self) -> usize {
        [self.bias, self.residual, self.gate, self.scale]
            .into_iter()
            .map(usize::from)
            .sum()
    }

    /// Checks the inputs from number `first` on, for an output of type `y` with `channels` channels.
    pub(crate) fn check(
        self,
        op: &'static str,
        inputs: &[TensorType],
        first: usize,
        y: &TensorType,
        channels: usize,
    ) -> Result<(), ShapeError> {
        let refuse = |rule: String| Err(ShapeError::new(op, inputs, rule));
        if self.gate && !self.residual {
            return refuse("a gate wants a residual".into());
        }
        if inputs.len() != first + self.count() {
            return refuse(format!("wants {} inputs", first + self.count()));
        }
        let mut parts = inputs[first..].iter();
        let mut fits = |there: bool, wanted: &TensorType| !there || parts.next() == Some(wanted);
        if !fits(self.bias, &TensorType::new(DType::F32, [channels])) {
            return refuse(format!("the bias must be f32 [{channels}]"));
        }
        if !fits(self.residual, y) {
            return refuse(format!("the residual must be {y} like the output"));
        }
        if !fits(self.gate, &TensorType::new(y.dtype, [channels])) {
            return refuse(format!("the gate must be {} [{channels}]", y.dtype));
        }
        if !fits(self.scale, &TensorType::new(DType::F32, [channels])) {
            return refuse(format!("the scale must be f32 [{channels}]"));
        }
        Ok(())
    }

    /// Fills the slots of `lib/epilogue`.
    pub(crate) fn fill(self, kernel: KernelSpec) -> KernelSpec {
        let residual = match (self.residual, self.gate) {
            (false, _) => "none",
            (true, false) => "add",
            (true, true) => "gated",
        };
        kernel
            .slot("act", self.act.slot())
            .slot("bias", if self.bias { "vector" } else { "none" })
            .slot("scale", if self.scale { "vector" } else { "none" })
            .slot("residual", residual)
    }

    /// Binds the tensors of the parts: inputs from number `first` on, at bindings 4 (bias), 5 (residual), 6
    /// (gate) and 7 (scale).
    pub(crate) fn bind(self, launch: Launch, first: usize) -> Launch {
        [(self.bias, 4), (self.residual, 5), (self.gate, 6), (self.scale, 7)]
            .into_iter()
            .filter_map(|(there, binding)| there.then_some(binding))
            .enumerate()
            .fold(launch, |l, (i, binding)| l.read(binding, Operand::Input(first + i)))
    }

    /// Types of the parts for an output of type `y`: for cases.
    pub(crate) fn types(self, y: &TensorType, channels: usize) -> Vec<TensorType> {
        let bias = self.bias.then(|| TensorType::new(DType::F32, [channels]));
        let residual = self.residual.then(|| y.clone());
        let gate = self.gate.then(|| TensorType::new(y.dtype, [channels]));
        let scale = self.scale.then(|| TensorType::new(DType::F32, [channels]));
        [bias, residual, gate, scale].into_iter().flatten().collect()
    }

    /// The values of the parts, for the CPU; `inputs` are those of the parts only.
    pub(crate) fn values<'a>(self, inputs: &[View<'a>]) -> FusedValues<'a> {
        let mut parts = inputs.iter().map(|view| view.data);
        let mut next = |there: bool| if there { parts.next() } else { None };
        FusedValues {
            bias: next(self.bias),
            act: self.act,
            residual: next(self.residual),
            gate: next(self.gate),
            scale: next(self.scale),
        }
    }
}

/// An [`Epilogue`] with its values on the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FusedValues<'a> {
    bias: Option<&'a [f32]>,
    act: Act,
    residual: Option<&'a [f32]>,
    gate: Option<&'a [f32]>,
    scale: Option<&'a [f32]>,
}

impl FusedValues<'_> {
    /// The definition: output element `i`, in channel `j`, from its sum.
    pub(crate) fn define(&self, sum: f64, i: usize, j: usize) -> f64 {
        let at = |part: Option<&[f32]>, index: usize| part.map(|p| f64::from(p[index]));
        let v = at(self.scale, j).unwrap_or(1.0) * sum;
        let v = self.act.apply(v + at(self.bias, j).unwrap_or(0.0));
        let v = v * at(self.gate, j).unwrap_or(1.0);
        at(self.residual, i).unwrap_or(0.0) + v
    }

    /// Finishes sums that lie in rows, one column per channel. `first` is the index of the first in the output.
    pub(crate) fn finish_rows(&self, sums: &mut [f32], channels: usize, first: usize) {
        if let Some(scale) = self.scale {
            for row in sums.chunks_exact_mut(channels) {
                row.iter_mut().zip(scale).for_each(|(v, s)| *v *= s);
            }
        }
        if let Some(bias) = self.bias {
            for row in sums.chunks_exact_mut(channels) {
                row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
            }
        }
        self.act.apply_all(sums);
        if let Some(gate) = self.gate {
            for row in sums.chunks_exact_mut(channels) {
                row.iter_mut().zip(gate).for_each(|(v, g)| *v *= g);
            }
        }
        self.add_residual(sums, first);
    }

    /// Finishes a whole output of sums in rows, on all threads.
    pub(crate) fn finish_all_rows(&self, sums: &mut [f32], channels: usize) {
        let parts = [self.bias, self.residual, self.gate, self.scale];
        if self.act == Act::None && parts.iter().all(Option::is_none) {
            return;
        }
        // Enough rows at a time that handing them out costs little.
        let block = 8192usize.div_ceil(channels) * channels;
        #[cfg(feature = "native")]
        {
            use rayon::prelude::*;
            let blocks = sums.par_chunks_mut(block).enumerate();
            blocks.for_each(|(i, rows)| self.finish_rows(rows, channels, i * block));
        }
        #[cfg(not(feature = "native"))]
        for (i, rows) in sums.chunks_mut(block).enumerate() {
            self.finish_rows(rows, channels, i * block);
        }
    }

    /// Finishes sums of one channel that lie together, such as part of a picture. `first` is the index of the first in the output.
    pub(crate) fn finish_plane(&self, sums: &mut [f32], channel: usize, first: usize) {
        if let Some(scale) = self.scale {
            sums.iter_mut().for_each(|v| *v *= scale[channel]);
        }
        if let Some(bias) = self.bias {
            sums.iter_mut().for_each(|v| *v += bias[channel]);
        }
        self.act.apply_all(sums);
        self.add_residual(sums, first);
    }

    /// Finishes the sums of a picture, in planes of one channel each, on all threads. `first` is the index of the first in the
    /// output.
    pub(crate) fn finish_all_planes(&self, sums: &mut [f32], plane: usize, first: usize) {
        let finish = |(channel, sums): (usize, &mut [f32])| self.finish_plane(sums, channel, first + channel * plane);
        #[cfg(feature = "native")]
        {
            use rayon::prelude::*;
            sums.par_chunks_exact_mut(plane).enumerate().for_each(finish);
        }
        #[cfg(not(feature = "native"))]
        sums.chunks_exact_mut(plane).enumerate().for_each(finish);
    }

    fn add_residual(&self, values: &mut [f32], first: usize) {
        if let Some(residual) = self.residual {
            let residual = &residual[first..first + values.len()];
            values.iter_mut().zip(residual).for_each(|(v, r)| *v += r);
        }
    }
}

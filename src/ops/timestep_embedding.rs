//! `timestep_embedding`: sines and cosines of a timestep at many frequencies.

use super::flat::flat;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Way};
use crate::tensor::{DType, Shape, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// Most columns: a wish for more is a damaged file's.
const MAX_DIM: usize = 1 << 16;

/// What `get_timestep_embedding` of diffusers takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimestepEmbedding {
    /// Columns of the result. An odd one leaves the last column zero.
    pub dim: usize,
    /// The lowest frequency is about its inverse.
    pub max_period: f32,
    /// Factor on the timestep, applied before the frequency.
    pub scale: f32,
    /// Cosines first, as in DiT and Z-Image.
    pub flip_sin_to_cos: bool,
    /// `downscale_freq_shift`: 0 or 1.
    pub shift: f32,
}

impl Default for TimestepEmbedding {
    /// 256 columns, period 10,000, no scale or shift, cosines first.
    fn default() -> Self {
        Self {
            dim: 256,
            max_period: 10_000.0,
            scale: 1.0,
            flip_sin_to_cos: true,
            shift: 0.0,
        }
    }
}

impl TimestepEmbedding {
    /// `exp(-ln(max_period) i / (half - shift))`, with each step rounded to `f32` as PyTorch does.
    fn frequencies(&self) -> Tensor {
        let half = self.dim / 2;
        let factor = -f64::from(self.max_period).ln() as f32;
        let frequency = |i: usize| {
            let exponent = factor * i as f32 / (half as f32 - self.shift);
            f64::from(exponent).exp() as f32
        };
        Tensor::new([half], (0..half).map(frequency).collect())
    }

    /// First columns of cosines and sines.
    fn columns(&self) -> (usize, usize) {
        if self.flip_sin_to_cos {
            (0, self.dim / 2)
        } else {
            (self.dim / 2, 0)
        }
    }
}

/// Cosines and sines of `t * scale * frequency`, from timesteps `[n]` and a table of frequencies `[dim / 2]`.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbedTimestep {
    /// Shape and order of the embedding.
    pub embedding: TimestepEmbedding,
    /// Element type of the result.
    pub dtype: DType,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    half: u32,
    dim: u32,
    cos_at: u32,
    sin_at: u32,
    scale: f32,
}

impl Graph {
    /// Sinusoidal embedding `[n, dim]`, in the graph's type, of timesteps `t`, `f32` `[n]`.
    ///
    /// # Errors
    /// If `t` is no list of `f32` values or `dim` is not in 2..=65536.
    pub fn timestep_embedding(&mut self, t: Value, embedding: TimestepEmbedding) -> Result<Value, ShapeError> {
        // The table is made before `infer` can refuse its size.
        let dim = embedding.dim.min(MAX_DIM);
        let frequencies = self.constant(TimestepEmbedding { dim, ..embedding }.frequencies());
        let dtype = self.dtype();
        self.push(EmbedTimestep { embedding, dtype }, &[t, frequencies])
    }
}

impl EmbedTimestep {
    /// Fills `y` with the embedding of every `t`.
    fn fill(&self, t: &[f32], frequencies: &[f32], y: &mut [f32]) {
        let TimestepEmbedding { dim, scale, .. } = self.embedding;
        let (cos_at, sin_at) = self.embedding.columns();
        y.fill(0.0);
        for (row, t) in y.chunks_exact_mut(dim).zip(t) {
            for (i, frequency) in frequencies.iter().enumerate() {
                // The product in f32 is part of the definition: another angle would be another embedding.
                let angle = f64::from(t * scale * frequency);
                row[cos_at + i] = angle.cos() as f32;
                row[sin_at + i] = angle.sin() as f32;
            }
        }
    }
}

impl Op for EmbedTimestep {
    fn name(&self) -> &'static str {
        "timestep_embedding"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let dim = self.embedding.dim;
        match inputs {
            [t, frequencies]
                if (2..=MAX_DIM).contains(&dim)
                    && t.dtype == DType::F32
                    && t.shape.len() == 1
                    && *frequencies == TensorType::new(DType::F32, [dim / 2]) =>
            {
                Ok(TensorType::new(self.dtype, [t.shape[0], dim]))
            }
            _ => Err(ShapeError::new(
                "timestep_embedding",
                inputs,
                format!(
                    "wants f32 timesteps [n] and half as many f32 frequencies as the dimension {dim}, which is in 2..={MAX_DIM}"
                ),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        let half = self.embedding.dim / 2;
        let count = inputs[0].count() * half;
        let (cos_at, sin_at) = self.embedding.columns();
        let params = Params {
            count: count as u32,
            half: half as u32,
            dim: self.embedding.dim as u32,
            cos_at: cos_at as u32,
            sin_at: sin_at as u32,
            scale: self.embedding.scale,
        };
        let kernel = KernelSpec::new(wgsl!("ops/timestep_embedding")).elem(self.dtype);
        vec![Way::baseline(flat(kernel, &params, count, caps).inputs(2))]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [t, frequencies] = inputs else { return Vec::new() };
        let mut y = vec![0.0; t.data.len() * self.embedding.dim];
        self.fill(t.data, frequencies.data, &mut y);
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [t, frequencies] = inputs else { return false };
        self.fill(t.data, frequencies.data, output);
        true
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 20.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, n, embedding: TimestepEmbedding| Case {
            op: Self { embedding, dtype },
            inputs: vec![
                TensorType::new(DType::F32, [n]),
                TensorType::new(DType::F32, [embedding.dim / 2]),
            ],
        };
        let base = TimestepEmbedding::default();
        let old = TimestepEmbedding {
            flip_sin_to_cos: false,
            shift: 1.0,
            ..base
        };
        vec![
            case(DType::F32, 1, TimestepEmbedding { dim: 2, ..base }),
            case(DType::F32, 3, base),
            case(DType::F32, 2, TimestepEmbedding { dim: 33, ..base }),
            case(DType::F32, 5, TimestepEmbedding { dim: 64, ..old }),
            case(DType::F32, 2, TimestepEmbedding { scale: 1000.0, ..base }),
            case(DType::F16, 2, base),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        // Angles up to 1000.
        let shape: Shape = inputs[0].shape.clone();
        let largest = 1000.0 / self.embedding.scale;
        let t = (0..shape.count()).map(|_| uniform() * largest).collect();
        vec![Tensor::new(shape, t), self.embedding.frequencies()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_fall_from_one_to_the_period() {
        let embedding = TimestepEmbedding {
            shift: 1.0,
            ..TimestepEmbedding::default()
        };
        let table = embedding.frequencies().data;
        assert_eq!(table[0], 1.0);
        assert!((table[127] * 10_000.0 - 1.0).abs() < 1e-5);
    }

    #[test]
    fn order_and_padding() {
        let embed = |flip_sin_to_cos| {
            let op = EmbedTimestep {
                embedding: TimestepEmbedding {
                    dim: 3,
                    flip_sin_to_cos,
                    ..TimestepEmbedding::default()
                },
                dtype: DType::F32,
            };
            let mut y = [f32::NAN; 3];
            op.fill(&[1.0], &[1.0], &mut y);
            y
        };
        assert_eq!(embed(true), [1f32.cos(), 1f32.sin(), 0.0]);
        assert_eq!(embed(false), [1f32.sin(), 1f32.cos(), 0.0]);
    }
}

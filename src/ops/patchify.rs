//! `patchify` and `unpatchify`: pictures as rows of patches, and back.

use super::is_activation;
use super::strided::Strided;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Tolerance, Way};
use crate::tensor::{DType, Shape, TensorType, View};

/// Order of the values of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchOrder {
    /// Row, column, channel, as in Z-Image.
    ChannelsLast,
    /// Channel, row, column, as in FLUX.
    ChannelsFirst,
}

/// `[n, c, h, w]` to `[n, (h / p) (w / p), p p c]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Patchify {
    /// Side of a patch.
    pub patch: usize,
    /// Order of the values of a patch.
    pub order: PatchOrder,
}

/// `[n, (h / p) (w / p), p p c]` to `[n, c, h, w]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Unpatchify {
    /// Side of a patch.
    pub patch: usize,
    /// Order of the values of a patch.
    pub order: PatchOrder,
    /// Channels, height and width of the picture.
    pub size: [usize; 3],
}

impl Graph {
    /// `[n, c, h, w]` to `[n, (h / p) (w / p), p p c]`: a row per patch.
    ///
    /// # Errors
    /// If `x` is no activation of rank 4 whose sides are multiples of `patch`.
    pub fn patchify(&mut self, x: Value, patch: usize, order: PatchOrder) -> Result<Value, ShapeError> {
        self.push(Patchify { patch, order }, &[x])
    }

    /// `[n, (h / p) (w / p), p p c]` to `[n, c, h, w]`: the inverse of [`Graph::patchify`].
    ///
    /// # Errors
    /// If `x` is no activation of that shape.
    pub fn unpatchify(
        &mut self,
        x: Value,
        channels: usize,
        height: usize,
        width: usize,
        patch: usize,
        order: PatchOrder,
    ) -> Result<Value, ShapeError> {
        let size = [channels, height, width];
        self.push(Unpatchify { patch, order, size }, &[x])
    }
}

/// Strides of channel, row and column within a patch of `c` channels.
fn within(order: PatchOrder, c: usize, p: usize) -> [usize; 3] {
    match order {
        PatchOrder::ChannelsLast => [1, p * c, c],
        PatchOrder::ChannelsFirst => [p * p, p, 1],
    }
}

/// Where the value of a picture lies among the patches: the definition of both operators.
fn place([c, h, w]: [usize; 3], p: usize, order: PatchOrder, at: [usize; 4]) -> usize {
    let [n, channel, row, col] = at;
    let [sc, sr, sp] = within(order, c, p);
    let patch = (n * (h / p) + row / p) * (w / p) + col / p;
    patch * p * p * c + channel * sc + row % p * sr + col % p * sp
}

/// Calls `f` with the index in the picture and the index among the patches of every value.
fn each(n: usize, size: [usize; 3], p: usize, order: PatchOrder, mut f: impl FnMut(usize, usize)) {
    let [c, h, w] = size;
    for i in 0..n * c * h * w {
        let at = [i / (c * h * w), i / (h * w) % c, i / w % h, i % w];
        f(i, place(size, p, order, at));
    }
}

fn divides(patch: usize, sides: &[usize]) -> bool {
    patch > 0 && sides.iter().all(|n| n.is_multiple_of(patch))
}

impl Patchify {
    fn strided(&self, shape: &[usize]) -> Strided {
        let &[n, c, h, w] = shape else {
            return Strided::default();
        };
        let p = self.patch;
        let patches = [(n, c * h * w), (h / p, p * w), (w / p, p)];
        let inner = match self.order {
            PatchOrder::ChannelsLast => [(p, w), (p, 1), (c, h * w)],
            PatchOrder::ChannelsFirst => [(c, h * w), (p, w), (p, 1)],
        };
        Strided::new(0, patches.into_iter().chain(inner))
    }
}

impl Op for Patchify {
    fn name(&self) -> &'static str {
        "patchify"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let p = self.patch;
        match inputs {
            [x] if is_activation(x) && x.shape.len() == 4 && divides(p, &x.shape[2..]) => {
                let patches = x.shape[2] / p * (x.shape[3] / p);
                Ok(TensorType::new(x.dtype, [x.shape[0], patches, p * p * x.shape[1]]))
            }
            _ => Err(ShapeError::new(
                "patchify",
                inputs,
                format!("wants an activation [n, c, h, w] with h and w multiples of {p}"),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        self.strided(&inputs[0].shape).ways(inputs[0].dtype, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let s = x.shape();
        let mut y = vec![0.0; x.data.len()];
        each(s[0], [s[1], s[2], s[3]], self.patch, self.order, |picture, patches| {
            y[patches] = x.data[picture]
        });
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        self.strided(x.shape()).copy(x.data, output);
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |patch, order, dtype, shape: &[usize]| Case {
            op: Self { patch, order },
            inputs: vec![TensorType::new(dtype, shape)],
        };
        use PatchOrder::{ChannelsFirst, ChannelsLast};
        vec![
            case(1, ChannelsLast, DType::F32, &[1, 1, 1, 1]),
            case(2, ChannelsLast, DType::F32, &[1, 3, 6, 10]),
            case(2, ChannelsFirst, DType::F32, &[2, 5, 4, 6]),
            case(3, ChannelsLast, DType::F16, &[2, 5, 6, 9]),
            case(2, ChannelsLast, DType::F32, &[1, 16, 16, 16]),
        ]
    }
}

impl Unpatchify {
    fn strided(&self, n: usize) -> Strided {
        let [c, h, w] = self.size;
        let p = self.patch;
        let [sc, sr, sp] = within(self.order, c, p);
        let row = p * p * c;
        let axes = [
            (n, c * h * w),
            (c, sc),
            (h / p, w / p * row),
            (p, sr),
            (w / p, row),
            (p, sp),
        ];
        Strided::new(0, axes)
    }
}

impl Op for Unpatchify {
    fn name(&self) -> &'static str {
        "unpatchify"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        let ([c, h, w], p) = (self.size, self.patch);
        let patch = Shape::from([p, p, c]).count();
        match inputs {
            [x] if is_activation(x)
                && x.shape.len() == 3
                && divides(p, &[h, w])
                && x.shape[1..] == [Shape::from([h / p, w / p]).count(), patch] =>
            {
                Ok(TensorType::new(x.dtype, [x.shape[0], c, h, w]))
            }
            _ => Err(ShapeError::new(
                "unpatchify",
                inputs,
                format!("wants patches of side {p} that make up [n, {c}, {h}, {w}]"),
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], _: &TensorType, caps: &Caps) -> Vec<Way> {
        self.strided(inputs[0].shape[0]).ways(inputs[0].dtype, caps)
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [x] = inputs else { return Vec::new() };
        let mut y = vec![0.0; x.data.len()];
        each(x.shape()[0], self.size, self.patch, self.order, |picture, patches| {
            y[picture] = x.data[patches]
        });
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [x] = inputs else { return false };
        self.strided(x.shape()[0]).copy(x.data, output);
        true
    }

    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        Cost::streaming(inputs, output, 0.0)
    }

    fn cases() -> Vec<Case<Self>> {
        Patchify::cases()
            .into_iter()
            .map(|Case { op, inputs }| {
                let x = &inputs[0];
                let size = [x.shape[1], x.shape[2], x.shape[3]];
                let patches = (size[1] / op.patch) * (size[2] / op.patch);
                let shape = [x.shape[0], patches, op.patch * op.patch * size[0]];
                Case {
                    op: Self {
                        patch: op.patch,
                        order: op.order,
                        size,
                    },
                    inputs: vec![TensorType::new(x.dtype, shape)],
                }
            })
            .collect()
    }
}

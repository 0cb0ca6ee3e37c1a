//! What the element-wise operators of several operands share: numpy's broadcasting.

use super::flat::flat;
use super::is_activation;
use super::parallel::pieces;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::op::Way;
use crate::tensor::{Shape, TensorType, View};
use bytemuck::{Pod, Zeroable};

const MAX_RANK: usize = 6;
/// Elements that the CPU treats at a time.
const BLOCK: usize = 256;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    dims: [u32; MAX_RANK - 1],
    strides: [[u32; MAX_RANK]; 3],
}

/// The shape that all shapes broadcast to.
fn common(shapes: &[&Shape]) -> Option<Shape> {
    let rank = shapes.iter().map(|s| s.len()).max()?;
    let mut dims = vec![1; rank];
    for shape in shapes {
        for (have, &dim) in dims[rank - shape.len()..].iter_mut().zip(shape.iter()) {
            match (*have, dim) {
                (1, _) => *have = dim,
                (a, b) if a == b || b == 1 => {}
                _ => return None,
            }
        }
    }
    Some(dims.into())
}

/// Type of the result, if all are activations of one type, their shapes fit and no rank is above 6.
pub(super) fn infer(inputs: &[TensorType]) -> Option<TensorType> {
    let first = inputs.first()?;
    let shapes: Vec<_> = inputs.iter().map(|t| &t.shape).collect();
    let fits = is_activation(first)
        && inputs
            .iter()
            .all(|t| t.dtype == first.dtype && t.shape.len() <= MAX_RANK);
    Some(TensorType::new(first.dtype, common(&shapes).filter(|_| fits)?))
}

/// Axes from the innermost on, without those of size 1, neighbours merged where every operand allows.
#[derive(Debug, PartialEq)]
struct Layout {
    dims: Vec<usize>,
    strides: Vec<[usize; 3]>,
}

impl Layout {
    fn new(output: &Shape, operands: &[&Shape]) -> Self {
        let mut layout = Self {
            dims: Vec::new(),
            strides: Vec::new(),
        };
        for axis in (0..output.len()).rev().filter(|&axis| output[axis] != 1) {
            let size = output[axis];
            let mut steps = [0; 3];
            for (step, shape) in steps.iter_mut().zip(operands) {
                let missing = output.len() - shape.len();
                if axis >= missing && shape[axis - missing] != 1 {
                    *step = shape.strides()[axis - missing];
                }
            }
            if let (Some(inner), Some(inner_steps)) = (layout.dims.last_mut(), layout.strides.last())
                && (0..3).all(|k| steps[k] == inner_steps[k] * *inner)
            {
                *inner *= size;
            } else {
                layout.dims.push(size);
                layout.strides.push(steps);
            }
        }
        if layout.dims.is_empty() {
            layout.dims.push(1);
            layout.strides.push([0; 3]);
        }
        layout
    }

    /// Whether element i of every operand makes element i of the output.
    fn is_same(&self, operands: usize) -> bool {
        self.dims.len() == 1 && self.strides[0][..operands].iter().all(|&s| s == 1)
    }

    /// Where each operand has the row that begins at output element `row * dims[0]`.
    fn row(&self, mut row: usize) -> [usize; 3] {
        let mut at = [0; 3];
        for (dim, steps) in self.dims.iter().zip(&self.strides).skip(1) {
            for (at, step) in at.iter_mut().zip(steps) {
                *at += row % dim * step;
            }
            row /= dim;
        }
        at
    }
}

/// The kernel `broadcast` with this `combine`.
pub(super) fn ways(combine: &'static str, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
    let shapes: Vec<_> = inputs.iter().map(|t| &t.shape).collect();
    let layout = Layout::new(&output.shape, &shapes);
    let mut params = Params {
        count: output.count() as u32,
        dims: [1; MAX_RANK - 1],
        strides: [[0; MAX_RANK]; 3],
    };
    for (slot, dim) in params.dims.iter_mut().zip(&layout.dims) {
        *slot = *dim as u32;
    }
    for (axis, steps) in layout.strides.iter().enumerate() {
        for (operand, step) in params.strides.iter_mut().zip(steps) {
            operand[axis] = *step as u32;
        }
    }
    let kernel = KernelSpec::new(wgsl!("ops/broadcast"))
        .elem(output.dtype)
        .slot("combine", combine);
    let kernel = if layout.is_same(inputs.len()) {
        kernel.slot("place", "same")
    } else {
        kernel.slot("place", "strided").set("AXES", layout.dims.len() as u32)
    };
    let launch = flat(kernel, &params, output.count(), caps);
    vec![Way::baseline(launch.inputs(inputs.len()))]
}

/// `f` of the operands at every index of the output, by numpy's rule.
pub(super) fn reference(inputs: &[View<'_>], f: impl Fn([f64; 3]) -> f64) -> Vec<f32> {
    let shapes: Vec<_> = inputs.iter().map(|v| &v.ty.shape).collect();
    let output = common(&shapes).unwrap_or_default();
    let value = |i: usize| {
        let mut values = [0.0; 3];
        for (value, input) in values.iter_mut().zip(inputs) {
            let (mut rest, mut at, mut step) = (i, 0, 1);
            // Axes that the operand lacks are outermost, so the zip ends before them.
            for (dim, own) in output.iter().rev().zip(input.shape().iter().rev()) {
                at += if *own == 1 { 0 } else { rest % dim * step };
                step *= own;
                rest /= dim;
            }
            *value = f64::from(input.data[at]);
        }
        f(values) as f32
    };
    (0..output.count()).map(value).collect()
}

/// The same in `f32`, in short runs that the compiler can vectorise.
pub(super) fn compute(inputs: &[View<'_>], output: &mut [f32], f: impl Fn([f32; 3]) -> f32 + Send + Sync) -> bool {
    let shapes: Vec<_> = inputs.iter().map(|v| &v.ty.shape).collect();
    let Some(shape) = common(&shapes) else { return false };
    let layout = Layout::new(&shape, &shapes);
    let cols = layout.dims[0];
    pieces(output, 1, |start, piece| {
        let mut repeated = [[0.0; BLOCK]; 3];
        let mut done = 0;
        while done < piece.len() {
            let (row, col) = ((start + done) / cols, (start + done) % cols);
            let len = (cols - col).min(BLOCK).min(piece.len() - done);
            let at = layout.row(row);
            let mut runs = [&[0.0; BLOCK][..len]; 3];
            for (k, (input, buffer)) in inputs.iter().zip(&mut repeated).enumerate() {
                runs[k] = if layout.strides[0][k] == 0 {
                    buffer[..len].fill(input.data[at[k]]);
                    &buffer[..len]
                } else {
                    &input.data[at[k] + col..][..len]
                };
            }
            let [a, b, c] = runs;
            let y = &mut piece[done..][..len];
            for i in 0..len {
                y[i] = f([a[i], b[i], c[i]]);
            }
            done += len;
        }
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(output: &[usize], operands: &[&[usize]]) -> Layout {
        let operands: Vec<Shape> = operands.iter().map(|&s| s.into()).collect();
        Layout::new(&output.into(), &operands.iter().collect::<Vec<_>>())
    }

    #[test]
    fn axes_merge_where_all_operands_allow() {
        let same = layout(&[2, 3, 4], &[&[2, 3, 4], &[2, 3, 4]]);
        assert_eq!((same.is_same(2), same.dims), (true, vec![24]));
        let row = layout(&[2, 3, 4], &[&[2, 3, 4], &[4]]);
        assert_eq!((row.dims, row.strides), (vec![4, 6], vec![[1, 1, 0], [4, 0, 0]]));
        let batch = layout(&[2, 3, 4], &[&[2, 3, 4], &[2, 1, 4], &[1, 1, 4]]);
        assert_eq!((batch.dims, batch.strides[2]), (vec![4, 3, 2], [12, 4, 0]));
        let scalar = layout(&[1, 1], &[&[1, 1], &[]]);
        assert_eq!((scalar.is_same(2), scalar.dims), (false, vec![1]));
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let common = |a: &[usize], b: &[usize]| common(&[&a.into(), &b.into()]);
        assert_eq!(common(&[2, 1, 4], &[3, 1]), Some([2, 3, 4].into()));
        assert_eq!(common(&[2, 3], &[2]), None);
        assert_eq!(common(&[0, 3], &[1, 3]), Some([0, 3].into()));
    }
}

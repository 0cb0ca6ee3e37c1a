//! `embedding`: rows of a table by index.

use super::flat::flat;
use super::parallel::pieces;
use crate::error::ShapeError;
use crate::gpu::Caps;
use crate::gpu::wgsl::{KernelSpec, wgsl};
use crate::graph::{Graph, Value};
use crate::op::{Case, Cost, Op, Operand, Tolerance, Way, random_tensor};
use crate::quant;
use crate::tensor::{DType, Part, Tensor, TensorType, View};
use bytemuck::{Pod, Zeroable};

/// `y[t] = table[ids[t]]`; an id outside the table gives NaN.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Element type of the result.
    pub dtype: DType,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    count: u32,
    first: u32,
    rows: u32,
    all_rows: u32,
    cols: u32,
    nan: f32,
}

impl Graph {
    /// Rows of `table`, a weight `[v, d]`, at `ids`, indices `[t]`: `[t, d]` in the graph's type. An id of `v` or more gives NaN.
    ///
    /// # Errors
    /// If the table is no matrix of floats or blocks, or the ids are no list of indices.
    pub fn embedding(&mut self, table: Value, ids: Value) -> Result<Value, ShapeError> {
        let dtype = self.dtype();
        self.push(Embedding { dtype }, &[table, ids])
    }
}

/// One row of the table, decoded if it is packed; NaN past its end.
fn copy_row(table: View<'_>, id: usize, row: &mut [f32]) {
    let bytes = table.ty.dtype.bytes(row.len());
    let found = table.data.get(id * row.len()..(id + 1) * row.len());
    if let Some(found) = found {
        row.copy_from_slice(found);
    } else if let Some(blocks) = table.blocks.get(id * bytes..(id + 1) * bytes) {
        match table.ty.dtype {
            DType::I8 => row
                .iter_mut()
                .zip(blocks)
                .for_each(|(v, &code)| *v = f32::from(code as i8)),
            dtype => quant::decode_into(dtype, blocks, row),
        }
    } else {
        row.fill(f32::NAN);
    }
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<TensorType, ShapeError> {
        match inputs {
            [table, ids]
                if (super::is_weight(table) || super::is_packed_matrix(table))
                    && ids.dtype == DType::U32
                    && table.shape.len() == 2
                    && ids.shape.len() == 1 =>
            {
                Ok(TensorType::new(self.dtype, [ids.shape[0], table.shape[1]]))
            }
            _ => Err(ShapeError::new(
                "embedding",
                inputs,
                "wants a table of floats, codes or blocks [v, d] and indices [t]",
            )),
        }
    }

    fn ways(&self, inputs: &[TensorType], output: &TensorType, caps: &Caps) -> Vec<Way> {
        let table = &inputs[0];
        let kernel = KernelSpec::new(wgsl!("ops/embedding"))
            .elem(self.dtype)
            .slot("weight", table.dtype.name());
        let launch = |(n, part): (usize, Part)| {
            let params = Params {
                count: output.count() as u32,
                first: part.first as u32,
                rows: part.ty.shape[0] as u32,
                all_rows: table.shape[0] as u32,
                cols: table.shape[1] as u32,
                nan: f32::NAN,
            };
            flat(kernel.clone(), &params, output.count(), caps)
                .read(2, Operand::Input(1))
                .read(3, Operand::Part(0, n))
        };
        let launches = caps.parts(table).into_iter().enumerate().map(launch).collect();
        vec![Way::parts(launches)]
    }

    fn reference(&self, inputs: &[View<'_>]) -> Vec<f32> {
        let [table, ids] = inputs else { return Vec::new() };
        let d = table.shape()[1];
        let mut y = Vec::with_capacity(ids.data.len() * d);
        let table = table.values();
        for &id in ids.data {
            match table.get(id as usize * d..(id as usize + 1) * d) {
                Some(row) => y.extend_from_slice(row),
                None => y.extend((0..d).map(|_| f32::NAN)),
            }
        }
        y
    }

    fn compute(&self, inputs: &[View<'_>], output: &mut [f32]) -> bool {
        let [table, ids] = inputs else { return false };
        let d = table.shape()[1];
        if d == 0 {
            return true;
        }
        pieces(output, d, |start, piece| {
            for (row, &id) in piece.chunks_exact_mut(d).zip(&ids.data[start / d..]) {
                copy_row(*table, id as usize, row);
            }
        });
        true
    }

    // Values are only moved, and rounded where the result is narrower than the table.
    fn tolerance(&self, _: DType) -> Tolerance {
        Tolerance::EXACT
    }

    fn cost(&self, inputs: &[TensorType], output: &TensorType) -> Cost {
        // Of the table only the rows that are asked for.
        let bytes = inputs[0].dtype.bytes(output.count()) + inputs[1].byte_len() + output.byte_len();
        Cost {
            flops: 0.0,
            bytes: bytes as f64,
        }
    }

    fn cases() -> Vec<Case<Self>> {
        let case = |dtype, table, v, d, t| Case {
            op: Self { dtype },
            inputs: vec![TensorType::new(table, [v, d]), TensorType::new(DType::U32, [t])],
        };
        vec![
            case(DType::F32, DType::F32, 1, 1, 1),
            case(DType::F32, DType::F32, 11, 33, 7),
            case(DType::F32, DType::F16, 11, 33, 7),
            case(DType::F32, DType::BF16, 11, 33, 7),
            case(DType::F32, DType::BF16, 12, 64, 5),
            case(DType::F16, DType::F32, 11, 33, 7),
            case(DType::F16, DType::F16, 11, 33, 7),
            case(DType::F16, DType::BF16, 11, 33, 7),
            case(DType::F32, DType::BF16, 2000, 384, 77),
            case(DType::F32, DType::Q8_0, 11, 96, 7),
            case(DType::F16, DType::Q8_0, 12, 64, 7),
            case(DType::F32, DType::I8, 11, 97, 7),
            case(DType::F32, DType::Q4_0, 11, 96, 7),
            case(DType::F32, DType::Q4_1, 11, 96, 7),
            case(DType::F16, DType::Q4_1, 12, 64, 7),
            case(DType::F32, DType::Q5_0, 11, 96, 7),
            case(DType::F32, DType::Q5_1, 11, 96, 7),
            case(DType::F32, DType::Q2K, 11, 256, 7),
            case(DType::F32, DType::Q3K, 11, 256, 7),
            case(DType::F32, DType::Q4K, 11, 256, 7),
            case(DType::F16, DType::Q4K, 9, 512, 7),
            case(DType::F32, DType::Q5K, 11, 512, 7),
            case(DType::F32, DType::Q6K, 11, 768, 7),
            case(DType::F16, DType::Q6K, 9, 256, 7),
        ]
    }

    fn sample(&self, inputs: &[TensorType], uniform: &mut dyn FnMut() -> f32) -> Vec<Tensor> {
        let rows = inputs[0].shape[0] as f32;
        let t = inputs[1].count();
        let mut ids: Vec<u32> = (0..t).map(|_| ((uniform() + 1.0) / 2.0 * rows) as u32).collect();
        if t > 5 {
            // Past the end: must be NaN, not another row.
            ids[5] = rows as u32;
        }
        vec![
            random_tensor(&inputs[0], uniform),
            Tensor::ids(inputs[1].shape.clone(), &ids),
        ]
    }
}

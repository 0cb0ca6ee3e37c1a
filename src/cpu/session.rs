use crate::backend::find_input;
use crate::checkpoint::Weights;
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::memory::{Residency, Resident, budget};
use crate::plan::{Bytes, Named, Output, Place, Plan, cpu_dtype, cpu_weight_bytes};
use crate::tensor::{Tensor, TensorType, View};
use std::sync::Arc;

/// The CPU as a device. Clones share their weights.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    weights: Arc<Residency<Tensor>>,
}

/// A graph that is ready to run on the CPU.
#[derive(Debug)]
pub struct CpuSession {
    plan: Plan,
    nodes: Vec<RunNode>,
    buffers: Vec<Vec<f32>>,
    inputs: Vec<Tensor>,
    weights: Vec<Arc<Resident<Tensor>>>,
}

/// A node with its operands resolved to places.
#[derive(Debug)]
struct RunNode {
    op: Arc<dyn crate::op::Op>,
    inputs: Vec<(Place, TensorType)>,
    output: usize,
    len: usize,
}

impl Cpu {
    /// Allocates what the graph needs and loads its weights: packed ones as they are, others widened to `f32`.
    ///
    /// # Errors
    /// If the machine has no room for it, or a weight cannot be loaded.
    pub fn prepare(&self, graph: &Graph, weights: &Weights) -> Result<CpuSession> {
        let plan = Plan::cpu(graph);
        let held = |w: &&Named| self.weights.get(weights, &w.name, cpu_dtype(w.ty.dtype)).is_some();
        let held: u64 = plan.weights.iter().filter(held).map(|w| cpu_weight_bytes(&w.ty)).sum();
        budget::check(plan.cpu_bytes().total() - held)?;
        let resolve = |value: &Value| plan.place(graph, *value).map(|place| (place, graph.ty(*value).clone()));
        let node = |node: &Node| {
            let (Place::Shared(output), ty) = resolve(&node.output)? else {
                return None;
            };
            Some(RunNode {
                op: node.op.clone(),
                inputs: node.inputs.iter().map(resolve).collect::<Option<_>>()?,
                output,
                len: ty.count(),
            })
        };
        let nodes = plan.nodes.iter().filter_map(|&i| node(&graph.nodes()[i])).collect();
        let load = |Named { name, ty }: &Named| {
            let dtype = cpu_dtype(ty.dtype);
            match self.weights.get(weights, name, dtype) {
                Some(held) => Ok(held),
                None => {
                    let tensor = weights.load(name, dtype)?;
                    Ok::<_, Error>(self.weights.insert(weights, name, dtype, tensor))
                }
            }
        };
        Ok(CpuSession {
            nodes,
            buffers: plan
                .buffers
                .iter()
                .map(|&bytes| vec![0.0; bytes as usize / 4])
                .collect(),
            inputs: plan.inputs.iter().map(|i| zeros(&i.ty)).collect(),
            weights: plan.weights.iter().map(load).collect::<Result<_>>()?,
            plan,
        })
    }
}

fn zeros(ty: &TensorType) -> Tensor {
    Tensor::of(ty.clone(), vec![0.0; ty.count()])
}

/// Bytes that a weight really takes.
fn held_bytes(weight: &Tensor) -> u64 {
    weight.data.capacity() as u64 * 4 + weight.blocks.capacity() as u64
}

impl CpuSession {
    /// Runs the graph; inputs that are not given keep their values.
    ///
    /// # Errors
    /// If an input is unknown or has another shape.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        for (name, tensor) in inputs {
            let index = find_input(&self.plan, name, tensor)?;
            self.inputs[index].data.clone_from(&tensor.data);
            self.inputs[index].blocks.clone_from(&tensor.blocks);
        }
        self.compute();
        let data = |output: &Output| self.view(output.place, &output.ty).data.to_vec();
        let outputs = self.plan.outputs.iter().map(|o| Tensor::of(o.ty.clone(), data(o)));
        Ok(outputs.collect())
    }

    /// Runs the graph `times` over on the inputs it has: for benches.
    pub fn repeat(&mut self, times: u32) {
        for _ in 0..times {
            self.compute();
        }
    }

    fn compute(&mut self) {
        for i in 0..self.nodes.len() {
            let node = &self.nodes[i];
            let mut output = std::mem::take(&mut self.buffers[node.output]);
            let views: Vec<_> = node.inputs.iter().map(|(place, ty)| self.view(*place, ty)).collect();
            if !node.op.compute(&views, &mut output[..node.len]) {
                output[..node.len].copy_from_slice(&node.op.reference(&views));
            }
            let index = node.output;
            self.buffers[index] = output;
        }
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes it really holds.
    pub fn allocated(&self) -> Bytes {
        let bytes = |data: &Vec<f32>| data.capacity() as u64 * 4;
        let constants: u64 = self.plan.constants.iter().map(|c| bytes(&c.data)).sum();
        Bytes {
            weights: self.weights.iter().map(|w| held_bytes(&w.storage)).sum(),
            activations: self.buffers.iter().map(bytes).sum(),
            inputs: self.inputs.iter().map(|t| bytes(&t.data)).sum::<u64>() + constants,
            transfer: 0,
        }
    }

    /// As [`Session::keep_weights`](crate::backend::Session).
    pub(crate) fn keep_weights(&self) -> Vec<Arc<Resident<Tensor>>> {
        self.weights.clone()
    }

    /// As [`Session::weights`](crate::backend::Session).
    pub(crate) fn weights(&self) -> Vec<(usize, u64, u64)> {
        let planned = self.plan.weights.iter().map(|w| cpu_weight_bytes(&w.ty));
        let held = self.weights.iter();
        let held = held.map(|w| (Arc::as_ptr(w) as usize, held_bytes(&w.storage)));
        planned
            .zip(held)
            .map(|(planned, (id, held))| (id, planned, held))
            .collect()
    }

    fn view<'a>(&'a self, place: Place, ty: &'a TensorType) -> View<'a> {
        let tensor = match place {
            Place::Shared(i) => {
                return View {
                    ty,
                    data: &self.buffers[i][..ty.count()],
                    blocks: &[],
                };
            }
            Place::Input(i) => &self.inputs[i],
            Place::Constant(i) => &self.plan.constants[i],
            Place::Weight(i, _) => &self.weights[i].storage,
        };
        View {
            ty,
            data: &tensor.data,
            blocks: &tensor.blocks,
        }
    }
}

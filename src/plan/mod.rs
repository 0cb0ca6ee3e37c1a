//! The plan of a graph: what runs in which order, in which buffers, with every byte known before anything is allocated.

mod blocks;
mod buffers;
mod convrot;
mod policy;

pub use buffers::{Lifetime, Sharing, lower_bound, share};
pub use convrot::{ConvrotMode, ConvrotPath};
pub use policy::{Choice, Policy};

use crate::error::PlanError;
use crate::gpu::Caps;
use crate::gpu::wgsl::KernelSpec;
use crate::graph::{Graph, Source, Value};
use crate::op::{Cost, Launch, Operand, Way};
use crate::tensor::{DType, Tensor, TensorType};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Alignment of each step's `Params` in the uniform buffer: WebGPU's default `minUniformBufferOffsetAlignment`.
pub const PARAMS_STRIDE: u32 = 256;

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A buffer that tensors share by lifetime.
    Shared(usize),
    /// An input, in a buffer of its own that keeps its contents between runs.
    Input(usize),
    /// A constant of the graph.
    Constant(usize),
    /// A weight, and which of the parts that [`Caps::parts`] cuts it into.
    Weight(usize, usize),
}

/// One dispatch on the GPU.
#[derive(Clone, Debug)]
pub struct Step {
    /// Index of the node in the graph.
    pub node: usize,
    /// What to compile.
    pub kernel: KernelSpec,
    /// Offset of its `Params` in the uniform buffer.
    pub params: u32,
    /// Workgroups per axis.
    pub grid: [u32; 3],
    /// Binding number and buffer; binding 1 is written, the others are read.
    pub bindings: Vec<(u32, Place)>,
}

impl Step {
    /// Binding numbers, without that of the `Params`.
    pub fn numbers(&self) -> Vec<u32> {
        self.bindings.iter().map(|(number, _)| *number).collect()
    }
}

/// A named tensor with its type.
#[derive(Clone, Debug, PartialEq)]
pub struct Named {
    /// Name.
    pub name: String,
    /// Type on the device.
    pub ty: TensorType,
}

/// A result: where it lies after the last step.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Name.
    pub name: String,
    /// Type on the device.
    pub ty: TensorType,
    /// Where.
    pub place: Place,
}

/// Bytes of a plan, by purpose. They are exact: a session allocates this and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Weights, in the types that kernels read.
    pub weights: u64,
    /// Shared buffers of activations and scratch.
    pub activations: u64,
    /// Inputs and constants.
    pub inputs: u64,
    /// `Params` of all steps, and the buffer that results are read back through.
    pub transfer: u64,
}

impl Bytes {
    /// Sum.
    pub fn total(&self) -> u64 {
        self.weights + self.session()
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            weights: self.weights + other.weights,
            activations: self.activations + other.activations,
            inputs: self.inputs + other.inputs,
            transfer: self.transfer + other.transfer,
        }
    }

    /// All but the weights, which sessions of one model share.
    pub fn session(&self) -> u64 {
        self.activations + self.inputs + self.transfer
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |n: u64| n as f64 / f64::from(1 << 20);
        write!(
            f,
            "{:.2} MiB (weights {:.2}, activations {:.2}, inputs {:.2}, transfer {:.2})",
            mib(self.total()),
            mib(self.weights),
            mib(self.activations),
            mib(self.inputs),
            mib(self.transfer)
        )
    }
}

/// What a graph needs to run on one device.
#[derive(Debug)]
pub struct Plan {
    /// Live nodes in order.
    pub nodes: Vec<usize>,
    /// Dispatches in order; empty for the CPU, which runs nodes.
    pub steps: Vec<Step>,
    /// `Params` of all steps.
    pub params: Vec<u8>,
    /// Bytes of each shared buffer.
    pub buffers: Vec<u64>,
    /// Inputs.
    pub inputs: Vec<Named>,
    /// Constants.
    pub constants: Vec<Arc<Tensor>>,
    /// Weights, by full name in the checkpoint.
    pub weights: Vec<Named>,
    /// Results.
    pub outputs: Vec<Output>,
    /// Which way each operator runs, and why.
    pub choices: BTreeSet<Choice>,
    /// Fewest bytes of activations that any sharing could reach.
    pub lower_bound: u64,
    /// Work of all nodes.
    pub cost: Cost,
    /// Work of each live node.
    pub node_costs: Vec<Cost>,
    /// Block of the model that each live node belongs to; it grows from node to node where the block changes.
    pub blocks: Vec<usize>,
    /// Weights that each live node reads.
    pub node_weights: Vec<Vec<usize>>,
    places: Vec<Option<Place>>,
}

impl Plan {
    /// A plan for a GPU.
    ///
    /// # Errors
    /// If a tensor is over a limit of the adapter, or a forced way does not exist.
    pub fn gpu(graph: &Graph, caps: &Caps, policy: &Policy) -> Result<Self, PlanError> {
        for (op, way) in &policy.forced {
            policy::check_forced(op, way, caps)?;
        }
        let mut plan = Self::outline(graph);
        if graph.dtype() == DType::F16 && !caps.f16 {
            return Err(PlanError::NoF16(DType::F16));
        }
        let mut ways = Vec::with_capacity(plan.nodes.len());
        for &index in &plan.nodes {
            let node = &graph.nodes()[index];
            let inputs: Vec<_> = node.inputs.iter().map(|v| graph.ty(*v).clone()).collect();
            check_limits(&node.path, graph.ty(node.output), caps)?;
            let split: Vec<bool> = node.inputs.iter().map(|v| is_split(graph, *v, caps)).collect();
            for (ty, _) in inputs.iter().zip(&split).filter(|(_, split)| !**split) {
                check_limits(&node.path, ty, caps)?;
            }
            let mut candidates = node.op.ways(&inputs, graph.ty(node.output), caps);
            let (chosen, choice) = policy.choose(node.op.name(), &candidates, caps)?;
            plan.choices.insert(choice);
            let way = candidates.swap_remove(chosen);
            for (i, value) in node.inputs.iter().enumerate() {
                if split[i] && !takes_parts(graph, &way, i, *value, caps) {
                    check_limits(&node.path, &inputs[i], caps)?;
                }
            }
            for bytes in &way.scratch {
                check_limits(&node.path, &words(*bytes), caps)?;
            }
            ways.push(way);
        }
        let scratch: Vec<Vec<u64>> = ways.iter().map(|way| way.scratch.clone()).collect();
        let scratch = plan.assign(graph, &scratch, |ty| ty.byte_len() as u64);
        for (at, way) in ways.into_iter().enumerate() {
            plan.add_steps(graph, at, way, &scratch[at]);
        }
        for (what, bytes) in [
            ("parameters", plan.params.len() as u64),
            ("results", plan.readback_bytes()),
        ] {
            check_bytes(what, &words(bytes), caps.max_buffer, "maxBufferSize")?;
        }
        Ok(plan)
    }

    /// A plan for the CPU, where every element takes four bytes.
    pub fn cpu(graph: &Graph) -> Self {
        let mut plan = Self::outline(graph);
        let none = vec![Vec::new(); plan.nodes.len()];
        plan.assign(graph, &none, cpu_bytes);
        plan
    }

    /// Where a value lives; `None` if nothing needs it.
    pub fn place(&self, graph: &Graph, value: Value) -> Option<Place> {
        self.places[graph.root(value).0]
    }

    /// Exact bytes on a GPU.
    pub fn gpu_bytes(&self) -> Bytes {
        let named = |list: &[Named]| list.iter().map(|n| n.ty.byte_len() as u64).sum::<u64>();
        let constants: u64 = self.constants.iter().map(|c| c.ty.byte_len() as u64).sum();
        Bytes {
            weights: named(&self.weights),
            activations: self.buffers.iter().sum(),
            inputs: named(&self.inputs) + constants,
            transfer: self.params.len() as u64 + self.readback_bytes(),
        }
    }

    /// Exact bytes on the CPU, without the scratch of the fast paths.
    pub fn cpu_bytes(&self) -> Bytes {
        let named = |list: &[Named]| list.iter().map(|n| cpu_bytes(&n.ty)).sum::<u64>();
        Bytes {
            weights: self.weights.iter().map(|w| cpu_weight_bytes(&w.ty)).sum(),
            activations: self.buffers.iter().sum(),
            inputs: named(&self.inputs) + self.constants.iter().map(|c| cpu_bytes(&c.ty)).sum::<u64>(),
            transfer: 0,
        }
    }

    /// Bytes of the buffer that results are read back through.
    pub fn readback_bytes(&self) -> u64 {
        self.outputs.iter().map(|o| o.ty.byte_len() as u64).sum()
    }

    /// Live nodes and the places of all that is not computed.
    fn outline(graph: &Graph) -> Self {
        let mut live = vec![false; graph.nodes().len()];
        let mut needed: Vec<Value> = graph.outputs().iter().map(|(_, v)| graph.root(*v)).collect();
        let mut places = vec![None; graph.values().len()];
        while let Some(value) = needed.pop() {
            if let Source::Node(node) = graph.source(value) {
                if !std::mem::replace(&mut live[*node], true) {
                    needed.extend(graph.nodes()[*node].inputs.iter().map(|v| graph.root(*v)));
                }
            } else {
                places[value.0] = Some(Place::Input(0));
            }
        }
        let mut plan = Self {
            nodes: (0..live.len()).filter(|&i| live[i]).collect(),
            steps: Vec::new(),
            params: Vec::new(),
            buffers: Vec::new(),
            inputs: Vec::new(),
            constants: Vec::new(),
            weights: Vec::new(),
            outputs: Vec::new(),
            choices: BTreeSet::new(),
            lower_bound: 0,
            cost: Cost::default(),
            node_costs: Vec::new(),
            blocks: Vec::new(),
            node_weights: Vec::new(),
            places,
        };
        for value in graph.values() {
            plan.place_source(graph, value);
        }
        plan.find_blocks(graph);
        for &index in &plan.nodes {
            let node = &graph.nodes()[index];
            let inputs: Vec<_> = node.inputs.iter().map(|v| graph.ty(*v).clone()).collect();
            let cost = node.op.cost(&inputs, graph.ty(node.output));
            plan.cost.flops += cost.flops;
            plan.cost.bytes += cost.bytes;
            plan.node_costs.push(cost);
        }
        plan
    }

    fn place_source(&mut self, graph: &Graph, value: Value) {
        // Inputs are kept even where nothing reads them, so that giving one is never an error.
        let needed = self.places[value.0].is_some();
        let named = |name: &str| Named {
            name: name.to_owned(),
            ty: graph.ty(value).clone(),
        };
        self.places[value.0] = match graph.source(value) {
            Source::Input(name) => {
                self.inputs.push(named(name));
                Some(Place::Input(self.inputs.len() - 1))
            }
            Source::Constant(tensor) if needed => {
                self.constants.push(tensor.clone());
                Some(Place::Constant(self.constants.len() - 1))
            }
            Source::Weight(name) if needed => {
                let weight = named(name);
                let known = self.weights.iter().position(|w| *w == weight);
                let index = known.unwrap_or_else(|| {
                    self.weights.push(weight);
                    self.weights.len() - 1
                });
                Some(Place::Weight(index, 0))
            }
            _ => None,
        };
    }

    /// Shares buffers among results and scratch; returns the places of the scratch of each live node.
    fn assign(&mut self, graph: &Graph, scratch: &[Vec<u64>], size: impl Fn(&TensorType) -> u64) -> Vec<Vec<Place>> {
        let end = self.nodes.len();
        let mut last: Vec<usize> = vec![0; graph.values().len()];
        for (at, &index) in self.nodes.iter().enumerate() {
            let node = &graph.nodes()[index];
            last[node.output.0] = at;
            for input in &node.inputs {
                last[graph.root(*input).0] = at;
            }
        }
        for (_, value) in graph.outputs() {
            last[graph.root(*value).0] = end;
        }
        let mut lifetimes = Vec::new();
        for (at, &index) in self.nodes.iter().enumerate() {
            let output = graph.nodes()[index].output;
            lifetimes.push(Lifetime {
                bytes: size(graph.ty(output)),
                first: at,
                last: last[output.0],
            });
        }
        for (at, sizes) in scratch.iter().enumerate() {
            lifetimes.extend(sizes.iter().map(|&bytes| Lifetime {
                bytes: bytes.max(4).next_multiple_of(4),
                first: at,
                last: at,
            }));
        }
        let sharing = share(&lifetimes);
        self.lower_bound = lower_bound(&lifetimes);
        let mut of = sharing.of.into_iter().map(Place::Shared);
        for (&index, place) in self.nodes.iter().zip(&mut of) {
            self.places[graph.nodes()[index].output.0] = Some(place);
        }
        let scratch = scratch
            .iter()
            .map(|sizes| of.by_ref().take(sizes.len()).collect())
            .collect();
        self.buffers = sharing.buffers;
        for (name, value) in graph.outputs() {
            if let Some(place) = self.place(graph, *value) {
                self.outputs.push(Output {
                    name: name.clone(),
                    ty: graph.ty(*value).clone(),
                    place,
                });
            }
        }
        scratch
    }

    fn add_steps(&mut self, graph: &Graph, at: usize, way: Way, scratch: &[Place]) {
        let node = &graph.nodes()[self.nodes[at]];
        for launch in way.launches {
            let bindings = launch
                .operands
                .iter()
                .filter_map(|(binding, operand)| {
                    let place = match operand {
                        Operand::Input(i) => self.place(graph, node.inputs[*i]),
                        Operand::Part(i, part) => match self.place(graph, node.inputs[*i]) {
                            Some(Place::Weight(weight, _)) => Some(Place::Weight(weight, *part)),
                            whole => whole,
                        },
                        Operand::Scratch(i) => scratch.get(*i).copied(),
                        Operand::Output => self.place(graph, node.output),
                    };
                    Some((*binding, place?))
                })
                .collect();
            let params = self.params.len() as u32;
            self.params.extend(&launch.params);
            let padded = self.params.len().next_multiple_of(PARAMS_STRIDE as usize);
            self.params.resize(padded, 0);
            self.steps.push(Step {
                node: self.nodes[at],
                kernel: launch.kernel,
                params,
                grid: launch.grid,
                bindings,
            });
        }
    }
}

/// Bytes on the CPU, where every element is an `f32`.
fn cpu_bytes(ty: &TensorType) -> u64 {
    ty.count() as u64 * 4
}

/// How the CPU holds weights: packed ones as they are, others as `f32`.
pub(crate) fn cpu_dtype(dtype: DType) -> DType {
    if dtype.is_packed() { dtype } else { DType::F32 }
}

/// Bytes of a weight on the CPU.
pub(crate) fn cpu_weight_bytes(ty: &TensorType) -> u64 {
    cpu_dtype(ty.dtype).bytes(ty.count()) as u64
}

/// Whether the value is a weight that lies on the device in several parts.
fn is_split(graph: &Graph, value: Value, caps: &Caps) -> bool {
    let root = graph.root(value);
    matches!(graph.source(root), Source::Weight(_)) && caps.parts(graph.ty(root)).len() > 1
}

/// Whether the way reads input `i` in the parts that the weight behind it has.
fn takes_parts(graph: &Graph, way: &Way, i: usize, value: Value, caps: &Caps) -> bool {
    let counts = |v: Value| caps.parts(graph.ty(v)).iter().map(|p| p.ty.count()).collect::<Vec<_>>();
    let whole = |launch: &Launch| launch.operands.iter().any(|(_, o)| *o == Operand::Input(i));
    !way.launches.iter().any(whole) && counts(value) == counts(graph.root(value))
}

fn check_limits(node: &str, ty: &TensorType, caps: &Caps) -> Result<(), PlanError> {
    let count = ty.count() as u64;
    if count > u64::from(u32::MAX) {
        return Err(PlanError::IndexOverflow {
            node: node.into(),
            tensor: ty.clone(),
            count,
        });
    }
    check_bytes(node, ty, caps.max_binding, "maxStorageBufferBindingSize")?;
    check_bytes(node, ty, caps.max_buffer, "maxBufferSize")
}

fn check_bytes(node: &str, ty: &TensorType, limit: u64, which: &'static str) -> Result<(), PlanError> {
    let bytes = ty.byte_len() as u64;
    if bytes <= limit {
        return Ok(());
    }
    Err(PlanError::ExceedsLimit {
        node: node.into(),
        tensor: ty.clone(),
        bytes,
        limit,
        which,
    })
}

/// A tensor of so many bytes.
fn words(bytes: u64) -> TensorType {
    TensorType::new(DType::U32, [bytes.div_ceil(4) as usize])
}

use crate::backend::find_input;
use crate::checkpoint::{Checkpoint, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, Node, Value};
use crate::memory::budget;
use crate::memory::faults::Faults;
use crate::memory::offload::{Hold, Segment, Stream};
use crate::memory::residency::{Guard, Home, Residency, Resident, Storage, Store, WeightRef};
use crate::plan::{Bytes, Named, Output, Place, Plan, cpu_dtype, cpu_weight_bytes};
use crate::tensor::{DType, Tensor, TensorType, View};
use std::ops::Range;
use std::sync::Arc;

/// The CPU as a device. Clones share their weights.
#[derive(Clone, Debug, Default)]
pub struct Cpu {
    weights: Residency,
    faults: Arc<Faults>,
}

/// Brings weights to the host: packed ones as they are, others as `f32`.
#[derive(Debug)]
struct CpuStore(Arc<Faults>);

impl Store for CpuStore {
    fn bring(&self, weight: &WeightRef, dtype: DType, host: Option<&Resident>) -> Result<Storage> {
        let loaded = weight.ty().dtype;
        let tensor = match host.and_then(|copy| copy.storage().values()) {
            Some(tensor) => tensor.as_ref().clone(),
            None => load(weight.checkpoint(), weight.name(), loaded, &self.0)?,
        };
        Ok(Storage::Values(Arc::new(match dtype == loaded {
            true => tensor,
            false => tensor.to_dtype(loaded).to_dtype(dtype),
        })))
    }

    fn bytes(&self, ty: &TensorType) -> u64 {
        cpu_weight_bytes(ty)
    }

    fn free(&self) -> Option<u64> {
        budget::available()
    }
}

/// A graph that is ready to run on the CPU.
#[derive(Debug)]
pub struct CpuSession {
    faults: Arc<Faults>,
    plan: Plan,
    nodes: Vec<RunNode>,
    buffers: Vec<Vec<f32>>,
    inputs: Vec<Tensor>,
    // None where a weight is streamed.
    weights: Vec<Option<Arc<Resident>>>,
    guard: Guard,
    streaming: Option<Streaming>,
}

/// Weights that are there only while their block computes.
#[derive(Debug)]
struct Streaming {
    stream: Stream,
    source: Weights,
    here: Vec<Option<Tensor>>,
    /// The most bytes that have been there at once.
    peak: u64,
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
    /// The CPU of a device whose weights `residency` knows.
    pub(crate) fn beside(residency: Residency, faults: Arc<Faults>) -> Self {
        Self {
            weights: residency,
            faults,
        }
    }

    /// The same with weights of its own: what one engine holds is not another's.
    #[must_use]
    pub fn scoped(&self) -> Self {
        Self::beside(Residency::new(), self.faults.clone())
    }

    /// As [`Cpu::scoped`], with weights that stay after their last session until there is no room for another.
    #[must_use]
    pub fn keeping(&self) -> Self {
        Self::beside(Residency::keeping(), self.faults.clone())
    }

    /// Where its weights are.
    pub fn residency(&self) -> &Residency {
        &self.weights
    }

    /// Faults on demand: for tests.
    #[doc(hidden)]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Who brings weights here, to move them.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(CpuStore(self.faults.clone()))
    }

    /// Allocates what the graph needs and loads its weights: packed ones as they are, others widened to `f32`. Streamed weights follow
    /// in each run.
    ///
    /// # Errors
    /// If the machine has no room for it, it does not fit the budget of `hold`, or a weight cannot be loaded.
    pub fn prepare(&self, graph: &Graph, weights: &Weights, hold: Hold) -> Result<CpuSession> {
        let plan = Plan::cpu(graph);
        let stream = hold.stream(&plan, None)?;
        let stays = |i: usize| stream.as_ref().is_none_or(|stream| stream.spots[i].is_none());
        let refs = WeightRef::of(weights, &plan.weights, stays)?;
        let held = refs
            .iter()
            .filter(|weight| self.weights.resident(weight, Home::Host).is_some());
        let held: u64 = held.map(|weight| cpu_weight_bytes(weight.ty())).sum();
        let wanted = hold_bytes(&plan, stream.as_ref()).total();
        budget::check(wanted - held)?;
        self.allocate(graph, weights, (plan, stream), &refs)
            .map_err(|error| of_plan(error, wanted))
    }

    fn allocate(
        &self,
        graph: &Graph,
        weights: &Weights,
        (plan, stream): (Plan, Option<Stream>),
        refs: &[WeightRef],
    ) -> Result<CpuSession> {
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
        let shared = |bytes: &u64| budget::vec(*bytes as usize / 4, &self.faults);
        let input = |i: &Named| Ok(Tensor::of(i.ty.clone(), budget::vec(i.ty.count(), &self.faults)?));
        let buffers = plan.buffers.iter().map(shared).collect::<Result<_>>()?;
        let inputs = plan.inputs.iter().map(input).collect::<Result<_>>()?;
        let guard = self.weights.lock(refs, Home::Host, &self.store())?;
        let stays = |i: usize| stream.as_ref().is_none_or(|stream| stream.spots[i].is_none());
        Ok(CpuSession {
            faults: self.faults.clone(),
            nodes,
            buffers,
            inputs,
            weights: guard.spread(plan.weights.len(), stays),
            guard,
            streaming: stream.map(|stream| Streaming {
                stream,
                source: weights.clone(),
                here: plan.weights.iter().map(|_| None).collect(),
                peak: 0,
            }),
            plan,
        })
    }
}

/// Bytes of a plan whose weights are streamed, or all there.
pub(crate) fn hold_bytes(plan: &Plan, stream: Option<&Stream>) -> Bytes {
    let bytes = plan.cpu_bytes();
    Bytes {
        weights: stream.map_or(bytes.weights, |stream| stream.resident + stream.slot_bytes()),
        ..bytes
    }
}

/// A weight of the type `ty` as the CPU has it.
fn load(checkpoint: &Checkpoint, name: &str, ty: DType, faults: &Faults) -> Result<Tensor> {
    checkpoint.load_in(name, cpu_dtype(ty), |len| budget::room(len, faults))
}

/// An error with the bytes of the whole plan, where there was no room for a part of it.
fn of_plan(error: Error, wanted: u64) -> Error {
    match error {
        Error::OutOfMemory { available, .. } => Error::OutOfMemory { wanted, available },
        other => other,
    }
}

/// Bytes that a weight really takes.
fn held_bytes(weight: &Tensor) -> u64 {
    weight.data.capacity() as u64 * 4 + weight.blocks.capacity() as u64
}

impl CpuSession {
    /// Runs the graph; inputs that are not given keep their values.
    ///
    /// # Errors
    /// If an input is unknown or has another shape, or a streamed weight cannot be loaded.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        for (name, tensor) in inputs {
            let index = find_input(&self.plan, name, tensor)?;
            self.inputs[index].data.clone_from(&tensor.data);
            self.inputs[index].blocks.clone_from(&tensor.blocks);
        }
        let wanted = self.planned().total();
        self.compute().map_err(|error| of_plan(error, wanted))?;
        let result = |output: &Output| {
            let mut values = budget::room(output.ty.count(), &self.faults)?;
            values.extend_from_slice(self.view(output.place, &output.ty).data);
            Ok(Tensor::of(output.ty.clone(), values))
        };
        let results: Result<_> = self.plan.outputs.iter().map(result).collect();
        results.map_err(|error| of_plan(error, wanted))
    }

    /// Runs the graph `times` over on the inputs it has: for benches.
    ///
    /// # Errors
    /// If a streamed weight cannot be loaded.
    pub fn repeat(&mut self, times: u32) -> Result<()> {
        (0..times).try_for_each(|_| self.compute())
    }

    fn compute(&mut self) -> Result<()> {
        let Some(streaming) = &self.streaming else {
            self.compute_nodes(0..self.nodes.len());
            return Ok(());
        };
        let segments = 0..streaming.stream.segments.len();
        let result = segments.map(|i| self.bring(i).map(|nodes| self.compute_nodes(nodes)));
        let result = result.collect();
        self.forget();
        result
    }

    /// Loads the weights of a segment in place of those before it; its nodes.
    fn bring(&mut self, segment: usize) -> Result<Range<usize>> {
        self.forget();
        let Some(streaming) = &mut self.streaming else {
            return Ok(0..self.nodes.len());
        };
        let Segment { nodes, weights, .. } = &streaming.stream.segments[segment];
        if segment >= streaming.stream.first {
            for &weight in weights {
                let Named { name, ty } = &self.plan.weights[weight];
                streaming.here[weight] = Some(load(streaming.source.checkpoint(), name, ty.dtype, &self.faults)?);
            }
            let bytes = streaming.here.iter().flatten().map(held_bytes).sum();
            streaming.peak = streaming.peak.max(bytes);
        }
        Ok(nodes.clone())
    }

    fn forget(&mut self) {
        let here = self.streaming.iter_mut().flat_map(|streaming| &mut streaming.here);
        here.for_each(|weight| *weight = None);
    }

    fn compute_nodes(&mut self, nodes: Range<usize>) {
        for i in nodes {
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

    /// Bytes that were planned.
    pub fn planned(&self) -> Bytes {
        hold_bytes(&self.plan, self.stream())
    }

    /// How its weights are streamed, if they are.
    pub fn stream(&self) -> Option<&Stream> {
        self.streaming.as_ref().map(|streaming| &streaming.stream)
    }

    /// Bytes it really holds; of streamed weights the most that have been there at once.
    pub fn allocated(&self) -> Bytes {
        let bytes = |data: &Vec<f32>| data.capacity() as u64 * 4;
        let constants: u64 = self.plan.constants.iter().map(|c| bytes(&c.data)).sum();
        Bytes {
            weights: self.weights().iter().map(|(_, _, held)| held).sum(),
            activations: self.buffers.iter().map(bytes).sum(),
            inputs: self.inputs.iter().map(|t| bytes(&t.data)).sum::<u64>() + constants,
            transfer: 0,
        }
    }

    /// As [`Session::keep_weights`](crate::backend::Session).
    pub(crate) fn keep_weights(&self) -> Guard {
        self.guard.again()
    }

    /// As [`Session::weights`](crate::backend::Session).
    pub(crate) fn weights(&self) -> Vec<(usize, u64, u64)> {
        let held = |(named, held): (&Named, &Option<Arc<Resident>>)| {
            let held = held.as_ref()?;
            Some((Arc::as_ptr(held) as usize, cpu_weight_bytes(&named.ty), held.bytes()))
        };
        let streamed = self.streaming.iter().map(|streaming| {
            let id = std::ptr::from_ref(streaming) as usize;
            (id, streaming.stream.slot_bytes(), streaming.peak)
        });
        let resident = self.plan.weights.iter().zip(&self.weights).filter_map(held);
        resident.chain(streamed).collect()
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
            Place::Weight(i, _) => match &self.weights[i] {
                Some(held) => held.storage().values().expect("the host holds values"),
                None => {
                    let here = self.streaming.as_ref().and_then(|streaming| streaming.here[i].as_ref());
                    here.expect("a block's weights are there while it computes")
                }
            },
        };
        View {
            ty,
            data: &tensor.data,
            blocks: &tensor.blocks,
        }
    }
}

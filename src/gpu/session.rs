use super::Gpu;
use super::kernel::Kernel;
use super::stream::Streaming;
use super::upload::GpuStore;
use crate::backend::find_input;
use crate::checkpoint::Weights;
use crate::error::{Error, GpuError, Result};
use crate::graph::Graph;
use crate::memory::offload::{Hold, Stream, staging};
use crate::memory::residency::{Guard, Home, Resident, Store, WeightRef};
use crate::plan::{Bytes, Named, PARAMS_STRIDE, Place, Plan, Policy};
use crate::tensor::Tensor;
use std::sync::Arc;
use wgpu::BufferUsages as Usage;

/// Work submitted at once: more would let a slow adapter's watchdog reset the driver.
const SUBMIT_FLOPS: f64 = 2e11;

/// Buffers of tensors.
pub(super) const STORAGE: Usage = Usage::STORAGE.union(Usage::COPY_SRC).union(Usage::COPY_DST);

/// A graph that is ready to run on a GPU.
#[derive(Debug)]
pub struct GpuSession {
    pub(super) gpu: Gpu,
    pub(super) plan: Plan,
    pub(super) dispatches: Vec<Dispatch>,
    buffers: Vec<wgpu::Buffer>,
    inputs: Vec<wgpu::Buffer>,
    constants: Vec<wgpu::Buffer>,
    // None where a weight is streamed.
    weights: Vec<Option<Arc<Resident>>>,
    guard: Guard,
    streaming: Option<Streaming>,
    params: Option<wgpu::Buffer>,
    readback: Option<wgpu::Buffer>,
}

#[derive(Debug)]
pub(super) struct Dispatch {
    kernel: Arc<Kernel>,
    group: wgpu::BindGroup,
    params: u32,
    grid: [u32; 3],
    // Submit after this one.
    submit: bool,
}

impl Gpu {
    /// Compiles, allocates and uploads all that the graph needs; streamed weights follow in each run.
    ///
    /// # Errors
    /// If the plan does not fit the adapter or the budget of `hold`, a weight cannot be loaded, or the driver refuses something.
    pub async fn prepare(&self, graph: &Graph, weights: &Weights, policy: &Policy, hold: Hold) -> Result<GpuSession> {
        self.alive()?;
        let plan = Plan::gpu(graph, self.caps(), policy)?;
        let stream = hold.stream(&plan, Some(self.caps()))?;
        let bytes = hold_bytes(&plan, stream.as_ref());
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let session = self.allocate(plan, weights, stream);
        let wanted = bytes.total();
        if scope.pop().await.is_some() || self.faults.refuses(bytes.session()) || self.is_short() {
            // Weights without memory are not for the next session, even where the residency keeps what nobody holds.
            if let Ok(session) = session {
                session.guard.discard();
            }
            return Err(self.blame(GpuError::OutOfMemory { wanted }.into(), wanted));
        }
        let mut session = session.map_err(|error| self.blame(error, wanted))?;
        let recorded = session.record().await;
        let recorded = recorded.and_then(|()| Ok(self.check()?));
        recorded.map_err(|error| self.blame(error, wanted))?;
        Ok(session)
    }

    fn allocate(&self, plan: Plan, weights: &Weights, stream: Option<Stream>) -> Result<GpuSession> {
        let shared = |(i, &bytes): (usize, &u64)| self.buffer(&format!("shared {i}"), bytes, STORAGE);
        let buffers = plan.buffers.iter().enumerate().map(shared).collect();
        let named = |n: &Named| self.buffer(&n.name, n.ty.byte_len() as u64, STORAGE);
        let inputs = plan.inputs.iter().map(named).collect();
        let mut constants = Vec::with_capacity(plan.constants.len());
        for tensor in &plan.constants {
            let buffer = self.buffer("constant", tensor.ty.byte_len() as u64, STORAGE);
            self.queue.write_buffer(&buffer, 0, &tensor.to_bytes());
            constants.push(buffer);
        }
        let params = (!plan.params.is_empty()).then(|| {
            let buffer = self.buffer("params", plan.params.len() as u64, Usage::UNIFORM | Usage::COPY_DST);
            self.queue.write_buffer(&buffer, 0, &plan.params);
            buffer
        });
        let readback = plan.readback_bytes();
        let readback = (readback > 0).then(|| self.buffer("readback", readback, Usage::MAP_READ | Usage::COPY_DST));
        let all = plan.gpu_bytes().weights;
        let limit = stream.as_ref().map_or(staging(all), |stream| stream.staging);
        let store: Arc<dyn Store> = Arc::new(GpuStore::new(self, limit));
        store.finish()?;
        let stays = |i: usize| stream.as_ref().is_none_or(|stream| stream.spots[i].is_none());
        let refs = WeightRef::of(weights, &plan.weights, stays)?;
        let guard = self.weights.lock(&refs, Home::Device, &store)?;
        Ok(GpuSession {
            gpu: self.clone(),
            dispatches: Vec::new(),
            buffers,
            inputs,
            constants,
            weights: guard.spread(plan.weights.len(), stays),
            guard,
            streaming: stream.map(|stream| self.streaming(&plan, stream, weights)),
            params,
            readback,
            plan,
        })
    }

    pub(super) fn buffer(&self, label: &str, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: self.size_or_fault(size),
            usage,
            mapped_at_creation: false,
        });
        self.sample();
        buffer
    }
}

impl GpuSession {
    /// Compiles the kernels and binds the buffers of every step.
    async fn record(&mut self) -> Result<()> {
        #[cfg(all(feature = "native", not(target_arch = "wasm32")))]
        self.gpu.compile_all(&self.plan.steps)?;
        let mut dispatches = Vec::with_capacity(self.plan.steps.len());
        let mut work = 0.0;
        let mut costs = self.plan.nodes.iter().zip(&self.plan.node_costs).peekable();
        for (i, step) in self.plan.steps.iter().enumerate() {
            let kernel = self.gpu.kernel(&step.kernel, &step.numbers()).await?;
            let mut entries = Vec::with_capacity(step.bindings.len() + 1);
            if let Some(params) = &self.params {
                entries.push(wgpu::BindGroupEntry {
                    binding: 0,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: params,
                        offset: 0,
                        size: wgpu::BufferSize::new(u64::from(PARAMS_STRIDE)),
                    }),
                });
            }
            entries.extend(step.bindings.iter().map(|(binding, place)| wgpu::BindGroupEntry {
                binding: *binding,
                resource: wgpu::BindingResource::Buffer(self.binding(*place)),
            }));
            let group = self.gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &kernel.layout,
                entries: &entries,
            });
            while let Some((_, cost)) = costs.next_if(|(node, _)| **node <= step.node) {
                work += cost.flops;
            }
            let submit = work > SUBMIT_FLOPS || i + 1 == self.plan.steps.len();
            if submit {
                work = 0.0;
            }
            dispatches.push(Dispatch {
                kernel,
                group,
                params: step.params,
                grid: step.grid,
                submit,
            });
        }
        self.dispatches = dispatches;
        Ok(())
    }

    /// Runs the graph and reads the results back.
    ///
    /// # Errors
    /// If an input is unknown or has another shape, or the device fails.
    pub async fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        self.gpu.alive()?;
        let result = self.run_once(inputs).await;
        result.map_err(|error| self.gpu.blame(error, self.planned().total()))
    }

    async fn run_once(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>> {
        for (name, tensor) in inputs {
            let index = find_input(&self.plan, name, tensor)?;
            self.gpu.queue.write_buffer(&self.inputs[index], 0, &tensor.to_bytes());
        }
        self.gpu.sample();
        self.submit_all()?;
        let Some(readback) = &self.readback else {
            return Ok(Vec::new());
        };
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for output in &self.plan.outputs {
            let bytes = output.ty.byte_len() as u64;
            let from = self.binding(output.place);
            encoder.copy_buffer_to_buffer(from.buffer, from.offset, readback, at, bytes);
            at += bytes;
        }
        self.gpu.submit(Some(encoder.finish()));
        let bytes = self.gpu.read(readback, at).await?;
        let mut rest = bytes.as_slice();
        let mut tensors = Vec::with_capacity(self.plan.outputs.len());
        for output in &self.plan.outputs {
            let (head, tail) = rest
                .split_at_checked(output.ty.byte_len())
                .ok_or_else(|| Error::from(GpuError::Validation("short read-back".into())))?;
            tensors.push(Tensor::from_bytes(output.ty.clone(), head));
            rest = tail;
        }
        Ok(tensors)
    }

    /// Runs the graph `times` over on the inputs it has, without reading anything back: for benches.
    ///
    /// # Errors
    /// If the device fails.
    pub fn repeat(&mut self, times: u32) -> Result<()> {
        for _ in 0..times {
            self.submit_all()?;
        }
        self.gpu.wait()?;
        Ok(self.gpu.check()?)
    }

    fn submit_all(&self) -> Result<()> {
        match &self.streaming {
            Some(streaming) => streaming.submit(self),
            None => {
                self.submit(&self.dispatches);
                Ok(())
            }
        }
    }

    pub(super) fn submit(&self, mut rest: &[Dispatch]) {
        while !rest.is_empty() {
            let count = rest.iter().position(|d| d.submit).map_or(rest.len(), |i| i + 1);
            let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            for dispatch in &rest[..count] {
                let [x, y, z] = dispatch.grid;
                pass.set_pipeline(&dispatch.kernel.pipeline);
                pass.set_bind_group(0, &dispatch.group, &[dispatch.params]);
                pass.dispatch_workgroups(x, y, z);
            }
            drop(pass);
            self.gpu.submit(Some(encoder.finish()));
            rest = &rest[count..];
        }
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes that were planned.
    pub fn planned(&self) -> Bytes {
        hold_bytes(&self.plan, self.streaming.as_ref().map(|s| &s.stream))
    }

    /// How its weights are streamed, if they are.
    pub fn stream(&self) -> Option<&Stream> {
        self.streaming.as_ref().map(|streaming| &streaming.stream)
    }

    /// Bytes of the buffers it holds. Weights and slots that other sessions hold too count in each.
    pub fn allocated(&self) -> Bytes {
        let sum = |buffers: &[wgpu::Buffer]| buffers.iter().map(wgpu::Buffer::size).sum::<u64>();
        let one = |buffer: &Option<wgpu::Buffer>| buffer.as_ref().map_or(0, wgpu::Buffer::size);
        Bytes {
            weights: self.weights().iter().map(|(_, _, held)| held).sum(),
            activations: sum(&self.buffers),
            inputs: sum(&self.inputs) + sum(&self.constants),
            transfer: one(&self.params) + one(&self.readback),
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
            Some((Arc::as_ptr(held) as usize, named.ty.byte_len() as u64, held.bytes()))
        };
        let slots = self.streaming.iter().map(|streaming| {
            let slots = &streaming.slots;
            let id = Arc::as_ptr(slots) as usize;
            (id, streaming.stream.slot_bytes(), slots.bytes())
        });
        let resident = self.plan.weights.iter().zip(&self.weights).filter_map(held);
        resident.chain(slots).collect()
    }

    /// What a kernel binds for a place.
    fn binding(&self, place: Place) -> wgpu::BufferBinding<'_> {
        let whole = |buffer| wgpu::BufferBinding {
            buffer,
            offset: 0,
            size: None,
        };
        match place {
            Place::Shared(i) => whole(&self.buffers[i]),
            Place::Input(i) => whole(&self.inputs[i]),
            Place::Constant(i) => whole(&self.constants[i]),
            Place::Weight(i, part) => match &self.weights[i] {
                Some(held) => whole(&held.storage().buffers()[part]),
                None => {
                    let streaming = self.streaming.as_ref().expect("what is not resident is streamed");
                    let (buffer, offset) = streaming.spot(i, part).expect("a streamed weight has a spot");
                    let size = self.gpu.caps().parts(&self.plan.weights[i].ty)[part].ty.byte_len() as u64;
                    wgpu::BufferBinding {
                        buffer,
                        offset,
                        size: wgpu::BufferSize::new(size),
                    }
                }
            },
        }
    }
}

/// Bytes of a plan whose weights are streamed, or all resident.
pub(super) fn hold_bytes(plan: &Plan, stream: Option<&Stream>) -> Bytes {
    let bytes = plan.gpu_bytes();
    Bytes {
        weights: stream.map_or(bytes.weights, |stream| stream.resident + stream.slot_bytes()),
        ..bytes
    }
}

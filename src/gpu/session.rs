use super::Gpu;
use super::kernel::Kernel;
use crate::backend::find_input;
use crate::checkpoint::Weights;
use crate::error::{Error, GpuError, Result};
use crate::graph::Graph;
use crate::memory::Resident;
use crate::plan::{Bytes, Named, PARAMS_STRIDE, Place, Plan, Policy};
use crate::tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wgpu::BufferUsages as Usage;

/// Work submitted at once: more would let a slow adapter's watchdog reset the driver.
const SUBMIT_FLOPS: f64 = 2e11;

/// Bytes of weights that wait in staging memory before they are sent.
const STAGING_BYTES: u64 = 64 << 20;

/// Buffers of tensors.
const STORAGE: Usage = Usage::STORAGE.union(Usage::COPY_SRC).union(Usage::COPY_DST);

/// A graph that is ready to run on a GPU.
#[derive(Debug)]
pub struct GpuSession {
    gpu: Gpu,
    plan: Plan,
    dispatches: Vec<Dispatch>,
    buffers: Vec<wgpu::Buffer>,
    inputs: Vec<wgpu::Buffer>,
    constants: Vec<wgpu::Buffer>,
    weights: Vec<Arc<Resident<Vec<wgpu::Buffer>>>>,
    params: Option<wgpu::Buffer>,
    readback: Option<wgpu::Buffer>,
}

#[derive(Debug)]
struct Dispatch {
    kernel: Arc<Kernel>,
    group: wgpu::BindGroup,
    params: u32,
    grid: [u32; 3],
    // Submit after this one.
    submit: bool,
}

impl Gpu {
    /// Compiles, allocates and uploads all that the graph needs.
    ///
    /// # Errors
    /// If the plan does not fit the adapter, a weight cannot be loaded, or the driver refuses something.
    pub async fn prepare(&self, graph: &Graph, weights: &Weights, policy: &Policy) -> Result<GpuSession> {
        let plan = Plan::gpu(graph, self.caps(), policy)?;
        let bytes = plan.gpu_bytes();
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let session = self.allocate(plan, weights).await;
        if scope.pop().await.is_some() || bytes.session() > self.refuse_above.load(Ordering::Relaxed) {
            // What was then done with buffers that are not there is no fault of its own.
            if let Err(lost @ GpuError::DeviceLost(_)) = self.check() {
                return Err(lost.into());
            }
            let wanted = bytes.total();
            return Err(GpuError::OutOfMemory { wanted }.into());
        }
        let mut session = session?;
        session.record().await?;
        self.check()?;
        Ok(session)
    }

    async fn allocate(&self, plan: Plan, weights: &Weights) -> Result<GpuSession> {
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
        let mut resident = Vec::with_capacity(plan.weights.len());
        let mut waiting = 0;
        for weight in &plan.weights {
            let (name, dtype) = (weight.name.as_str(), weight.ty.dtype);
            if let Some(held) = self.weights.get(weights, name, dtype) {
                resident.push(held);
                continue;
            }
            let parts = self.upload(weights, weight, &mut waiting)?;
            resident.push(self.weights.insert(weights, name, dtype, parts));
        }
        let params = (!plan.params.is_empty()).then(|| {
            let buffer = self.buffer("params", plan.params.len() as u64, Usage::UNIFORM | Usage::COPY_DST);
            self.queue.write_buffer(&buffer, 0, &plan.params);
            buffer
        });
        let readback = plan.readback_bytes();
        let readback = (readback > 0).then(|| self.buffer("readback", readback, Usage::MAP_READ | Usage::COPY_DST));
        self.sample();
        // Staging memory is freed when what it holds has been sent.
        self.queue.submit([]);
        self.wait()?;
        Ok(GpuSession {
            gpu: self.clone(),
            plan,
            dispatches: Vec::new(),
            buffers,
            inputs,
            constants,
            weights: resident,
            params,
            readback,
        })
    }

    /// Sends a weight part by part, as the file has it where kernels can read that, else converted. `waiting` counts the bytes in
    /// staging memory.
    fn upload(&self, weights: &Weights, weight: &Named, waiting: &mut u64) -> Result<Vec<wgpu::Buffer>> {
        let mut buffers = Vec::new();
        for part in self.caps().parts(&weight.ty) {
            let rows = part.first..part.first + part.ty.shape.first().copied().unwrap_or(1);
            let bytes = weights.rows(&weight.name, weight.ty.dtype, rows)?;
            let size = part.ty.byte_len() as u64;
            let buffer = self.buffer(&weight.name, size, STORAGE);
            self.queue.write_buffer(&buffer, 0, &bytes);
            self.sample();
            buffers.push(buffer);
            *waiting += size;
            if *waiting > STAGING_BYTES {
                self.queue.submit([]);
                self.wait()?;
                *waiting = 0;
            }
        }
        Ok(buffers)
    }

    pub(super) fn buffer(&self, label: &str, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
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
                resource: self.at(*place).as_entire_binding(),
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
        for (name, tensor) in inputs {
            let index = find_input(&self.plan, name, tensor)?;
            self.gpu.queue.write_buffer(&self.inputs[index], 0, &tensor.to_bytes());
        }
        self.gpu.sample();
        self.submit();
        let Some(readback) = &self.readback else {
            return Ok(Vec::new());
        };
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut at = 0;
        for output in &self.plan.outputs {
            let bytes = output.ty.byte_len() as u64;
            encoder.copy_buffer_to_buffer(self.at(output.place), 0, readback, at, bytes);
            at += bytes;
        }
        self.gpu.queue.submit([encoder.finish()]);
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
            self.submit();
        }
        self.gpu.wait()?;
        Ok(self.gpu.check()?)
    }

    fn submit(&self) {
        let mut rest = self.dispatches.as_slice();
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
            self.gpu.queue.submit([encoder.finish()]);
            rest = &rest[count..];
        }
    }

    /// The plan it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes of the buffers it holds. Weights that other sessions hold too count in each.
    pub fn allocated(&self) -> Bytes {
        let sum = |buffers: &[wgpu::Buffer]| buffers.iter().map(wgpu::Buffer::size).sum::<u64>();
        let one = |buffer: &Option<wgpu::Buffer>| buffer.as_ref().map_or(0, wgpu::Buffer::size);
        Bytes {
            weights: self.weights.iter().map(|w| sum(&w.storage)).sum(),
            activations: sum(&self.buffers),
            inputs: sum(&self.inputs) + sum(&self.constants),
            transfer: one(&self.params) + one(&self.readback),
        }
    }

    /// As [`Session::keep_weights`](crate::backend::Session).
    pub(crate) fn keep_weights(&self) -> Vec<Arc<Resident<Vec<wgpu::Buffer>>>> {
        self.weights.clone()
    }

    /// As [`Session::weights`](crate::backend::Session).
    pub(crate) fn weights(&self) -> Vec<(usize, u64, u64)> {
        let planned = self.plan.weights.iter().map(|w| w.ty.byte_len() as u64);
        let size = |w: &Resident<Vec<wgpu::Buffer>>| w.storage.iter().map(wgpu::Buffer::size).sum::<u64>();
        let held = self.weights.iter().map(|w| (Arc::as_ptr(w) as usize, size(w)));
        planned
            .zip(held)
            .map(|(planned, (id, held))| (id, planned, held))
            .collect()
    }

    fn at(&self, place: Place) -> &wgpu::Buffer {
        match place {
            Place::Shared(i) => &self.buffers[i],
            Place::Input(i) => &self.inputs[i],
            Place::Constant(i) => &self.constants[i],
            Place::Weight(i, part) => &self.weights[i].storage[part],
        }
    }
}

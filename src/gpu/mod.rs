//! The GPU backend: opens an adapter, compiles kernels, runs plans.

mod adapter;
mod caps;
mod check;
mod kernel;
mod readback;
mod session;
mod stream;
mod upload;
mod watch;
pub mod wgsl;

pub use adapter::{Adapter, AdapterChoice, AdapterKind, adapters, choose};
pub use caps::{Caps, Limits};
pub use session::GpuSession;
pub use watch::{Peak, Watch};

use crate::cpu::Cpu;
use crate::error::{Error, GpuError};
use crate::gpu::kernel::KernelCache;
use crate::memory::faults::{Faults, Submitted};
use crate::memory::offload::staging;
use crate::memory::peak::BLOCK;
use crate::memory::residency::{Residency, Store};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use upload::GpuStore;

/// An open GPU. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Gpu {
    device: wgpu::Device,
    queue: wgpu::Queue,
    caps: Arc<Caps>,
    kernels: Arc<KernelCache>,
    weights: Residency,
    slots: Arc<Mutex<Vec<Weak<stream::Slots>>>>,
    trouble: Arc<Mutex<Trouble>>,
    faults: Arc<Faults>,
    watches: Arc<watch::Watches>,
    reason: Arc<str>,
}

/// What went wrong on the device outside of any call.
#[derive(Debug, Default)]
struct Trouble {
    lost: Option<String>,
    /// The driver had no memory, and no error scope heard of it.
    shortage: bool,
    errors: Vec<String>,
}

impl Gpu {
    /// Opens an adapter of this machine, with every limit it has.
    ///
    /// # Errors
    /// If none fits, or its driver gives no device.
    pub async fn open(choice: &AdapterChoice) -> Result<Self, GpuError> {
        Self::open_limited(choice, &Limits::default()).await
    }

    /// As [`Gpu::open`], within `limits`, for diagnosis.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub async fn open_limited(choice: &AdapterChoice, limits: &Limits) -> Result<Self, GpuError> {
        let mut list = adapters().await;
        let (index, reason) = choose(&list, choice)?;
        list[index].caps = list[index].caps.limited(limits);
        let mut gpu = Self::open_adapter(&list[index]).await?;
        gpu.reason = reason.into();
        Ok(gpu)
    }

    /// Opens one of [`adapters`], with the limits that its `caps` say.
    ///
    /// # Errors
    /// If its driver gives no device.
    pub async fn open_adapter(adapter: &Adapter) -> Result<Self, GpuError> {
        let name = adapter.caps.adapter.clone();
        let fail = |reason: String| GpuError::Open { adapter: name, reason };
        let Some(handle) = &adapter.handle else {
            return Err(fail("only a description".into()));
        };
        let caps = &adapter.caps;
        let mut features = wgpu::Features::empty();
        features.set(wgpu::Features::SHADER_F16, caps.f16);
        features.set(wgpu::Features::SUBGROUP, caps.subgroups);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("rotile"),
            required_features: features,
            required_limits: wgpu::Limits {
                max_buffer_size: caps.max_buffer,
                max_storage_buffer_binding_size: caps.max_binding,
                max_compute_workgroup_storage_size: caps.workgroup_memory,
                max_compute_invocations_per_workgroup: caps.workgroup_invocations,
                ..wgpu::Limits::default()
            },
            memory_hints: wgpu::MemoryHints::Manual {
                suballocated_device_memory_block_size: BLOCK..BLOCK,
            },
            ..Default::default()
        };
        let (device, queue) = match handle.request_device(&descriptor).await {
            Ok(pair) => pair,
            Err(e) => return Err(fail(e.to_string())),
        };
        let trouble = Arc::new(Mutex::new(Trouble::default()));
        let shared = trouble.clone();
        device.on_uncaptured_error(Arc::new(move |error| match error {
            wgpu::Error::OutOfMemory { .. } => lock(&shared).shortage = true,
            other => lock(&shared).errors.push(other.to_string()),
        }));
        let shared = trouble.clone();
        device.set_device_lost_callback(move |reason, message| {
            let message = if message.is_empty() {
                "no reason given"
            } else {
                &message
            };
            lock(&shared).lost = Some(format!("{reason:?}, {message}"));
        });
        Ok(Self {
            device,
            queue,
            caps: Arc::new(caps.clone()),
            kernels: Arc::default(),
            weights: Residency::new(),
            slots: Arc::default(),
            trouble,
            faults: Arc::default(),
            watches: Arc::default(),
            reason: "opened directly".into(),
        })
    }

    /// The same device with weights and slots of its own: what one engine holds is not another's.
    #[must_use]
    pub fn scoped(&self) -> Self {
        Self {
            weights: Residency::new(),
            slots: Arc::default(),
            ..self.clone()
        }
    }

    /// As [`Gpu::scoped`], with weights that stay after their last session until there is no room for another.
    #[must_use]
    pub fn keeping(&self) -> Self {
        Self {
            weights: Residency::keeping(),
            ..self.scoped()
        }
    }

    /// The CPU beside it, for what does not fit here. Both know where each weight is.
    pub fn host(&self) -> Cpu {
        Cpu::beside(self.weights.clone(), self.faults.clone())
    }

    /// Where its weights are.
    pub fn residency(&self) -> &Residency {
        &self.weights
    }

    /// Who brings weights here, to move them.
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::new(GpuStore::new(self, staging(u64::MAX)))
    }

    /// What it can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Why this adapter was taken.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Number of kernels compiled so far.
    pub fn kernels(&self) -> usize {
        self.kernels.len()
    }

    /// Bytes that the device's allocator has handed out, where the backend tells.
    pub fn allocated_bytes(&self) -> Option<u64> {
        Some(self.device.generate_allocator_report()?.total_allocated_bytes)
    }

    /// Faults on demand: for tests.
    #[doc(hidden)]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Submits work, as all of it is.
    fn submit(&self, work: Option<wgpu::CommandBuffer>) {
        match self.faults.submission() {
            Submitted::Runs => drop(self.queue.submit(work)),
            Submitted::Refused => lock(&self.trouble).shortage = true,
            Submitted::Lost => {
                self.device.destroy();
                self.queue.submit(work);
            }
        }
    }

    /// Whether the device is still there. Calls on one that is not there may fail in other words, or not at all.
    fn alive(&self) -> Result<(), GpuError> {
        match &lock(&self.trouble).lost {
            Some(reason) => Err(GpuError::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Bytes of a buffer, or more than the device makes where this one is to fail: what follows then is as with a driver that has no memory.
    fn size_or_fault(&self, size: u64) -> u64 {
        if !self.faults.allocation() {
            return size;
        }
        lock(&self.trouble).shortage = true;
        self.device.limits().max_buffer_size.saturating_add(4)
    }

    fn is_short(&self) -> bool {
        lock(&self.trouble).shortage
    }

    /// The error of a call that failed. A loss or a lack of memory explains whatever else it says; `wanted` are the bytes of the plan.
    fn blame(&self, error: Error, wanted: u64) -> Error {
        let error = match self.check() {
            Err(cause @ (GpuError::DeviceLost(_) | GpuError::OutOfMemory { .. })) => cause.into(),
            _ => error,
        };
        match error {
            Error::Gpu(GpuError::OutOfMemory { .. }) => GpuError::OutOfMemory { wanted }.into(),
            other => other,
        }
    }

    /// What went wrong since the last call, if anything: a loss before a lack of memory before other errors, which it may cause.
    fn check(&self) -> Result<(), GpuError> {
        self.alive()?;
        let mut trouble = lock(&self.trouble);
        let error = trouble.errors.drain(..).next();
        if std::mem::take(&mut trouble.shortage) {
            return Err(GpuError::OutOfMemory { wanted: 0 });
        }
        error.map_or(Ok(()), |error| Err(GpuError::Validation(error)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

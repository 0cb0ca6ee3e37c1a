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
use crate::error::GpuError;
use crate::gpu::kernel::KernelCache;
use crate::memory::offload::staging;
use crate::memory::peak::BLOCK;
use crate::memory::residency::{Residency, Store};
use std::sync::atomic::{AtomicU64, Ordering};
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
    faults: Arc<Mutex<Faults>>,
    refuse_above: Arc<AtomicU64>,
    watches: Arc<watch::Watches>,
    reason: Arc<str>,
}

/// What went wrong on the device outside of any call.
#[derive(Debug, Default)]
struct Faults {
    lost: Option<String>,
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
        let faults = Arc::new(Mutex::new(Faults::default()));
        let shared = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error| lock(&shared).errors.push(error.to_string())));
        let shared = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            lock(&shared).lost = Some(format!("{reason:?}: {message}"));
        });
        Ok(Self {
            device,
            queue,
            caps: Arc::new(caps.clone()),
            kernels: Arc::default(),
            weights: Residency::new(),
            slots: Arc::default(),
            faults,
            refuse_above: Arc::new(AtomicU64::new(u64::MAX)),
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
        Cpu::beside(self.weights.clone())
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

    /// Sessions of more than so many bytes, weights aside, are refused from now on as if the driver had no memory: for tests.
    #[doc(hidden)]
    pub fn pretend_out_of_memory_above(&self, bytes: u64) {
        self.refuse_above.store(bytes, Ordering::Relaxed);
    }

    /// The first thing that went wrong since the last call, if any.
    fn check(&self) -> Result<(), GpuError> {
        let mut faults = lock(&self.faults);
        if let Some(reason) = &faults.lost {
            return Err(GpuError::DeviceLost(reason.clone()));
        }
        match faults.errors.drain(..).next() {
            Some(error) => Err(GpuError::Validation(error)),
            None => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

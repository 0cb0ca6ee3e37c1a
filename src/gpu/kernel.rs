use super::Gpu;
use super::wgsl::KernelSpec;
use crate::error::GpuError;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
use crate::plan::Step;
use std::collections::HashMap;
#[cfg(all(feature = "native", not(target_arch = "wasm32")))]
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// A compiled kernel.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// Kernels by what they were made from; a kernel's slots decide its bindings, so they are no part of the key.
#[derive(Debug, Default)]
pub(super) struct KernelCache {
    kernels: Mutex<HashMap<KernelSpec, Arc<Kernel>>>,
}

impl KernelCache {
    pub(super) fn len(&self) -> usize {
        self.kernels.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Gpu {
    /// The compiled kernel, from the cache where it is there. `bindings` are the storage bindings; number 1 is written.
    pub(super) async fn kernel(&self, spec: &KernelSpec, bindings: &[u32]) -> Result<Arc<Kernel>, GpuError> {
        let cached = |kernels: &KernelCache| {
            let kernels = kernels.kernels.lock().unwrap_or_else(PoisonError::into_inner);
            kernels.get(spec).cloned()
        };
        if let Some(kernel) = cached(&self.kernels) {
            return Ok(kernel);
        }
        let kernel = Arc::new(self.compile(spec, bindings).await?);
        let mut kernels = self.kernels.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.insert(spec.clone(), kernel.clone());
        Ok(kernel)
    }

    /// Fills the cache with the kernels of a plan, on all threads.
    #[cfg(all(feature = "native", not(target_arch = "wasm32")))]
    pub(super) fn compile_all(&self, steps: &[Step]) -> Result<(), GpuError> {
        use rayon::prelude::*;
        // In the order of the steps, so that what a driver leaves behind is the same in every run.
        let mut seen = HashSet::new();
        let kernels: Vec<&Step> = steps.iter().filter(|step| seen.insert(&step.kernel)).collect();
        let compile = |step: &&Step| pollster::block_on(self.kernel(&step.kernel, &step.numbers()));
        kernels.par_iter().map(compile).try_for_each(|kernel| kernel.map(drop))
    }

    async fn compile(&self, spec: &KernelSpec, bindings: &[u32]) -> Result<Kernel, GpuError> {
        let fail = |file: &str, line, message: String| GpuError::Kernel {
            spec: spec.to_string(),
            file: format!("wgsl/{file}.wgsl"),
            line,
            message,
        };
        let linked = spec.link().map_err(|e| fail(spec.path(), 0, e.message))?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let label = spec.to_string();
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some(&label),
            source: wgpu::ShaderSource::Wgsl(linked.text.as_str().into()),
        });
        let entry = |binding, ty, has_dynamic_offset| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset,
                min_binding_size: None,
            },
            count: None,
        };
        let storage = |&binding| {
            let read_only = binding != 1;
            entry(binding, wgpu::BufferBindingType::Storage { read_only }, false)
        };
        let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform, true)];
        entries.extend(bindings.iter().map(storage));
        let layout = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(&label),
            entries: &entries,
        });
        let pipeline_layout = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(&label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(&label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &linked.overrides,
                // Kernels never rely on it, and on real GPUs it costs a barrier.
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        if let Some(error) = scope.pop().await {
            self.alive()?;
            let info = module.get_compilation_info().await;
            let message = info.messages.first();
            let line = message.and_then(|m| m.location).map_or(0, |l| l.line_number);
            let (file, line) = linked.locate(line);
            let text = message.map_or_else(|| error.to_string(), |m| m.message.clone());
            return Err(fail(file, line, text));
        }
        Ok(Kernel { pipeline, layout })
    }
}

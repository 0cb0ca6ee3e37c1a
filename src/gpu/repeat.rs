use super::Gpu;
use super::kernel::Kernel;
use crate::error::GpuError;
use crate::op::{Operand, Way};
use crate::tensor::{Tensor, TensorType};
use std::sync::Arc;
use wgpu::BufferUsages as Usage;

/// One way of an operator, ready to run again and again on the same buffers: what benches measure.
#[derive(Debug)]
pub struct Repeat {
    gpu: Gpu,
    dispatches: Vec<(Arc<Kernel>, wgpu::BindGroup, [u32; 3])>,
}

impl Gpu {
    /// Compiles a way and binds its buffers.
    ///
    /// # Errors
    /// If a kernel does not compile or the device fails.
    pub async fn repeat_way(&self, way: &Way, inputs: &[Tensor], output: &TensorType) -> Result<Repeat, GpuError> {
        let storage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        let mut filled = Vec::with_capacity(inputs.len());
        for tensor in inputs {
            let bytes = tensor.to_bytes();
            let buffer = self.buffer("input", bytes.len() as u64, storage);
            self.queue.write_buffer(&buffer, 0, &bytes);
            filled.push(buffer);
        }
        let scratch: Vec<_> = way
            .scratch
            .iter()
            .map(|&bytes| self.buffer("scratch", bytes, storage))
            .collect();
        let written = self.buffer("output", output.byte_len() as u64, storage);
        let mut dispatches = Vec::with_capacity(way.launches.len());
        for launch in &way.launches {
            let numbers: Vec<u32> = launch.operands.iter().map(|(n, _)| *n).collect();
            let kernel = self.kernel(&launch.kernel, &numbers).await?;
            let mut bytes = launch.params.clone();
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            let params = self.buffer("params", bytes.len() as u64, Usage::UNIFORM | Usage::COPY_DST);
            self.queue.write_buffer(&params, 0, &bytes);
            let bound = |&(binding, operand): &(u32, Operand)| wgpu::BindGroupEntry {
                binding,
                resource: match operand {
                    Operand::Input(i) => filled[i].as_entire_binding(),
                    Operand::Scratch(i) => scratch[i].as_entire_binding(),
                    Operand::Output => written.as_entire_binding(),
                },
            };
            let mut entries = vec![wgpu::BindGroupEntry {
                binding: 0,
                resource: params.as_entire_binding(),
            }];
            entries.extend(launch.operands.iter().map(bound));
            let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &kernel.layout,
                entries: &entries,
            });
            dispatches.push((kernel, group, launch.grid));
        }
        self.check()?;
        Ok(Repeat {
            gpu: self.clone(),
            dispatches,
        })
    }
}

impl Repeat {
    /// Runs the way `times` times in one submission and waits for it. The caller holds the clock: a browser has another.
    ///
    /// # Errors
    /// If the device fails.
    pub fn run(&self, times: u32) -> Result<(), GpuError> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for _ in 0..times {
            for (kernel, group, [x, y, z]) in &self.dispatches {
                pass.set_pipeline(&kernel.pipeline);
                pass.set_bind_group(0, group, &[0]);
                pass.dispatch_workgroups(*x, *y, *z);
            }
        }
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.wait()?;
        self.gpu.check()
    }
}

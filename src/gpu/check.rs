use super::{Caps, Gpu};
use crate::error::GpuError;
use crate::op::{Operand, Way};
use crate::tensor::{Part, Tensor, TensorType};
use wgpu::BufferUsages as Usage;

/// Bytes of guard behind each buffer.
const GUARD: usize = 256;

/// Fills outputs, scratch and guards. It is a NaN as `f32` and as two `f16`, so what a kernel leaves out, or reads past its
/// input, shows in the result.
const POISON: [u8; 4] = 0x7fff_7fff_u32.to_le_bytes();

impl Gpu {
    /// Runs one way of an operator on its own, in poisoned and guarded buffers: how a way is validated. `caps` are those that the
    /// way was made for: they say how weights are cut.
    ///
    /// # Errors
    /// If a kernel does not compile, writes past its output, or the device fails.
    pub async fn run_way(
        &self,
        way: &Way,
        inputs: &[Tensor],
        output: &TensorType,
        caps: &Caps,
    ) -> Result<Tensor, GpuError> {
        let storage = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        let guarded = |label: &str, mut bytes: Vec<u8>| {
            bytes.extend(POISON.repeat(GUARD / 4));
            let buffer = self.buffer(label, bytes.len() as u64, storage);
            self.queue.write_buffer(&buffer, 0, &bytes);
            buffer
        };
        let poisoned = |label: &str, bytes: usize| guarded(label, POISON.repeat(bytes.div_ceil(4)));
        let operands = || way.launches.iter().flat_map(|launch| &launch.operands);
        let buffers = |(i, tensor): (usize, &Tensor)| {
            let bytes = tensor.to_bytes();
            if !operands().any(|(_, o)| matches!(o, Operand::Part(input, _) if *input == i)) {
                return vec![guarded("input", bytes)];
            }
            let mut rest = bytes.as_slice();
            let mut part = |part: Part| {
                let (head, tail) = rest.split_at(part.ty.byte_len());
                rest = tail;
                guarded("part", head.to_vec())
            };
            caps.parts(&tensor.ty).into_iter().map(&mut part).collect()
        };
        let inputs: Vec<Vec<_>> = inputs.iter().enumerate().map(buffers).collect();
        let scratch: Vec<_> = way
            .scratch
            .iter()
            .map(|&bytes| poisoned("scratch", bytes as usize))
            .collect();
        let size = output.byte_len();
        let written = poisoned("output", size);

        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        for launch in &way.launches {
            let numbers: Vec<u32> = launch.operands.iter().map(|(n, _)| *n).collect();
            let kernel = self.kernel(&launch.kernel, &numbers).await?;
            let mut bytes = launch.params.clone();
            bytes.resize(bytes.len().next_multiple_of(16), 0);
            let params = self.buffer("params", bytes.len() as u64, Usage::UNIFORM | Usage::COPY_DST);
            self.queue.write_buffer(&params, 0, &bytes);
            let mut entries = vec![wgpu::BindGroupEntry {
                binding: 0,
                resource: params.as_entire_binding(),
            }];
            entries.extend(launch.operands.iter().map(|&(binding, operand)| wgpu::BindGroupEntry {
                binding,
                resource: match operand {
                    Operand::Input(i) => inputs[i][0].as_entire_binding(),
                    Operand::Part(i, part) => inputs[i][part].as_entire_binding(),
                    Operand::Scratch(i) => scratch[i].as_entire_binding(),
                    Operand::Output => written.as_entire_binding(),
                },
            }));
            let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &kernel.layout,
                entries: &entries,
            });
            let mut encoder = self.device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&kernel.pipeline);
            pass.set_bind_group(0, &group, &[0]);
            pass.dispatch_workgroups(launch.grid[0], launch.grid[1], launch.grid[2]);
            drop(pass);
            self.queue.submit([encoder.finish()]);
        }
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut total = 0;
        let watched: Vec<_> = scratch.iter().chain([&written]).collect();
        let host_size = watched.iter().map(|b| b.size()).sum();
        let host = self.buffer("host", host_size, Usage::MAP_READ | Usage::COPY_DST);
        for buffer in &watched {
            encoder.copy_buffer_to_buffer(buffer, 0, &host, total, buffer.size());
            total += buffer.size();
        }
        self.queue.submit([encoder.finish()]);
        if let Some(error) = scope.pop().await {
            return Err(GpuError::Validation(format!("{}: {error}", way.name)));
        }
        let bytes = self.read(&host, total).await?;
        let mut rest = bytes.as_slice();
        for buffer in &watched {
            let (head, tail) = rest.split_at(buffer.size() as usize);
            let guard = &head[head.len() - GUARD..];
            if guard.chunks_exact(4).any(|word| word != POISON) {
                return Err(GpuError::Validation(format!("`{}` wrote past a buffer", way.name)));
            }
            rest = tail;
        }
        let start = bytes.len() - GUARD - size;
        Ok(Tensor::from_bytes(output.clone(), &bytes[start..start + size]))
    }
}

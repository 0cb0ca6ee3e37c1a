use super::Gpu;
use super::session::STORAGE;
use crate::checkpoint::Weights;
use crate::error::{GpuError, Result};
use crate::plan::Named;

/// Sends bytes to buffers, with at most so many of them in staging memory.
#[derive(Debug)]
pub(super) struct Upload<'a> {
    gpu: &'a Gpu,
    limit: u64,
    waiting: u64,
}

impl<'a> Upload<'a> {
    pub(super) fn new(gpu: &'a Gpu, limit: u64) -> Self {
        Self {
            gpu,
            // Copies are in whole words.
            limit: limit.max(4) / 4 * 4,
            waiting: 0,
        }
    }

    /// Makes buffers for a weight, one for each part, and fills them.
    pub(super) fn weight(&mut self, weights: &Weights, weight: &Named) -> Result<Vec<wgpu::Buffer>> {
        let parts = self.gpu.caps().parts(&weight.ty);
        let buffer = |part: &crate::tensor::Part| {
            let size = part.ty.byte_len() as u64;
            self.gpu.buffer(&weight.name, size, STORAGE)
        };
        let buffers: Vec<_> = parts.iter().map(buffer).collect();
        let spots: Vec<_> = buffers.iter().map(|buffer| (buffer, 0)).collect();
        self.fill(weights, weight, &spots)?;
        Ok(buffers)
    }

    /// Sends a weight part by part, as the file has it where kernels can read that, else converted.
    pub(super) fn fill(
        &mut self,
        weights: &Weights,
        weight: &Named,
        spots: &[(&wgpu::Buffer, wgpu::BufferAddress)],
    ) -> Result<()> {
        for (part, (buffer, offset)) in self.gpu.caps().parts(&weight.ty).into_iter().zip(spots) {
            let rows = part.first..part.first + part.ty.shape.first().copied().unwrap_or(1);
            let bytes = weights.rows(&weight.name, weight.ty.dtype, rows)?;
            self.write(buffer, *offset, &bytes)?;
        }
        Ok(())
    }

    fn write(&mut self, buffer: &wgpu::Buffer, mut offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        for piece in bytes.chunks(self.limit as usize) {
            let size = piece.len() as u64;
            if self.waiting + size > self.limit {
                self.finish()?;
            }
            self.gpu.queue.write_buffer(buffer, offset, piece);
            self.waiting += size;
            offset += size;
        }
        Ok(())
    }

    /// Waits until all of it has arrived: staging memory is freed when what it holds has been sent.
    pub(super) fn finish(&mut self) -> Result<(), GpuError> {
        self.gpu.queue.submit([]);
        self.waiting = 0;
        self.gpu.wait()
    }
}

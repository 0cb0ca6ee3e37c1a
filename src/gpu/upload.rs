use super::Gpu;
use super::session::STORAGE;
use crate::checkpoint::Checkpoint;
use crate::error::{GpuError, Result};
use crate::memory::budget;
use crate::memory::residency::{Resident, Storage, Store, WeightRef};
use crate::tensor::{DType, Part, TensorType};
use std::sync::{Mutex, PoisonError};

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
    fn weight(&mut self, weight: &WeightRef) -> Result<Vec<wgpu::Buffer>> {
        let buffers = self.buffers(weight.name(), &self.gpu.caps().parts(weight.ty()));
        let spots: Vec<_> = buffers.iter().map(|buffer| (buffer, 0)).collect();
        self.fill(weight.checkpoint(), weight.name(), weight.ty(), &spots)?;
        Ok(buffers)
    }

    /// As [`Upload::weight`], of values that are converted to `dtype` once they are what the weight's own type holds.
    fn converted(&mut self, weight: &WeightRef, dtype: DType) -> Result<Vec<wgpu::Buffer>> {
        let parts = self.gpu.caps().parts(&weight.ty().with_dtype(dtype));
        let buffers = self.buffers(weight.name(), &parts);
        let loaded = weight.checkpoint().load(weight.name(), weight.ty().dtype)?;
        let bytes = loaded.to_dtype(dtype).to_bytes();
        let mut rest = bytes.as_slice();
        for (part, buffer) in parts.iter().zip(&buffers) {
            let (piece, tail) = rest.split_at(part.ty.byte_len().min(rest.len()));
            self.write(buffer, 0, piece)?;
            rest = tail;
        }
        Ok(buffers)
    }

    fn buffers(&self, label: &str, parts: &[Part]) -> Vec<wgpu::Buffer> {
        let size = |part: &Part| part.ty.byte_len() as u64;
        let buffer = |part| self.gpu.buffer(label, size(part), STORAGE);
        parts.iter().map(buffer).collect()
    }

    /// Sends a weight part by part, as the file has it where kernels can read that, else converted.
    pub(super) fn fill(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        ty: &TensorType,
        spots: &[(&wgpu::Buffer, wgpu::BufferAddress)],
    ) -> Result<()> {
        for (part, (buffer, offset)) in self.gpu.caps().parts(ty).into_iter().zip(spots) {
            let rows = part.first..part.first + part.ty.shape.first().copied().unwrap_or(1);
            let bytes = checkpoint.rows(name, ty.dtype, rows)?;
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
            self.gpu.sample();
            self.waiting += size;
            offset += size;
        }
        Ok(())
    }

    /// Waits until all of it has arrived: staging memory is freed when what it holds has been sent.
    pub(super) fn finish(&mut self) -> Result<(), GpuError> {
        self.gpu.submit(None);
        self.waiting = 0;
        self.gpu.wait()
    }
}

/// Brings weights to a GPU.
#[derive(Debug)]
pub(super) struct GpuStore {
    // One whose residency is another: that of the weights keeps this.
    gpu: Gpu,
    /// Bytes in staging memory, at most and now.
    limit: u64,
    waiting: Mutex<u64>,
}

impl GpuStore {
    pub(super) fn new(gpu: &Gpu, limit: u64) -> Self {
        Self {
            gpu: gpu.scoped(),
            limit,
            waiting: Mutex::new(0),
        }
    }

    fn upload<T>(&self, send: impl FnOnce(&mut Upload<'_>) -> Result<T>) -> Result<T> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut upload = Upload::new(&self.gpu, self.limit);
        upload.waiting = *waiting;
        let result = send(&mut upload);
        *waiting = upload.waiting;
        result
    }
}

impl Store for GpuStore {
    // Files are mapped: reading them again takes no longer than reading a copy in memory.
    fn bring(&self, weight: &WeightRef, dtype: DType, _: Option<&Resident>) -> Result<Storage> {
        let buffers = self.upload(|upload| match dtype == weight.ty().dtype {
            true => upload.weight(weight),
            false => upload.converted(weight, dtype),
        });
        buffers.map(Storage::Buffers)
    }

    fn bytes(&self, ty: &TensorType) -> u64 {
        let parts = self.gpu.caps().parts(ty).into_iter();
        parts.map(|part| part.ty.byte_len() as u64).sum()
    }

    fn free(&self) -> Option<u64> {
        budget::free(Some(self.gpu.caps()))
    }

    fn finish(&self) -> Result<()> {
        self.upload(|upload| Ok(upload.finish()?))?;
        Ok(self.gpu.check()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::AdapterChoice;
    use pollster::block_on;
    use safetensors::tensor::{Dtype, TensorView};
    use std::sync::Arc;
    use wgpu::BufferUsages as Usage;

    /// Bytes of the buffers, one after the other.
    fn read(gpu: &Gpu, storage: &Storage) -> Vec<u8> {
        let read = |buffer: &wgpu::Buffer| {
            let back = gpu.buffer("back", buffer.size(), Usage::MAP_READ | Usage::COPY_DST);
            let mut encoder = gpu.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(buffer, 0, &back, 0, buffer.size());
            gpu.queue.submit([encoder.finish()]);
            block_on(gpu.read(&back, back.size())).expect("reads back")
        };
        storage.buffers().iter().flat_map(read).collect()
    }

    #[test]
    fn casts_convert_what_was_loaded_in_parts_too() {
        let Ok(gpu) = block_on(Gpu::open(&AdapterChoice::Best)) else {
            return;
        };
        let values: Vec<f32> = (0..35u16).map(|i| f32::from(i) / 7.3).collect();
        let view = TensorView::new(Dtype::F32, vec![7, 5], bytemuck::cast_slice(&values));
        let file = safetensors::serialize([("w", view.expect("fits"))], None).expect("a file");
        let checkpoint = Arc::new(Checkpoint::from_bytes("w", file.into()).expect("valid"));
        let weight = WeightRef::new(&checkpoint, "w", TensorType::new(DType::BF16, [7, 5])).expect("is there");
        let loaded = checkpoint.load("w", DType::BF16).expect("loads");
        for max_binding in [4096, 40] {
            let mut gpu = gpu.clone();
            let mut caps = gpu.caps().clone();
            caps.max_binding = max_binding;
            gpu.caps = Arc::new(caps);
            let store = GpuStore::new(&gpu, 64);
            for dtype in [DType::BF16, DType::F16, DType::F32] {
                let storage = store.bring(&weight, dtype, None).expect("fits");
                store.finish().expect("works");
                assert_eq!(storage.buffers().len() > 1, max_binding == 40, "{dtype}");
                let want = loaded.to_dtype(dtype).to_bytes();
                assert_eq!(read(&gpu, &storage)[..70], want[..70], "{dtype} in {max_binding}");
                assert_eq!(storage.bytes(), want.len() as u64, "{dtype}");
            }
        }
    }
}

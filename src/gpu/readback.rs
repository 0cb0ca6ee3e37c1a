use super::Gpu;
use crate::error::GpuError;
use futures_channel::oneshot;

impl Gpu {
    /// Bytes of a mappable buffer, once all that was submitted before is done.
    pub(super) async fn read(&self, buffer: &wgpu::Buffer, bytes: u64) -> Result<Vec<u8>, GpuError> {
        let slice = buffer.slice(..bytes);
        let (sender, receiver) = oneshot::channel();
        slice.map_async(wgpu::MapMode::Read, move |result| drop(sender.send(result)));
        let mapped = Mapped(buffer);
        self.wait()?;
        let result = receiver
            .await
            .map_err(|_| GpuError::DeviceLost("the read-back was dropped".into()))?;
        self.check()?;
        result.map_err(|e| GpuError::Validation(format!("read-back: {e}")))?;
        let view = slice
            .get_mapped_range()
            .map_err(|e| GpuError::Validation(format!("read-back: {e:?}")))?;
        let data = view.to_vec();
        drop(view);
        drop(mapped);
        Ok(data)
    }

    /// Waits until all that was submitted is done and what was dropped is freed.
    ///
    /// # Errors
    /// If the device is lost.
    pub async fn idle(&self) -> Result<(), GpuError> {
        self.queue.submit([]);
        self.wait()?;
        self.check()
    }

    /// Natively, blocks until all that was submitted is done; a browser calls back by itself.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        #[cfg(not(target_arch = "wasm32"))]
        if let Err(error) = self.device.poll(wgpu::PollType::wait_indefinitely()) {
            self.check()?;
            return Err(GpuError::DeviceLost(error.to_string()));
        }
        self.alive()
    }
}

/// Unmaps a buffer whatever happens, a dropped future included: a mapped one refuses the next run.
struct Mapped<'a>(&'a wgpu::Buffer);

impl Drop for Mapped<'_> {
    fn drop(&mut self) {
        self.0.unmap();
    }
}

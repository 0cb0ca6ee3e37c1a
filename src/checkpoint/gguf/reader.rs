use crate::checkpoint::CheckpointError;

/// Reads a file from its start and knows where it is.
pub(super) struct Reader<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes of the whole file.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// What has been read since a place.
    pub(super) fn since(&self, at: usize) -> &'a [u8] {
        &self.bytes[at..self.at]
    }

    pub(super) fn invalid(&self, reason: impl Into<String>) -> CheckpointError {
        CheckpointError::Header {
            file: self.file.to_owned(),
            reason: reason.into(),
        }
    }

    pub(super) fn truncated(&self, wanted: u64) -> CheckpointError {
        CheckpointError::Truncated {
            file: self.file.to_owned(),
            wanted,
            found: self.bytes.len() as u64,
        }
    }

    /// Checks that `count` items of at least `least` bytes each can follow.
    pub(super) fn expect(&self, count: u64, least: u64) -> Result<(), CheckpointError> {
        let wanted = count.saturating_mul(least).saturating_add(self.at as u64);
        match wanted > self.bytes.len() as u64 {
            true => Err(self.truncated(wanted)),
            false => Ok(()),
        }
    }

    pub(super) fn take(&mut self, count: u64) -> Result<&'a [u8], CheckpointError> {
        self.expect(count, 1)?;
        let bytes = &self.bytes[self.at..][..count as usize];
        self.at += count as usize;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64)?);
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CheckpointError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, CheckpointError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Text with its length before it.
    pub(super) fn text(&mut self) -> Result<&'a [u8], CheckpointError> {
        let length = self.u64()?;
        self.take(length)
    }

    /// The name of an entry or a tensor.
    pub(super) fn name(&mut self) -> Result<String, CheckpointError> {
        let text = self.text()?;
        match std::str::from_utf8(text) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => {
                let start = String::from_utf8_lossy(&text[..text.len().min(64)]).into_owned();
                Err(self.invalid(format!("the name `{start}` is no UTF-8")))
            }
        }
    }
}

use std::fmt;

/// Element type of a tensor.
///
/// Types of blocks ([`DType::Q8_0`] and on) hold several elements of one row in a block with scales of its own, as in GGUF files:
/// only weights have them, and the last extent is a multiple of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit IEEE 754.
    F32,
    /// 16-bit IEEE 754.
    F16,
    /// The upper half of an [`DType::F32`].
    BF16,
    /// Unsigned indices, such as token ids.
    U32,
    /// Signed codes -128 to 127, whose scales are a tensor of their own.
    I8,
    /// 32 elements of 8 bits.
    Q8_0,
    /// 32 elements of 4 bits.
    Q4_0,
    /// 32 elements of 4 bits and a minimum.
    Q4_1,
    /// 32 elements of 5 bits.
    Q5_0,
    /// 32 elements of 5 bits and a minimum.
    Q5_1,
    /// 256 elements of 2 bits.
    Q2K,
    /// 256 elements of 3 bits.
    Q3K,
    /// 256 elements of 4 bits.
    Q4K,
    /// 256 elements of 5 bits.
    Q5K,
    /// 256 elements of 6 bits.
    Q6K,
}

impl DType {
    /// Every type of blocks.
    pub const BLOCKS: [Self; 10] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Elements of a block and its bytes in a file (ggml's `block_*` structs); one element for plain types.
    pub const fn block(self) -> (usize, usize) {
        match self {
            Self::F32 | Self::U32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::I8 => (1, 1),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
        }
    }

    /// Whether it is a type of blocks.
    pub const fn is_blocks(self) -> bool {
        self.block().0 > 1
    }

    /// Whether tensors keep their bytes, not values: blocks and codes.
    pub const fn is_packed(self) -> bool {
        self.is_blocks() || matches!(self, Self::I8)
    }

    /// Bytes of `count` elements, a multiple of the block; saturates.
    pub const fn bytes(self, count: usize) -> usize {
        let (elements, bytes) = self.block();
        count.div_ceil(elements).saturating_mul(bytes)
    }

    /// Number of the type in GGUF files (ggml's `enum ggml_type`); `None` for what is no weight.
    pub const fn ggml(self) -> Option<u32> {
        Some(match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q5_0 => 6,
            Self::Q5_1 => 7,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q3K => 11,
            Self::Q4K => 12,
            Self::Q5K => 13,
            Self::Q6K => 14,
            Self::BF16 => 30,
            Self::U32 | Self::I8 => return None,
        })
    }

    /// Name in messages, kernels and JSON: also the choice in `wgsl/slot/`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::U32 => "u32",
            Self::I8 => "i8",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

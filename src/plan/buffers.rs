//! Which tensors share a buffer: those that are never alive together.

/// A tensor's need: bytes, and the first and last step that touch it (both inclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Size.
    pub bytes: u64,
    /// Step that writes it.
    pub first: usize,
    /// Last step that reads it.
    pub last: usize,
}

impl Lifetime {
    /// Whether both are needed in some step. A step's output never shares a buffer with what it reads: WebGPU refuses one buffer
    /// that is read and written in one dispatch.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Shared buffers: sizes, and for each tensor the buffer it lives in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    /// Bytes of each buffer.
    pub buffers: Vec<u64>,
    /// Buffer of each tensor.
    pub of: Vec<usize>,
}

/// Greedy by size: the largest tensor first, each into the smallest buffer that is free over its lifetime. Whole buffers are
/// shared, never parts, since WebGPU cannot bind disjoint parts of one buffer for reading and writing.
pub fn share(tensors: &[Lifetime]) -> Sharing {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(tensors[i].bytes), tensors[i].first));
    let mut sharing = Sharing {
        buffers: Vec::new(),
        of: vec![0; tensors.len()],
    };
    let mut tenants: Vec<Vec<Lifetime>> = Vec::new();
    for i in order {
        let tensor = tensors[i];
        // Sizes come in falling order, so every buffer is large enough and the latest that is free is the smallest.
        let free = (0..tenants.len())
            .rev()
            .find(|&b| tenants[b].iter().all(|t| !t.overlaps(&tensor)));
        let buffer = free.unwrap_or_else(|| {
            sharing.buffers.push(tensor.bytes);
            tenants.push(Vec::new());
            tenants.len() - 1
        });
        tenants[buffer].push(tensor);
        sharing.of[i] = buffer;
    }
    sharing
}

/// The most bytes that are alive in one step: no assignment can use less.
pub fn lower_bound(tensors: &[Lifetime]) -> u64 {
    let alive = |step| {
        tensors
            .iter()
            .filter(|t| (t.first..=t.last).contains(&step))
            .map(|t| t.bytes)
            .sum()
    };
    tensors.iter().map(|t| alive(t.first)).max().unwrap_or(0)
}

// offset = vector: one term for each channel
@group(0) @binding(4) var<storage, read> offsets: array<f32>;
fn offset(c: u32) -> f32 { return offsets[c]; }

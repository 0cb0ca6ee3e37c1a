// gain = vector: one factor for each channel
@group(0) @binding(3) var<storage, read> gains: array<f32>;
fn gain(c: u32) -> f32 { return gains[c]; }

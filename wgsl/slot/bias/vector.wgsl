// bias = vector: one value per output channel
@group(0) @binding(4) var<storage, read> bias: array<f32>;

fn add_bias(v: f32, j: u32) -> f32 { return v + bias[j]; }

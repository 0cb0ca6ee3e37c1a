// scale = vector: one factor per output channel
@group(0) @binding(7) var<storage, read> scales: array<f32>;

fn scale_sum(v: f32, j: u32) -> f32 { return v * scales[j]; }

// table = f32
@group(0) @binding(2) var<storage, read> table: array<f32>;
fn entry(i: u32) -> f32 { return table[i]; }

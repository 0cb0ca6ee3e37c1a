// scale = none
fn scale_sum(v: f32, j: u32) -> f32 { return v; }

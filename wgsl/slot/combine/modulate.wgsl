// combine = modulate: a * (1 + b)
fn combine(at: vec3<u32>) -> f32 { return load(a[at.x]) * (1.0 + load(b[at.y])); }

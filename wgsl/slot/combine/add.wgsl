// combine = add: a + b
fn combine(at: vec3<u32>) -> f32 { return load(a[at.x]) + load(b[at.y]); }

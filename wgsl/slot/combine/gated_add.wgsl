// combine = gated_add: a + b * c
@group(0) @binding(4) var<storage, read> c: array<Elem>;
fn combine(at: vec3<u32>) -> f32 { return load(a[at.x]) + load(b[at.y]) * load(c[at.z]); }

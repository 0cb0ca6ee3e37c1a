// combine = swiglu: silu(a) * b; where exp overflows, silu is -0
fn combine(at: vec3<u32>) -> f32 {
    let v = load(a[at.x]);
    return v / (1.0 + exp(-v)) * load(b[at.y]);
}

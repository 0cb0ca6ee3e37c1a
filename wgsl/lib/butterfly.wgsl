// Four values times the regular Hadamard matrix of order 4, over 2. The order of operations is that of quant/rotation.rs: halving is
// exact, so fusing it with a sum changes nothing and devices agree to the bit.
fn butterfly(v: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        0.5 * (v.x + v.y + v.z - v.w),
        0.5 * (v.x + v.y - v.z + v.w),
        0.5 * (v.x - v.y + v.z + v.w),
        0.5 * (v.y - v.x + v.z + v.w),
    );
}

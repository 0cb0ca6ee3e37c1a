// weight = bf16: two elements per word; each is the upper half of an f32
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn load_weight(i: u32) -> f32 { return bitcast<f32>((w[i >> 1u] >> (16u * (i & 1u))) << 16u); }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let pair = w[i >> 1u];
    return bitcast<vec2<f32>>(vec2<u32>(pair << 16u, pair & 0xffff0000u));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(load_weight2(i), load_weight2(i + 2u)),
        vec4<f32>(load_weight2(i + 4u), load_weight2(i + 6u)),
    );
}

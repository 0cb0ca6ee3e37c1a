// weight = f16: two elements per word, read without the f16 feature
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn load_weight(i: u32) -> f32 { return unpack2x16float(w[i >> 1u] >> (16u * (i & 1u))).x; }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> { return unpack2x16float(w[i >> 1u]); }

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(
        vec4<f32>(load_weight2(i), load_weight2(i + 2u)),
        vec4<f32>(load_weight2(i + 4u), load_weight2(i + 6u)),
    );
}

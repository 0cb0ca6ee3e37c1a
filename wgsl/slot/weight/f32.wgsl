// weight = f32: a matrix or filter stored as f32
@group(0) @binding(3) var<storage, read> w: array<f32>;

fn load_weight(i: u32) -> f32 { return w[i]; }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> { return vec2<f32>(w[i], w[i + 1u]); }

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(vec4<f32>(w[i], w[i + 1u], w[i + 2u], w[i + 3u]), vec4<f32>(w[i + 4u], w[i + 5u], w[i + 6u], w[i + 7u]));
}

// weight = i8: four signed codes per word; their scales are applied to the sums
//
// use lib/bytes                             signed4
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn load_weight(i: u32) -> f32 { return f32(extractBits(bitcast<i32>(w[i >> 2u]), 8u * (i & 3u), 8u)); }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let codes = bitcast<i32>(w[i >> 2u] >> (8u * (i & 2u)));
    return vec2<f32>(f32(extractBits(codes, 0u, 8u)), f32(extractBits(codes, 8u, 8u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(signed4(w[i >> 2u]), signed4(w[(i >> 2u) + 1u]));
}

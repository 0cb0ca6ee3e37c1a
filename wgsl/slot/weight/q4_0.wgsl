// weight = q4_0: blocks of 32 codes of 4 bits in pairs of 9 words, the first of which holds both f16 scales
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The scale of the block of element i.
fn scale_of(i: u32) -> f32 { return half(w[(i >> 6u) * 9u] >> (16u * ((i >> 5u) & 1u))); }

// The code of element i in the lowest bits; that of i + 1, for an even i, in the next byte.
fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 6u) * 9u + 1u + ((i >> 5u) & 1u) * 4u + ((i & 15u) >> 2u)];
    return word >> (8u * (i & 3u) + 4u * ((i >> 4u) & 1u));
}

fn load_weight(i: u32) -> f32 { return scale_of(i) * (f32(codes_of(i) & 15u) - 8.0); }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let codes = codes_of(i);
    return scale_of(i) * (vec2<f32>(f32(codes & 15u), f32((codes >> 8u) & 15u)) - 8.0);
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(
        scale * (vec4<f32>(bytes_of(codes_of(i), 15u)) - 8.0),
        scale * (vec4<f32>(bytes_of(codes_of(i + 4u), 15u)) - 8.0),
    );
}

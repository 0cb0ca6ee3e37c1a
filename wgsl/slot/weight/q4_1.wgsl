// weight = q4_1: blocks of 5 words: an f16 scale and minimum, then 32 codes of 4 bits
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// Scale and minimum of the block of element i.
fn scale_of(i: u32) -> vec2<f32> {
    let word = w[(i >> 5u) * 5u];
    return vec2<f32>(half(word), half(word >> 16u));
}

// The code of element i in the lowest bits; that of i + 1, for an even i, in the next byte.
fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 5u) * 5u + 1u + ((i & 15u) >> 2u)];
    return word >> (8u * (i & 3u) + 4u * ((i >> 4u) & 1u));
}

fn load_weight(i: u32) -> f32 {
    let scale = scale_of(i);
    return scale.x * f32(codes_of(i) & 15u) + scale.y;
}

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let scale = scale_of(i);
    let codes = codes_of(i);
    return scale.x * vec2<f32>(f32(codes & 15u), f32((codes >> 8u) & 15u)) + scale.y;
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(
        scale.x * vec4<f32>(bytes_of(codes_of(i), 15u)) + scale.y,
        scale.x * vec4<f32>(bytes_of(codes_of(i + 4u), 15u)) + scale.y,
    );
}

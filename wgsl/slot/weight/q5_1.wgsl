// weight = q5_1: blocks of 6 words: an f16 scale and minimum, a word with the fifth bits, then the others of 32 codes
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// Scale and minimum of the block of element i.
fn scale_of(i: u32) -> vec2<f32> {
    let word = w[(i >> 5u) * 6u];
    return vec2<f32>(half(word), half(word >> 16u));
}

// Elements i and i + 1; i is even. For load_weight the second is of no use.
fn codes_of(i: u32) -> vec2<u32> {
    let block = (i >> 5u) * 6u;
    let fifth = w[block + 1u] >> (i & 31u);
    let codes = w[block + 2u + ((i & 15u) >> 2u)] >> (8u * (i & 3u) + 4u * ((i >> 4u) & 1u));
    return vec2<u32>((codes & 15u) | ((fifth & 1u) << 4u), ((codes >> 8u) & 15u) | ((fifth & 2u) << 3u));
}

fn load_weight(i: u32) -> f32 {
    let scale = scale_of(i);
    return scale.x * f32(codes_of(i).x) + scale.y;
}

fn load_weight2(i: u32) -> vec2<f32> {
    let scale = scale_of(i);
    return scale.x * vec2<f32>(codes_of(i)) + scale.y;
}

// The codes of elements i to i + 3; i is a multiple of 4.
fn four_codes(i: u32) -> vec4<f32> {
    let block = (i >> 5u) * 6u;
    let fifth = (vec4<u32>(w[block + 1u] >> (i & 31u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    let codes = w[block + 2u + ((i & 15u) >> 2u)] >> (4u * ((i >> 4u) & 1u));
    return vec4<f32>(bytes_of(codes, 15u) | (fifth << vec4<u32>(4u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale.x * four_codes(i) + scale.y, scale.x * four_codes(i + 4u) + scale.y);
}

// weight = q5_k: blocks of 44 words: the f16 of scales and minima, 3 words with both for each 32 elements, 8 words with the fifth
// bits, then the others of 256 codes
//
// use lib/bytes                             bytes_of
// use lib/k_scales                          k_scales
@group(0) @binding(3) var<storage, read> w: array<u32>;

// Elements i and i + 1; i is even. For load_weight the second is of no use.
fn codes_of(i: u32) -> vec2<u32> {
    let block = (i >> 8u) * 44u;
    let fifth = w[block + 4u + ((i & 31u) >> 2u)] >> (8u * (i & 3u) + ((i >> 5u) & 7u));
    let word = w[block + 12u + ((i >> 6u) & 3u) * 8u + ((i & 31u) >> 2u)];
    let codes = word >> (8u * (i & 3u) + 4u * ((i >> 5u) & 1u));
    return vec2<u32>((codes & 15u) | ((fifth & 1u) << 4u), ((codes >> 8u) & 15u) | ((fifth >> 4u) & 16u));
}

fn load_weight(i: u32) -> f32 {
    let scale = k_scales((i >> 8u) * 44u, (i >> 5u) & 7u);
    return scale.x * f32(codes_of(i).x) - scale.y;
}

fn load_weight2(i: u32) -> vec2<f32> {
    let scale = k_scales((i >> 8u) * 44u, (i >> 5u) & 7u);
    return scale.x * vec2<f32>(codes_of(i)) - scale.y;
}

// The codes of elements i to i + 3; i is a multiple of 4.
fn four_codes(i: u32) -> vec4<f32> {
    let block = (i >> 8u) * 44u;
    let fifth = bytes_of(w[block + 4u + ((i & 31u) >> 2u)] >> ((i >> 5u) & 7u), 1u);
    let codes = w[block + 12u + ((i >> 6u) & 3u) * 8u + ((i & 31u) >> 2u)] >> (4u * ((i >> 5u) & 1u));
    return vec4<f32>(bytes_of(codes, 15u) | (fifth << vec4<u32>(4u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = k_scales((i >> 8u) * 44u, (i >> 5u) & 7u);
    return array<vec4<f32>, 2>(scale.x * four_codes(i) - scale.y, scale.x * four_codes(i + 4u) - scale.y);
}

// weight = q4_k: blocks of 36 words: the f16 of scales and minima, 3 words with both for each 32 elements, 256 codes of 4 bits
//
// use lib/bytes                             bytes_of
// use lib/k_scales                          k_scales
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The code of element i in the lowest bits; that of i + 1, for an even i, in the next byte.
fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 8u) * 36u + 4u + ((i >> 6u) & 3u) * 8u + ((i & 31u) >> 2u)];
    return word >> (8u * (i & 3u) + 4u * ((i >> 5u) & 1u));
}

fn load_weight(i: u32) -> f32 {
    let scale = k_scales((i >> 8u) * 36u, (i >> 5u) & 7u);
    return scale.x * f32(codes_of(i) & 15u) - scale.y;
}

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let scale = k_scales((i >> 8u) * 36u, (i >> 5u) & 7u);
    let codes = codes_of(i);
    return scale.x * vec2<f32>(f32(codes & 15u), f32((codes >> 8u) & 15u)) - scale.y;
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = k_scales((i >> 8u) * 36u, (i >> 5u) & 7u);
    return array<vec4<f32>, 2>(
        scale.x * vec4<f32>(bytes_of(codes_of(i), 15u)) - scale.y,
        scale.x * vec4<f32>(bytes_of(codes_of(i + 4u), 15u)) - scale.y,
    );
}

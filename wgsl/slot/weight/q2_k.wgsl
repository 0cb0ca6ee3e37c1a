// weight = q2_k: blocks of 21 words: scale and minimum of 4 bits for each 16 elements, 256 codes of 2 bits, the f16 of both
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// Scale and minimum of the group of element i.
fn scale_of(i: u32) -> vec2<f32> {
    let block = (i >> 8u) * 21u;
    let both = w[block + 20u];
    let group = w[block + ((i >> 6u) & 3u)] >> (8u * ((i >> 4u) & 3u));
    return vec2<f32>(half(both) * f32(group & 15u), half(both >> 16u) * f32((group >> 4u) & 15u));
}

// The code of element i in the lowest bits; that of i + 1, for an even i, in the next byte.
fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 8u) * 21u + 4u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)];
    return word >> (8u * (i & 3u) + 2u * ((i >> 5u) & 3u));
}

fn load_weight(i: u32) -> f32 {
    let scale = scale_of(i);
    return scale.x * f32(codes_of(i) & 3u) - scale.y;
}

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let scale = scale_of(i);
    let codes = codes_of(i);
    return scale.x * vec2<f32>(f32(codes & 3u), f32((codes >> 8u) & 3u)) - scale.y;
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(
        scale.x * vec4<f32>(bytes_of(codes_of(i), 3u)) - scale.y,
        scale.x * vec4<f32>(bytes_of(codes_of(i + 4u), 3u)) - scale.y,
    );
}

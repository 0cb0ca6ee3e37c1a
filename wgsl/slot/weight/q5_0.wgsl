// weight = q5_0: blocks of 32 codes of 5 bits in pairs of 11 words, the first of which holds both f16 scales; a word of each block
// holds the fifth bits
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The scale of the block of element i.
fn scale_of(i: u32) -> f32 { return half(w[(i >> 6u) * 11u] >> (16u * ((i >> 5u) & 1u))); }

// The word with the fifth bits of the block of element i.
fn block_of(i: u32) -> u32 { return (i >> 6u) * 11u + 1u + ((i >> 5u) & 1u) * 5u; }

// Elements i and i + 1; i is even. For load_weight the second is of no use.
fn codes_of(i: u32) -> vec2<u32> {
    let block = block_of(i);
    let fifth = w[block] >> (i & 31u);
    let codes = w[block + 1u + ((i & 15u) >> 2u)] >> (8u * (i & 3u) + 4u * ((i >> 4u) & 1u));
    return vec2<u32>((codes & 15u) | ((fifth & 1u) << 4u), ((codes >> 8u) & 15u) | ((fifth & 2u) << 3u));
}

fn load_weight(i: u32) -> f32 { return scale_of(i) * (f32(codes_of(i).x) - 16.0); }

fn load_weight2(i: u32) -> vec2<f32> { return scale_of(i) * (vec2<f32>(codes_of(i)) - 16.0); }

// The codes of elements i to i + 3; i is a multiple of 4.
fn four_codes(i: u32) -> vec4<f32> {
    let block = block_of(i);
    let fifth = (vec4<u32>(w[block] >> (i & 31u)) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
    let codes = w[block + 1u + ((i & 15u) >> 2u)] >> (4u * ((i >> 4u) & 1u));
    return vec4<f32>(bytes_of(codes, 15u) | (fifth << vec4<u32>(4u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale * (four_codes(i) - 16.0), scale * (four_codes(i + 4u) - 16.0));
}

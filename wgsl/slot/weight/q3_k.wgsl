// weight = q3_k: blocks of 256 codes of 3 bits in pairs of 55 words, the first of which holds both f16 scales. Of a block, 8 words
// hold the third bits, 16 the others, 3 the scales of 6 bits for each 16 elements.
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The first word of the block of element i.
fn block_of(i: u32) -> u32 { return (i >> 9u) * 55u + 1u + ((i >> 8u) & 1u) * 27u; }

// The scale of the group of element i: four bits in one of eight bytes, two in one of four.
fn scale_of(i: u32) -> f32 {
    let group = (i >> 4u) & 15u;
    let at = block_of(i) + 24u;
    let low = w[at + ((group >> 2u) & 1u)] >> (8u * (group & 3u) + 4u * (group >> 3u));
    let high = w[at + 2u] >> (8u * (group & 3u) + 2u * (group >> 2u));
    let d = half(w[(i >> 9u) * 55u] >> (16u * ((i >> 8u) & 1u)));
    return d * (f32((low & 15u) | ((high & 3u) << 4u)) - 32.0);
}

// Elements i and i + 1; i is even. For load_weight the second is of no use.
fn codes_of(i: u32) -> vec2<u32> {
    let block = block_of(i);
    let third = w[block + ((i & 31u) >> 2u)] >> (8u * (i & 3u) + ((i >> 5u) & 7u));
    let codes = w[block + 8u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)] >> (8u * (i & 3u) + 2u * ((i >> 5u) & 3u));
    return vec2<u32>((codes & 3u) | ((third & 1u) << 2u), ((codes >> 8u) & 3u) | ((third >> 6u) & 4u));
}

fn load_weight(i: u32) -> f32 { return scale_of(i) * (f32(codes_of(i).x) - 4.0); }

fn load_weight2(i: u32) -> vec2<f32> { return scale_of(i) * (vec2<f32>(codes_of(i)) - 4.0); }

// The codes of elements i to i + 3; i is a multiple of 4.
fn four_codes(i: u32) -> vec4<f32> {
    let block = block_of(i);
    let third = bytes_of(w[block + ((i & 31u) >> 2u)] >> ((i >> 5u) & 7u), 1u);
    let codes = w[block + 8u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)] >> (2u * ((i >> 5u) & 3u));
    return vec4<f32>(bytes_of(codes, 3u) | (third << vec4<u32>(2u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale * (four_codes(i) - 4.0), scale * (four_codes(i + 4u) - 4.0));
}

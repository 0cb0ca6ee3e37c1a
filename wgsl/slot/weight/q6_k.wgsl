// weight = q6_k: blocks of 256 codes of 6 bits in pairs of 105 words, the first of which holds both f16 scales. Of a block, 32 words
// hold the lower four bits, 16 the upper two, 4 the signed scales of 8 bits for each 16 elements.
//
// use lib/bytes                             bytes_of
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The first word of the block of element i.
fn block_of(i: u32) -> u32 { return (i >> 9u) * 105u + 1u + ((i >> 8u) & 1u) * 52u; }

// The scale of the group of element i.
fn scale_of(i: u32) -> f32 {
    let group = bitcast<i32>(w[block_of(i) + 48u + ((i >> 6u) & 3u)]);
    let d = half(w[(i >> 9u) * 105u] >> (16u * ((i >> 8u) & 1u)));
    return d * f32(extractBits(group, 8u * ((i >> 4u) & 3u), 8u));
}

// Elements i and i + 1; i is even. For load_weight the second is of no use.
fn codes_of(i: u32) -> vec2<u32> {
    let block = block_of(i);
    let low = w[block + ((i >> 7u) & 1u) * 16u + ((i & 63u) >> 2u)] >> (8u * (i & 3u) + 4u * ((i >> 6u) & 1u));
    let high = w[block + 32u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)] >> (8u * (i & 3u) + 2u * ((i >> 5u) & 3u));
    return vec2<u32>((low & 15u) | ((high & 3u) << 4u), ((low >> 8u) & 15u) | ((high >> 4u) & 48u));
}

fn load_weight(i: u32) -> f32 { return scale_of(i) * (f32(codes_of(i).x) - 32.0); }

fn load_weight2(i: u32) -> vec2<f32> { return scale_of(i) * (vec2<f32>(codes_of(i)) - 32.0); }

// The codes of elements i to i + 3; i is a multiple of 4.
fn four_codes(i: u32) -> vec4<f32> {
    let block = block_of(i);
    let low = w[block + ((i >> 7u) & 1u) * 16u + ((i & 63u) >> 2u)] >> (4u * ((i >> 6u) & 1u));
    let high = w[block + 32u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)] >> (2u * ((i >> 5u) & 3u));
    return vec4<f32>(bytes_of(low, 15u) | (bytes_of(high, 3u) << vec4<u32>(4u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale * (four_codes(i) - 32.0), scale * (four_codes(i + 4u) - 32.0));
}

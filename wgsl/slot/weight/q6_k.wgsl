// weight = q6_k: blocks of 256 codes of 6 bits in pairs of 105 words, the first of which holds both f16 scales. Of a block, 32 words
// hold the lower four bits, 16 the upper two, 4 the signed scales of 8 bits for each 16 elements.
//
// use lib/codes_offset                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

const OFFSET: f32 = 32.0;

// The first word of the block of element i.
fn block_of(i: u32) -> u32 { return (i >> 9u) * 105u + 1u + ((i >> 8u) & 1u) * 52u; }

fn scale_of(i: u32) -> f32 {
    let group = bitcast<i32>(w[block_of(i) + 48u + ((i >> 6u) & 3u)]);
    let d = half(w[(i >> 9u) * 105u] >> (16u * ((i >> 8u) & 1u)));
    return d * f32(extractBits(group, 8u * ((i >> 4u) & 3u), 8u));
}

fn codes_of(i: u32) -> u32 {
    let block = block_of(i);
    let low = w[block + ((i >> 7u) & 1u) * 16u + ((i & 63u) >> 2u)] >> (4u * ((i >> 6u) & 1u));
    let high = w[block + 32u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)] >> (2u * ((i >> 5u) & 3u));
    return (low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u);
}

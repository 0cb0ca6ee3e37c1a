// weight = q5_0: blocks of 32 codes of 5 bits in pairs of 11 words, the first of which holds both f16 scales; of a block, a word
// holds the fifth bits, 4 the others
//
// use lib/bytes                             fifth_bits
// use lib/codes_offset                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

const OFFSET: f32 = 16.0;

fn scale_of(i: u32) -> f32 { return half(w[(i >> 6u) * 11u] >> (16u * ((i >> 5u) & 1u))); }

fn codes_of(i: u32) -> u32 {
    let block = (i >> 6u) * 11u + 1u + ((i >> 5u) & 1u) * 5u;
    let low = w[block + 1u + ((i & 15u) >> 2u)] >> (4u * ((i >> 4u) & 1u));
    return (low & 0x0f0f0f0fu) | fifth_bits(w[block] >> (i & 28u));
}

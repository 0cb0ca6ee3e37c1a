// weight = q4_0: blocks of 32 codes of 4 bits in pairs of 9 words, the first of which holds both f16 scales
//
// use lib/codes_offset                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

const OFFSET: f32 = 8.0;

fn scale_of(i: u32) -> f32 { return half(w[(i >> 6u) * 9u] >> (16u * ((i >> 5u) & 1u))); }

fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 6u) * 9u + 1u + ((i >> 5u) & 1u) * 4u + ((i & 15u) >> 2u)];
    return (word >> (4u * ((i >> 4u) & 1u))) & 0x0f0f0f0fu;
}

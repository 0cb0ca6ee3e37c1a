// weight = q5_1: blocks of 6 words: an f16 scale and minimum, a word with the fifth bits, then the others of 32 codes
//
// use lib/bytes                             fifth_bits
// use lib/codes_affine                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The minimum is added here.
fn scale_of(i: u32) -> vec2<f32> {
    let word = w[(i >> 5u) * 6u];
    return vec2<f32>(half(word), -half(word >> 16u));
}

fn codes_of(i: u32) -> u32 {
    let block = (i >> 5u) * 6u;
    let low = w[block + 2u + ((i & 15u) >> 2u)] >> (4u * ((i >> 4u) & 1u));
    return (low & 0x0f0f0f0fu) | fifth_bits(w[block + 1u] >> (i & 28u));
}

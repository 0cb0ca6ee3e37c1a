// weight = q4_1: blocks of 5 words: an f16 scale and minimum, then 32 codes of 4 bits
//
// use lib/codes_affine                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The minimum is added here.
fn scale_of(i: u32) -> vec2<f32> {
    let word = w[(i >> 5u) * 5u];
    return vec2<f32>(half(word), -half(word >> 16u));
}

fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 5u) * 5u + 1u + ((i & 15u) >> 2u)];
    return (word >> (4u * ((i >> 4u) & 1u))) & 0x0f0f0f0fu;
}

// weight = q2_k: blocks of 21 words: scale and minimum of 4 bits for each 16 elements, 256 codes of 2 bits, the f16 of both
//
// use lib/codes_affine                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn scale_of(i: u32) -> vec2<f32> {
    let block = (i >> 8u) * 21u;
    let both = w[block + 20u];
    let group = w[block + ((i >> 6u) & 3u)] >> (8u * ((i >> 4u) & 3u));
    return vec2<f32>(half(both) * f32(group & 15u), half(both >> 16u) * f32((group >> 4u) & 15u));
}

fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 8u) * 21u + 4u + ((i >> 7u) & 1u) * 8u + ((i & 31u) >> 2u)];
    return (word >> (2u * ((i >> 5u) & 3u))) & 0x03030303u;
}

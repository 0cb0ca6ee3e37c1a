// weight = q5_k: blocks of 44 words: the f16 of scales and minima, 3 words with both for each 32 elements, 8 words with the fifth
// bits, then the others of 256 codes
//
// use lib/codes_affine                      load_weight, load_weight2, load_weight8
// use lib/k_scales                          k_scales
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn scale_of(i: u32) -> vec2<f32> { return k_scales((i >> 8u) * 44u, (i >> 5u) & 7u); }

fn codes_of(i: u32) -> u32 {
    let at = (i >> 8u) * 44u + 4u + ((i & 31u) >> 2u);
    let low = w[at + 8u + ((i >> 6u) & 3u) * 8u] >> (4u * ((i >> 5u) & 1u));
    let fifth = w[at] >> ((i >> 5u) & 7u);
    return (low & 0x0f0f0f0fu) | ((fifth & 0x01010101u) << 4u);
}

// weight = q4_k: blocks of 36 words: the f16 of scales and minima, 3 words with both for each 32 elements, 256 codes of 4 bits
//
// use lib/codes_affine                      load_weight, load_weight2, load_weight8
// use lib/k_scales                          k_scales
@group(0) @binding(3) var<storage, read> w: array<u32>;

fn scale_of(i: u32) -> vec2<f32> { return k_scales((i >> 8u) * 36u, (i >> 5u) & 7u); }

fn codes_of(i: u32) -> u32 {
    let word = w[(i >> 8u) * 36u + 4u + ((i >> 6u) & 3u) * 8u + ((i & 31u) >> 2u)];
    return (word >> (4u * ((i >> 5u) & 1u))) & 0x0f0f0f0fu;
}

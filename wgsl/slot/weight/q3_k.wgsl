// weight = q3_k: blocks of 256 codes of 3 bits in pairs of 55 words, the first of which holds both f16 scales. Of a block, 8 words
// hold the third bits, 16 the others, 3 the scales of 6 bits for each 16 elements.
//
// use lib/codes_offset                      load_weight, load_weight2, load_weight8
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

const OFFSET: f32 = 4.0;

// The first word of the block of element i.
fn block_of(i: u32) -> u32 { return (i >> 9u) * 55u + 1u + ((i >> 8u) & 1u) * 27u; }

// Four bits in one of eight bytes, two in one of four.
fn scale_of(i: u32) -> f32 {
    let group = (i >> 4u) & 15u;
    let at = block_of(i) + 24u;
    let low = w[at + ((group >> 2u) & 1u)] >> (8u * (group & 3u) + 4u * (group >> 3u));
    let high = w[at + 2u] >> (8u * (group & 3u) + 2u * (group >> 2u));
    let d = half(w[(i >> 9u) * 55u] >> (16u * ((i >> 8u) & 1u)));
    return d * (f32((low & 15u) | ((high & 3u) << 4u)) - 32.0);
}

fn codes_of(i: u32) -> u32 {
    let at = block_of(i) + ((i & 31u) >> 2u);
    let low = w[at + 8u + ((i >> 7u) & 1u) * 8u] >> (2u * ((i >> 5u) & 3u));
    let third = w[at] >> ((i >> 5u) & 7u);
    return (low & 0x03030303u) | ((third & 0x01010101u) << 2u);
}

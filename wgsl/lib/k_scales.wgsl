// Scale and minimum of group g of 32 elements of a block of Q4_K or Q5_K that begins at word at: six bits each in twelve bytes.
//
// use lib/half                              half
fn k_scales(at: u32, g: u32) -> vec2<f32> {
    let shift = 8u * (g & 3u);
    let a = w[at + 1u] >> shift;
    let b = w[at + 2u] >> shift;
    let c = w[at + 3u] >> shift;
    // The last four groups have their lower bits in c, their upper ones above those of the first four.
    let first = vec2<u32>(a & 63u, b & 63u);
    let last = vec2<u32>((c & 15u) | ((a >> 2u) & 48u), ((c >> 4u) & 15u) | ((b >> 2u) & 48u));
    let both = w[at];
    return vec2<f32>(half(both), half(both >> 16u)) * vec2<f32>(select(last, first, g < 4u));
}

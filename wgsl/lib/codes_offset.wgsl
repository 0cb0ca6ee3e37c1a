// Weights from codes of four elements in a word: scale_of(i) * (code - OFFSET). The slot declares
//   fn scale_of(i: u32) -> f32, the scale of element i: the same for eight elements from a multiple of 8;
//   fn codes_of(i: u32) -> u32, the codes of the four elements from i & ~3 on, a byte each; const OFFSET: f32.
//
// use lib/bytes                             bytes4

fn load_weight(i: u32) -> f32 { return scale_of(i) * (f32((codes_of(i) >> (8u * (i & 3u))) & 255u) - OFFSET); }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let codes = codes_of(i) >> (8u * (i & 2u));
    return scale_of(i) * (vec2<f32>(f32(codes & 255u), f32((codes >> 8u) & 255u)) - OFFSET);
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale * (bytes4(codes_of(i)) - OFFSET), scale * (bytes4(codes_of(i + 4u)) - OFFSET));
}

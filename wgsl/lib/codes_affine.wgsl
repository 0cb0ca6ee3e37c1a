// Weights from codes of four elements in a word: scale * code - minimum. The slot declares
//   fn scale_of(i: u32) -> vec2<f32>, scale and minimum of element i: the same for eight elements from a multiple of 8;
//   fn codes_of(i: u32) -> u32, the codes of the four elements from i & ~3 on, a byte each.
//
// use lib/bytes                             bytes4

fn load_weight(i: u32) -> f32 {
    let scale = scale_of(i);
    return scale.x * f32((codes_of(i) >> (8u * (i & 3u))) & 255u) - scale.y;
}

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let scale = scale_of(i);
    let codes = codes_of(i) >> (8u * (i & 2u));
    return scale.x * vec2<f32>(f32(codes & 255u), f32((codes >> 8u) & 255u)) - scale.y;
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(scale.x * bytes4(codes_of(i)) - scale.y, scale.x * bytes4(codes_of(i + 4u)) - scale.y);
}

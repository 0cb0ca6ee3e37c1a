// weight = q8_0: blocks of 32 signed codes in pairs of 17 words, the first of which holds both f16 scales
//
// use lib/bytes                             signed4
// use lib/half                              half
@group(0) @binding(3) var<storage, read> w: array<u32>;

// The block of element i.
fn scale_of(i: u32) -> f32 { return half(w[(i >> 6u) * 17u] >> (16u * ((i >> 5u) & 1u))); }

// The word with the code of element i.
fn codes_of(i: u32) -> u32 { return w[(i >> 6u) * 17u + 1u + ((i & 63u) >> 2u)]; }

fn load_weight(i: u32) -> f32 { return scale_of(i) * f32(extractBits(bitcast<i32>(codes_of(i)), 8u * (i & 3u), 8u)); }

// Elements i and i + 1; i is even.
fn load_weight2(i: u32) -> vec2<f32> {
    let codes = bitcast<i32>(codes_of(i) >> (8u * (i & 2u)));
    return scale_of(i) * vec2<f32>(f32(extractBits(codes, 0u, 8u)), f32(extractBits(codes, 8u, 8u)));
}

// Elements i to i + 7; i is a multiple of 8.
fn load_weight8(i: u32) -> array<vec4<f32>, 2> {
    let at = (i >> 6u) * 17u + 1u + ((i & 63u) >> 2u);
    let scale = scale_of(i);
    return array<vec4<f32>, 2>(
        scale * signed4(w[at]),
        scale * signed4(w[at + 1u]),
    );
}

// The bytes of a word, lowest first.
fn bytes4(word: u32) -> vec4<f32> {
    return vec4<f32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u));
}

// Bit 4 of each byte, from the lowest four bits: no two of the shifted copies share a place.
fn fifth_bits(bits: u32) -> u32 { return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4u; }

// The bytes of a word as signed numbers, lowest first.
fn signed4(word: u32) -> vec4<f32> {
    let codes = bitcast<i32>(word);
    return vec4<f32>(vec4<i32>(codes << 24u, codes << 16u, codes << 8u, codes) >> vec4<u32>(24u));
}

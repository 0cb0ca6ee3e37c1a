// The four bytes of a word, lowest first, each without the bits outside `mask`.
fn bytes_of(word: u32, mask: u32) -> vec4<u32> {
    return (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(mask);
}

// As `bytes_of`, as signed numbers.
fn signed_bytes_of(word: u32) -> vec4<i32> {
    let codes = bitcast<i32>(word);
    return vec4<i32>(codes << 24u, codes << 16u, codes << 8u, codes) >> vec4<u32>(24u);
}

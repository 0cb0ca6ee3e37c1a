// table = bf16: two elements in a word, each the upper half of an f32
@group(0) @binding(2) var<storage, read> table: array<u32>;
fn entry(i: u32) -> f32 {
    let word = table[i / 2u];
    return bitcast<f32>(select(word << 16u, word & 0xffff0000u, i % 2u == 1u));
}

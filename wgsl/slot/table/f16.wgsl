// table = f16: two elements in a word, so that no feature is needed
@group(0) @binding(2) var<storage, read> table: array<u32>;
fn entry(i: u32) -> f32 { return unpack2x16float(table[i / 2u])[i % 2u]; }

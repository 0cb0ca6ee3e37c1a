// four = unpacked: four codes as integers, for products in plain arithmetic
alias Four = vec4<i32>;

fn four(word: u32) -> Four {
    let w = bitcast<i32>(word);
    return vec4<i32>(w << 24u, w << 16u, w << 8u, w) >> vec4<u32>(24u);
}

fn dot4(a: Four, b: Four) -> i32 { return dot(a, b); }

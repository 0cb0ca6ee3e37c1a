// row = streamed: too long for registers, so it is loaded once more
fn keep(k: u32, v: f32) {}
fn again(k: u32, i: u32) -> f32 { return load(x[i]); }

// act = sigmoid
fn act(v: f32) -> f32 { return 1.0 / (1.0 + exp(-v)); }

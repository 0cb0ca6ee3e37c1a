// act = silu: v * sigmoid(v); where exp overflows, the quotient is -0
fn act(v: f32) -> f32 { return v / (1.0 + exp(-v)); }

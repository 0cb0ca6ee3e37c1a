// act = quick_gelu: v * sigmoid(1.702 v)
fn act(v: f32) -> f32 { return v / (1.0 + exp(-1.702 * v)); }

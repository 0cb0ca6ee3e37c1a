// act = gelu_tanh: GELU by its tanh formula; (1 + tanh u) / 2 is sigmoid(2 u), which needs no tanh
fn act(v: f32) -> f32 {
    let u = 0.7978845608 * (v + 0.044715 * v * v * v);
    return v / (1.0 + exp(-2.0 * u));
}

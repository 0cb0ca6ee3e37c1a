// act = relu; a select by `v < 0` keeps NaN, a max may not
fn act(v: f32) -> f32 { return select(v, 0.0, v < 0.0); }

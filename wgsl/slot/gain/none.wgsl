// gain = none
fn gain(c: u32) -> f32 { return 1.0; }

// offset = none
fn offset(c: u32) -> f32 { return 0.0; }

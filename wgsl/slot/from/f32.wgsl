// from = f32: what a cast reads
alias From = f32;
fn widen(v: From) -> f32 { return v; }

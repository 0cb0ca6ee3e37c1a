// from = f16: what a cast reads
enable f16;
alias From = f16;
fn widen(v: From) -> f32 { return f32(v); }

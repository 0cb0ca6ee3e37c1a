// row = held: an invocation keeps its part of the row in registers
var<private> held: array<f32, PER>;
fn keep(k: u32, v: f32) { held[k] = v; }
fn again(k: u32, i: u32) -> f32 { return held[k]; }

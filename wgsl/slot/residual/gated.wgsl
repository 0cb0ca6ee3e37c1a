// residual = gated: as `add`, with a factor per output channel on the new value
//
// use elem                                  Elem, load
@group(0) @binding(5) var<storage, read> residual: array<Elem>;
@group(0) @binding(6) var<storage, read> gate: array<Elem>;

fn add_residual(v: f32, i: u32, j: u32) -> f32 { return load(residual[i]) + load(gate[j]) * v; }

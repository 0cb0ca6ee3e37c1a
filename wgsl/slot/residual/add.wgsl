// residual = add: plus the element of a tensor like the output
//
// use elem                                  Elem, load
@group(0) @binding(5) var<storage, read> residual: array<Elem>;

fn add_residual(v: f32, i: u32, j: u32) -> f32 { return load(residual[i]) + v; }

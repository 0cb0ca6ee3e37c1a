// timestep_embedding: y[n, :] = cosines and sines of t[n] * scale * frequency[i]
// Element by element of the angles; a column that is left over is zero.
//
// use elem                                  Elem, store
// use lib/trig                              cos_sin
// use lib/flat                              main

struct Params {
    count: u32,                              // angles
    half: u32,                               // angles of a row
    dim: u32,
    cos_at: u32,                             // first column of the cosines
    sin_at: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read> frequencies: array<f32>;

fn make(p: u32) {
    let n = p / params.half;
    let i = p % params.half;
    let v = cos_sin(t[n] * params.scale * frequencies[i]);
    let row = n * params.dim;
    y[row + params.cos_at + i] = store(v.x);
    y[row + params.sin_at + i] = store(v.y);
    if i == 0u && params.dim % 2u == 1u { y[row + params.dim - 1u] = store(0.0); }
}

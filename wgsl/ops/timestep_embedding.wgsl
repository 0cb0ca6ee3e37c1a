// timestep_embedding: y[n, :] = cosines and sines of t[n] * scale * frequency[i]
// One invocation for each angle; a column that is left over is zero.
//
// use elem                                  Elem, store
// use lib/trig                              cos_sin
// use lib/index                             flat_group

struct Params {
    count: u32,                              // angles
    half: u32,                               // angles of a row
    dim: u32,
    cos_at: u32,                             // first column of the cosines
    sin_at: u32,
    scale: f32,
}

override WG: u32 = 64;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read> frequencies: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let p = flat_group(group, groups) * WG + lane;
    if p >= params.count { return; }
    let n = p / params.half;
    let i = p % params.half;
    let v = cos_sin(t[n] * params.scale * frequencies[i]);
    let row = n * params.dim;
    y[row + params.cos_at + i] = store(v.x);
    y[row + params.sin_at + i] = store(v.y);
    if i == 0u && params.dim % 2u == 1u { y[row + params.dim - 1u] = store(0.0); }
}

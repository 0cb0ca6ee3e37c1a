// embedding: y[t, :] = table[ids[t], :]
// One invocation for each element; an id outside the table gives NaN.
//
// use elem                                  Elem, store
// use weight                                load_weight
// use lib/index                             flat_group

struct Params {
    count: u32,
    rows: u32,
    cols: u32,
    nan: f32,                                // WGSL has no literal for it
}

override WG: u32 = 128;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = flat_group(group, groups) * WG + lane;
    if i >= params.count { return; }
    let t = i / params.cols;
    let id = ids[t];
    var v = params.nan;
    if id < params.rows { v = load_weight(id * params.cols + i - t * params.cols); }
    y[i] = store(v);
}

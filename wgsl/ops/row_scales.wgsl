// row_scales: s[r] = max(max_c |x[r, c]| / 127, 1e-30); NaN where the row has one
// One workgroup per row.
//
// use elem                                  Elem, load
// use lib/index                             flat_group

struct Params {
    rows: u32,
    cols: u32,
}

override WG: u32 = 64;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> s: array<f32>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<workgroup> largest: atomic<u32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = flat_group(group, groups);
    if r >= params.rows { return; }
    if lane == 0 { atomicStore(&largest, 0u); }
    workgroupBarrier();

    // Magnitudes compare like their bits, and those of a NaN are above infinity's.
    var own = 0u;
    for (var c = lane; c < params.cols; c += WG) {
        own = max(own, bitcast<u32>(load(x[r * params.cols + c])) & 0x7fffffffu);
    }
    atomicMax(&largest, own);
    workgroupBarrier();

    if lane == 0 {
        let scale = bitcast<f32>(atomicLoad(&largest)) / 127.0;
        s[r] = select(scale, 1e-30, scale < 1e-30);
    }
}

// rotate: y = x H in groups of GROUP neighbours, H the regular Hadamard matrix of quant/rotation.rs
// One workgroup per TILE elements, through workgroup memory; a stage of radix-4 butterflies for each power of 4 below GROUP.
//
// use elem                                  Elem, load, store
// use lib/butterfly                         butterfly
// use lib/index                             flat_group

struct Params {
    count: u32,                              // elements, whole groups of them
}

const GROUP: u32 = 256;
override TILE: u32 = 1024;                   // elements of a workgroup: a multiple of GROUP
override WG: u32 = 256;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<workgroup> tile: array<f32, TILE>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first = flat_group(group, groups) * TILE;
    if first >= params.count { return; }

    // The first stage takes four neighbours, as they are loaded.
    for (var e = 4 * lane; e < TILE; e += 4 * WG) {
        let i = first + e;
        if i < params.count { put(e, 1u, butterfly(vec4<f32>(load(x[i]), load(x[i + 1]), load(x[i + 2]), load(x[i + 3])))); }
    }
    for (var stride = 4u; stride < GROUP; stride *= 4u) {
        workgroupBarrier();
        for (var b = lane; b < TILE / 4; b += WG) {
            let e = b / stride * 4 * stride + b % stride;
            put(e, stride, butterfly(vec4<f32>(tile[e], tile[e + stride], tile[e + 2 * stride], tile[e + 3 * stride])));
        }
    }
    workgroupBarrier();
    for (var e = lane; e < TILE; e += WG) {
        let i = first + e;
        if i < params.count { y[i] = store(tile[e]); }
    }
}

fn put(e: u32, stride: u32, v: vec4<f32>) {
    tile[e] = v.x;
    tile[e + stride] = v.y;
    tile[e + 2 * stride] = v.z;
    tile[e + 3 * stride] = v.w;
}

// cast: y = x in another element type, rounded to nearest
//
// use elem                                  Elem, store
// use from                                  From, widen
// use lib/index                             flat_group

struct Params {
    count: u32,
}

override WG: u32 = 64;
override PER: u32 = 4;                       // elements of an invocation, WG apart

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<From>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = flat_group(group, groups) * (WG * PER) + lane;
    for (var k = 0u; k < PER; k++) {
        let i = start + k * WG;
        if i >= params.count { return; }
        y[i] = store(widen(x[i]));
    }
}

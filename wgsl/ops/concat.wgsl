// concat: y[o, offset + r] = x[o, r]: one input into its place in each row of the output
// One launch per input.
//
// use elem                                  Elem
// use lib/index                             flat_group

struct Params {
    count: u32,                              // elements of x
    length: u32,                             // of a row of x
    stride: u32,                             // of a row of y
    offset: u32,                             // in a row of y
}

override WG: u32 = 64;
override PER: u32 = 4;                       // elements of an invocation, WG apart

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

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
        y[i / params.length * params.stride + params.offset + i % params.length] = x[i];
    }
}

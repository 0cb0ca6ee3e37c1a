// strided: y[i] = x[offset + i0 s0 + .. + i5 s5], where i0 .. i5 are the indices of i in the extents n0 .. n5
// Permutations, slices, patches and repeats are all this. Several elements an invocation, WG apart.
//
// use elem                                  Elem
// use lib/index                             flat_group

struct Params {
    count: u32,
    offset: u32,
    n1: u32, n2: u32, n3: u32, n4: u32, n5: u32,
    s0: u32, s1: u32, s2: u32, s3: u32, s4: u32, s5: u32,
}

override WG: u32 = 64;
override PER: u32 = 4;                       // elements of an invocation

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
        y[i] = x[source(i)];
    }
}

fn source(i: u32) -> u32 {
    var rest = i;
    var at = params.offset + (rest % params.n5) * params.s5;
    rest /= params.n5;
    at += (rest % params.n4) * params.s4;
    rest /= params.n4;
    at += (rest % params.n3) * params.s3;
    rest /= params.n3;
    at += (rest % params.n2) * params.s2;
    rest /= params.n2;
    at += (rest % params.n1) * params.s1;
    return at + rest / params.n1 * params.s0;
}

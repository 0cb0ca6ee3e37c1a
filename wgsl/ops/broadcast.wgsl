// broadcast: y[i] = combine(a, b, ..), element by element, where an operand may repeat along axes
//
// use elem                                  Elem, load, store
// use combine                               combine
// use place                                 place
// use lib/index                             flat_group

// Axes from the innermost on, neighbours merged where every operand allows; n5 is not needed to undo an index.
struct Params {
    count: u32,
    n0: u32, n1: u32, n2: u32, n3: u32, n4: u32,
    a0: u32, a1: u32, a2: u32, a3: u32, a4: u32, a5: u32,
    b0: u32, b1: u32, b2: u32, b3: u32, b4: u32, b5: u32,
    c0: u32, c1: u32, c2: u32, c3: u32, c4: u32, c5: u32,
}

override WG: u32 = 64;
override PER: u32 = 4;                       // elements of an invocation, WG apart

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> a: array<Elem>;
@group(0) @binding(3) var<storage, read> b: array<Elem>;

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
        y[i] = store(combine(place(i)));
    }
}

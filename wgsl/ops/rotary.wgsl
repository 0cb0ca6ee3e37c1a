// rotary: (y[lo], y[hi]) = rotation of (x[lo], x[hi]) by the angle of row t and pair i
// One invocation for each pair; PER pairs in turn.
//
// use elem                                  Elem, load, store
// use lib/index                             flat_group

struct Params {
    count: u32,                              // pairs of the tensor
    half: u32,                               // pairs of a head
    heads: u32,
    time: u32,
    step: u32,                               // from the first of a pair to the first of the next
    gap: u32,                                // from the first of a pair to its second
}

override WG: u32 = 64;
override PER: u32 = 4;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(3) var<storage, read> cosines: array<f32>;
@group(0) @binding(4) var<storage, read> sines: array<f32>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let start = flat_group(group, groups) * (WG * PER) + lane;
    for (var k = 0u; k < PER; k++) {
        let p = start + k * WG;
        if p >= params.count { return; }
        let row = p / params.half;
        let i = p - row * params.half;
        let angle = row / params.heads % params.time * params.half + i;
        let lo = row * 2u * params.half + i * params.step;
        let hi = lo + params.gap;
        let a = load(x[lo]);
        let b = load(x[hi]);
        let c = cosines[angle];
        let s = sines[angle];
        y[lo] = store(a * c - b * s);
        y[hi] = store(a * s + b * c);
    }
}

// group_norm_stats: mean and sum of squared differences of each chunk of each group
// One workgroup per chunk; two passes: mean, differences from it. The mean is kept in two parts, a rounded one and the rest.
//
// use elem                                  Elem, load
// use row                                   keep, again
// use lib/reduce_rows                       row_sum, row_sums
// use lib/index                             flat_group

struct Params {
    length: u32,                             // elements of a group
    chunks: u32,                             // per group
    count: u32,                              // of all groups
}

override WG: u32 = 256;
override LANES: u32 = 256;                   // as WG
const PER: u32 = 16;                         // elements of an invocation, WG apart; WG * PER is a chunk

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> stats: array<f32>;   // mean, rest, sum of squares
@group(0) @binding(2) var<storage, read> x: array<Elem>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let j = flat_group(group, groups);
    if j >= params.count { return; }
    let start = (j % params.chunks) * (WG * PER);
    let base = (j / params.chunks) * params.length;
    let end = base + min(start + WG * PER, params.length);
    let n = f32(end - base - start);

    var s = 0.0;
    for (var k = 0u; k < PER; k++) {
        let i = base + start + k * WG + lane;
        if i < end {
            let v = load(x[i]);
            keep(k, v);
            s += v;
        }
    }
    let mean = row_sum(s, lane) / n;

    var first = 0.0;
    var second = 0.0;
    for (var k = 0u; k < PER; k++) {
        let i = base + start + k * WG + lane;
        if i < end {
            let d = again(k, i) - mean;
            first += d;
            second += d * d;
        }
    }
    let sums = row_sums(vec2(first, second), lane);
    let rest = sums.x / n;
    let squares = sums.y - n * rest * rest;
    if lane == 0u {
        stats[3u * j] = mean;
        stats[3u * j + 1u] = rest;
        stats[3u * j + 2u] = squares;
    }
}

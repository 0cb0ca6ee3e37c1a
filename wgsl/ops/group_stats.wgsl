// group_stats: mean, variance and share of the core of each chunk of each group of channels
// One workgroup per chunk; two passes: mean, differences from it.
//
// use elem                                  Elem, load
// use row                                   keep, again
// use lib/reduce_rows                       row_sums
// use lib/index                             flat_group

struct Params {
    length: u32,                             // elements of a group
    chunks: u32,                             // per group
    count: u32,                              // of all groups
    height: u32,                             // of a channel
    width: u32,
    units_y: u32,                            // height and width in units of the core
    units_x: u32,
}

override WG: u32 = 256;
override LANES: u32 = 256;                   // as WG
const PER: u32 = 16;                         // elements of an invocation, WG apart; WG * PER is a chunk

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> stats: array<f32>;   // mean, variance, share
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(3) var<storage, read> core: array<u32>;          // rows from, to, columns from, to

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
    let top = core[0] * params.height / params.units_y;
    let bottom = core[1] * params.height / params.units_y;
    let left = core[2] * params.width / params.units_x;
    let right = core[3] * params.width / params.units_x;

    var inside = 0u;                         // one bit for each element
    var s = 0.0;
    for (var k = 0u; k < PER; k++) {
        let i = start + k * WG + lane;
        let line = i / params.width;
        let row = line % params.height;
        let col = i - line * params.width;
        if i < params.length && row >= top && row < bottom && col >= left && col < right {
            let v = load(x[base + i]);
            keep(k, v);
            s += v;
            inside |= 1u << k;
        }
    }
    let sum = row_sums(vec2(s, f32(countOneBits(inside))), lane);
    let n = max(sum.y, 1.0);
    let mean = sum.x / n;

    var first = 0.0;
    var second = 0.0;
    for (var k = 0u; k < PER; k++) {
        if (inside & (1u << k)) != 0u {
            let d = again(k, base + start + k * WG + lane) - mean;
            first += d;
            second += d * d;
        }
    }
    let sums = row_sums(vec2(first, second), lane) / n;
    if lane == 0u {
        stats[3u * j] = mean + sums.x;
        // Not through max(), which may turn a NaN into a number.
        stats[3u * j + 1u] = sums.y - sums.x * sums.x;
        stats[3u * j + 2u] = sum.y / f32(WG * PER);
    }
}

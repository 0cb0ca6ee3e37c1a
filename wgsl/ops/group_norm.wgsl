// group_norm: y[n, c, p] = act((x[n, c, p] - mean) / sqrt(variance + eps) * gain[c] + offset[c]), over each group of channels
// One workgroup per chunk, which first merges the statistics of all chunks of its group.
//
// use elem                                  Elem, load, store
// use gain                                  gain
// use offset                                offset
// use act                                   act
// use lib/reduce_rows                       row_sum, row_sums
// use lib/index                             flat_group

struct Params {
    length: u32,                             // elements of a group
    chunks: u32,                             // per group
    count: u32,                              // of all groups
    groups: u32,                             // per picture
    channels: u32,                           // per group
    plane: u32,                              // elements of a channel
    eps: f32,
}

override WG: u32 = 256;
override LANES: u32 = 256;                   // as WG
override WHOLE: u32 = 0;                     // 1 if every chunk lies within one channel
const PER: u32 = 16;                         // elements of an invocation, WG apart; WG * PER is a chunk

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(5) var<storage, read> stats: array<f32>;         // mean, rest, sum of squares of each chunk

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let k = flat_group(group, groups);
    if k >= params.count { return; }
    let g = k / params.chunks;
    let n = f32(params.length);

    var s = 0.0;
    for (var j = lane; j < params.chunks; j += WG) { s += size(j) * stats[3u * (g * params.chunks + j)]; }
    let mean = row_sum(s, lane) / n;

    var first = 0.0;
    var second = 0.0;
    for (var j = lane; j < params.chunks; j += WG) {
        let at = 3u * (g * params.chunks + j);
        let d = stats[at] - mean + stats[at + 1u];
        first += size(j) * d;
        second += size(j) * d * d + stats[at + 2u];
    }
    let sums = row_sums(vec2(first, second), lane) / n;
    let rest = sums.x;
    let variance = max(sums.y - rest * rest, 0.0);
    let scale = 1.0 / sqrt(variance + params.eps);

    let start = (k % params.chunks) * (WG * PER);
    let channel = (g % params.groups) * params.channels;
    var factor = scale * gain(channel + start / params.plane);
    var term = offset(channel + start / params.plane);
    for (var j = 0u; j < PER; j++) {
        let i = start + j * WG + lane;
        if i < params.length {
            if WHOLE == 0u {
                factor = scale * gain(channel + i / params.plane);
                term = offset(channel + i / params.plane);
            }
            let at = g * params.length + i;
            y[at] = store(act((load(x[at]) - mean - rest) * factor + term));
        }
    }
}

// Elements of chunk j.
fn size(j: u32) -> f32 { return f32(min(WG * PER, params.length - j * (WG * PER))); }

// group_norm_given: y[n, c, p] = act((x[n, c, p] - mean) / sqrt(variance + eps) * gain[c] + offset[c]), mean and variance given
// One workgroup per chunk of a group.
//
// use elem                                  Elem, load, store
// use gain                                  gain
// use offset                                offset
// use act                                   act
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
override WHOLE: u32 = 0;                     // 1 if every chunk lies within one channel
const PER: u32 = 16;                         // elements of an invocation, WG apart; WG * PER is a chunk

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(5) var<storage, read> stats: array<f32>;         // mean, rest, variance of each group

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let k = flat_group(group, groups);
    if k >= params.count { return; }
    let g = k / params.chunks;
    let mean = stats[3u * g];
    let rest = stats[3u * g + 1u];
    let scale = 1.0 / sqrt(stats[3u * g + 2u] + params.eps);

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

// channel_rms_norm: y[n, c, p] = act(x[n, c, p] / max(|x[n, :, p]|, EPS) * sqrt(C) * gain[c])
// WG / SHARES neighbouring pixels a workgroup, SHARES invocations for each pixel; two passes: sum of squares, write.
//
// use elem                                  Elem, load, store
// use gain                                  gain
// use act                                   act
// use lib/index                             flat_group

struct Params {
    pixels: u32,                             // of all pictures
    plane: u32,                              // pixels of a picture
    channels: u32,
}

override WG: u32 = 128;
override SHARES: u32 = 4;                    // divides WG
const EPS = 1e-12;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<workgroup> parts: array<f32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let width = WG / SHARES;
    let share = lane / width;
    let pixel = flat_group(group, groups) * width + lane % width;
    let first = pixel / params.plane * (params.channels * params.plane) + pixel % params.plane;
    // Pixels past the end take part in the barrier with no channels.
    let channels = select(0u, params.channels, pixel < params.pixels);

    var s = 0.0;
    for (var c = share; c < channels; c += SHARES) {
        let v = load(x[first + c * params.plane]);
        s += v * v;
    }
    parts[lane] = s;
    workgroupBarrier();
    s = 0.0;
    for (var i = 0u; i < SHARES; i++) { s += parts[i * width + lane % width]; }

    let norm = sqrt(s);
    // Not max, which would turn a NaN into a number.
    let scale = sqrt(f32(params.channels)) / select(norm, EPS, norm < EPS);
    for (var c = share; c < channels; c += SHARES) {
        let at = first + c * params.plane;
        y[at] = store(act(load(x[at]) * scale * gain(c)));
    }
}

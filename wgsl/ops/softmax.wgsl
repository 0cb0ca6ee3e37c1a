// softmax: y[r, :] = softmax(scale * x[r, :])
// One workgroup per row; three passes: maximum, sum of exponentials, write.
//
// use elem                                  Elem, load, store
// use lib/reduce                            workgroup_max, workgroup_sum
// use lib/index                             flat_group

struct Params {
    rows: u32,
    cols: u32,
    scale: f32,
}

override WG: u32 = 128;                      // invocations per row

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = flat_group(group, groups);
    if r >= params.rows { return; }
    let row = r * params.cols;

    var m = MIN_F32;
    for (var c = lane; c < params.cols; c += WG) {
        m = max(m, params.scale * load(x[row + c]));
    }
    m = workgroup_max(m, lane);

    var s = 0.0;
    for (var c = lane; c < params.cols; c += WG) {
        s += exp(params.scale * load(x[row + c]) - m);
    }
    s = workgroup_sum(s, lane);

    for (var c = lane; c < params.cols; c += WG) {
        y[row + c] = store(exp(params.scale * load(x[row + c]) - m) / s);
    }
}

// rms_norm: y[r, c] = x[r, c] / sqrt(mean(x[r, :]^2) + eps) * gain[c]
// LANES invocations for each row, WG / LANES rows in a workgroup; two passes: sum of squares, write.
//
// use elem                                  Elem, load, store
// use row                                   keep, again
// use gain                                  gain
// use lib/reduce_rows                       row_sum
// use lib/index                             flat_group

struct Params {
    rows: u32,
    cols: u32,
    eps: f32,
}

override WG: u32 = 64;
override LANES: u32 = 16;
const PER: u32 = 8;                          // columns of an invocation, LANES apart

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = flat_group(group, groups) * (WG / LANES) + lane / LANES;
    let row = r * params.cols;
    let first = lane % LANES;
    // Rows past the end take part in the barriers with no columns.
    let cols = select(0u, params.cols, r < params.rows);

    var s = 0.0;
    for (var k = 0u; k < PER; k++) {
        let c = first + k * LANES;
        if c < cols {
            let v = load(x[row + c]);
            keep(k, v);
            s += v * v;
        }
    }
    s = row_sum(s, lane);

    let scale = 1.0 / sqrt(s / f32(params.cols) + params.eps);
    for (var k = 0u; k < PER; k++) {
        let c = first + k * LANES;
        if c < cols { y[row + c] = store(again(k, row + c) * scale * gain(c)); }
    }
}

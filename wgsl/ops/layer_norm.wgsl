// layer_norm: y[r, c] = (x[r, c] - mean) / sqrt(variance + eps) * gain[c] + offset[c], over x[r, :]
// LANES invocations for each row, WG / LANES rows in a workgroup; three passes: mean, variance, write.
// The second pass also sums the differences, whose mean is what rounding took from the first.
//
// use elem                                  Elem, load, store
// use row                                   keep, again
// use gain                                  gain
// use offset                                offset
// use lib/reduce_rows                       row_sum, row_sums
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
    let begin = lane % LANES;
    // Rows past the end take part in the barriers with no columns.
    let cols = select(0u, params.cols, r < params.rows);
    let n = f32(params.cols);

    var s = 0.0;
    for (var k = 0u; k < PER; k++) {
        let c = begin + k * LANES;
        let v = select(0.0, load(x[row + c]), c < cols);
        keep(k, v);
        s += v;
    }
    let mean = row_sum(s, lane) / n;

    var first = 0.0;
    var second = 0.0;
    for (var k = 0u; k < PER; k++) {
        let c = begin + k * LANES;
        let d = select(0.0, again(k, row + c) - mean, c < cols);
        first += d;
        second += d * d;
    }
    let sums = row_sums(vec2(first, second), lane) / n;
    let low = sums.x;
    let variance = max(sums.y - low * low, 0.0);

    let scale = 1.0 / sqrt(variance + params.eps);
    for (var k = 0u; k < PER; k++) {
        let c = begin + k * LANES;
        if c < cols { y[row + c] = store((again(k, row + c) - mean - low) * scale * gain(c) + offset(c)); }
    }
}

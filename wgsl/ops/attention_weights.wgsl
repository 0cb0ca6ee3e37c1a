// attention on software adapters, 2 of 3: s[r, j] = exp(s[r, j] - max), and in the last element of a row 1 / sum_j s[r, j]
// One subgroup per row, in place.
//
// use lib/index                             flat_group
enable subgroups;

struct Params {
    rows: u32,
    keys: u32,
}

const MIN_F32: f32 = -3.4028234e38;
const MASKED: f32 = -1e38;                   // scores from here down have no weight

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> s: array<f32>;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let r = flat_group(group, groups);
    if r >= params.rows { return; }
    let row = r * (params.keys + 1);
    var high = MIN_F32;
    for (var j = lane; j < params.keys; j += 8) { high = max(high, s[row + j]); }
    high = subgroupMax(high);

    var sum = 0.0;
    for (var j = lane; j < params.keys; j += 8) {
        let score = s[row + j];
        let weight = select(exp(score - high), 0.0, score <= MASKED);
        sum += weight;
        s[row + j] = weight;
    }
    sum = subgroupAdd(sum);
    // A query that sees no key gets zeros.
    if lane == 0 { s[row + params.keys] = select(1.0 / sum, 0.0, sum == 0.0); }
}

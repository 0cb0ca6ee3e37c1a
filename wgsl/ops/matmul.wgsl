// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k])
// One workgroup of 16 x LY invocations per tile of ROWS x COLS outputs. Slices of BK columns of x and w go through workgroup memory
// as vectors of four rows each; an invocation multiplies TM by TN of these vectors.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group

struct Params {
    m: u32,
    n: u32,
    k: u32,
}

const LY: u32 = 16;                          // invocations down a tile
const TM: u32 = 1;                           // vectors of rows per invocation
const TN: u32 = 1;                           // vectors of columns per invocation
const BK: u32 = 16;                          // columns of x and w in a slice
const ROWS: u32 = 4 * LY * TM;
const COLS: u32 = 64 * TN;
// One vector more than a tile has, so that a slice is stored without bank conflicts.
const XS: u32 = LY * TM + 1;
const WS: u32 = 16 * TN + 1;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<workgroup> xs: array<vec4<f32>, BK * XS>;
var<workgroup> ws: array<vec4<f32>, BK * WS>;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    // Row tiles come first, so that groups that run together share weights.
    let tiles_m = (params.m + ROWS - 1) / ROWS;
    let tiles_n = (params.n + COLS - 1) / COLS;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n { return; }
    let i0 = tile % tiles_m * ROWS;
    let j0 = tile / tiles_m * COLS;

    var sums: array<vec4<f32>, 4 * TM * TN>;
    for (var k0 = 0u; k0 < params.k; k0 += BK) {
        for (var e = lane; e < LY * TM * BK; e += 16 * LY) {
            let k = k0 + e % BK;
            let i = i0 + e / BK * 4;
            xs[e % BK * XS + e / BK] = vec4<f32>(x_at(i, k), x_at(i + 1, k), x_at(i + 2, k), x_at(i + 3, k));
        }
        for (var e = lane; e < 16 * TN * BK; e += 16 * LY) {
            let k = k0 + e % BK;
            let j = j0 + e / BK * 4;
            ws[e % BK * WS + e / BK] = vec4<f32>(w_at(j, k), w_at(j + 1, k), w_at(j + 2, k), w_at(j + 3, k));
        }
        workgroupBarrier();
        for (var k = 0u; k < BK; k++) {
            var b: array<vec4<f32>, TN>;
            for (var j = 0u; j < TN; j++) { b[j] = ws[k * WS + local.x + j * 16]; }
            for (var i = 0u; i < TM; i++) {
                let a = xs[k * XS + local.y + i * LY];
                for (var j = 0u; j < TN; j++) {
                    let s = (i * TN + j) * 4;
                    sums[s] = fma(vec4<f32>(a.x), b[j], sums[s]);
                    sums[s + 1] = fma(vec4<f32>(a.y), b[j], sums[s + 1]);
                    sums[s + 2] = fma(vec4<f32>(a.z), b[j], sums[s + 2]);
                    sums[s + 3] = fma(vec4<f32>(a.w), b[j], sums[s + 3]);
                }
            }
        }
        workgroupBarrier();
    }

    for (var i = 0u; i < 4 * TM; i++) {
        let row = i0 + (local.y + i / 4 * LY) * 4 + i % 4;
        for (var j = 0u; j < TN; j++) {
            let col = j0 + (local.x + j * 16) * 4;
            let s = sums[(i / 4 * TN + j) * 4 + i % 4];
            put(row, col, s.x);
            put(row, col + 1, s.y);
            put(row, col + 2, s.z);
            put(row, col + 3, s.w);
        }
    }
}

fn x_at(i: u32, k: u32) -> f32 {
    if i < params.m && k < params.k { return load(x[i * params.k + k]); }
    return 0.0;
}

fn w_at(j: u32, k: u32) -> f32 {
    if j < params.n && k < params.k { return load_weight(j * params.k + k); }
    return 0.0;
}

fn put(i: u32, j: u32, sum: f32) {
    if i < params.m && j < params.n {
        let at = i * params.n + j;
        y[at] = store(epilogue(sum, at, j));
    }
}

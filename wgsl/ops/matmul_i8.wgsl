// matmul_i8: y[i, j] = epilogue(f32(sum_k x[i, k] * w[j, k]) * (row_scales[i] * col_scales[j])), sums of codes in i32
// One workgroup per 4 LY x 64 outputs; slices of BK words, of four codes each, go through workgroup memory.
//
// use elem                                  Elem, store
// use four                                  Four, four, dot4
// use lib/epilogue                          epilogue
// use lib/index                             flat_group

struct Params {
    m: u32,
    n: u32,                                  // rows of w, of which this may be a part
    k: u32,
    first: u32,                              // column of y that the part begins at
    cols: u32,                               // of y
}

const LY: u32 = 16;                          // invocations down a tile
const BK: u32 = 16;                          // words of x and w in a slice
const WHOLE: u32 = 1;                        // rows are whole words

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read> w: array<u32>;
@group(0) @binding(7) var<storage, read> col_scales: array<f32>;
@group(0) @binding(8) var<storage, read> row_scales: array<f32>;

// A row more, so that a slice is stored without bank conflicts.
var<workgroup> x_slice: array<u32, BK * (4 * LY + 1)>;
var<workgroup> w_slice: array<u32, BK * 65>;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let tiles_m = (params.m + 4 * LY - 1) / (4 * LY);
    let tiles_n = (params.n + 63) / 64;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n { return; }
    let i0 = tile % tiles_m * (4 * LY);
    let j0 = tile / tiles_m * 64;
    let lane = local.y * 16 + local.x;

    var sums: array<vec4<i32>, 4>;
    for (var k0 = 0u; k0 < params.k; k0 += 4 * BK) {
        for (var e = lane; e < 4 * LY * BK; e += 16 * LY) {
            x_slice[e % BK * (4 * LY + 1) + e / BK] = x_word(i0 + e / BK, k0 + e % BK * 4);
        }
        for (var e = lane; e < 64 * BK; e += 16 * LY) {
            w_slice[e % BK * 65 + e / BK] = w_word(j0 + e / BK, k0 + e % BK * 4);
        }
        workgroupBarrier();
        for (var k = 0u; k < BK; k++) {
            let b = k * 65 + local.x;
            let b0 = four(w_slice[b]);
            let b1 = four(w_slice[b + 16]);
            let b2 = four(w_slice[b + 32]);
            let b3 = four(w_slice[b + 48]);
            for (var i = 0u; i < 4u; i++) {
                let a = four(x_slice[k * (4 * LY + 1) + local.y + i * LY]);
                sums[i] += vec4<i32>(dot4(a, b0), dot4(a, b1), dot4(a, b2), dot4(a, b3));
            }
        }
        workgroupBarrier();
    }

    for (var i = 0u; i < 4u; i++) {
        for (var j = 0u; j < 4u; j++) { put(i0 + local.y + i * LY, j0 + local.x + j * 16, sums[i][j]); }
    }
}

// Codes k to k + 3 of a row; zeros outside the matrix.
fn x_word(i: u32, k: u32) -> u32 {
    if i >= params.m || k >= params.k { return 0u; }
    let at = i * params.k + k;
    if WHOLE == 1 { return x[at / 4]; }
    var word = 0u;
    for (var e = 0u; e < min(4u, params.k - k); e++) { word |= extractBits(x[(at + e) / 4], 8 * ((at + e) % 4), 8u) << (8 * e); }
    return word;
}

fn w_word(j: u32, k: u32) -> u32 {
    if j >= params.n || k >= params.k { return 0u; }
    let at = j * params.k + k;
    if WHOLE == 1 { return w[at / 4]; }
    var word = 0u;
    for (var e = 0u; e < min(4u, params.k - k); e++) { word |= extractBits(w[(at + e) / 4], 8 * ((at + e) % 4), 8u) << (8 * e); }
    return word;
}

fn put(i: u32, j: u32, sum: i32) {
    if i < params.m && j < params.n {
        let col = params.first + j;
        let at = i * params.cols + col;
        y[at] = store(epilogue(f32(sum) * (row_scales[i] * col_scales[col]), at, col));
    }
}

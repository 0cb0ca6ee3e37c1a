// One workgroup's tile of a matrix product, through workgroup memory: sum_k a[i, k] * b[j, k] for ROWS x COLS elements.
// Slices of BK columns of a and b are kept as vectors of four rows each; an invocation multiplies TM by TN of these vectors.
// The caller runs 16 x LY invocations and declares
//   fn a_at(i: u32, k: u32) -> f32, which gives zero outside the matrix;
//   fn b_four(j: u32, k: u32) -> vec4<f32>, the same for b at j, j + 1, j + 2 and j + 3; with ALONG_J = 1 an invocation always
//   asks for the same j, that of `four_of`;
//   fn put(i: u32, j: u32, sum: f32), which stores what lies inside the output.
const LY: u32 = 16;                          // invocations down a tile
const TM: u32 = 1;                           // vectors of rows per invocation
const TN: u32 = 1;                           // vectors of columns per invocation
const BK: u32 = 16;                          // columns of a and b in a slice
const ALONG_J: u32 = 0;                      // 1: neighbours in memory are b[j, k] and b[j + 1, k], not b[j, k + 1]
const ROWS: u32 = 4 * LY * TM;
const COLS: u32 = 64 * TN;
// One vector more than a tile has, so that a slice is stored without bank conflicts.
const AS: u32 = LY * TM + 1;
const BS: u32 = 16 * TN + 1;

var<workgroup> a_slice: array<vec4<f32>, BK * AS>;
var<workgroup> b_slice: array<vec4<f32>, BK * BS>;

// The j for which an invocation loads b in a tile that begins at j0, with ALONG_J = 1.
fn four_of(j0: u32, local: vec3<u32>) -> u32 { return j0 + (local.y * 16 + local.x) % (16 * TN) * 4; }

// The tile whose first element is (i0, j0), of matrices with `depth` columns. Wants uniform control flow.
fn multiply_tile(i0: u32, j0: u32, depth: u32, local: vec3<u32>) {
    let lane = local.y * 16 + local.x;
    var sums: array<vec4<f32>, 4 * TM * TN>;
    for (var k0 = 0u; k0 < depth; k0 += BK) {
        for (var e = lane; e < LY * TM * BK; e += 16 * LY) {
            let k = k0 + e % BK;
            let i = i0 + e / BK * 4;
            a_slice[e % BK * AS + e / BK] = vec4<f32>(a_at(i, k), a_at(i + 1, k), a_at(i + 2, k), a_at(i + 3, k));
        }
        for (var e = lane; e < 16 * TN * BK; e += 16 * LY) {
            // Neighbouring invocations read neighbouring elements.
            let across = select(e / BK, e % (16 * TN), ALONG_J == 1);
            let down = select(e % BK, e / (16 * TN), ALONG_J == 1);
            let k = k0 + down;
            let j = j0 + across * 4;
            b_slice[down * BS + across] = b_four(j, k);
        }
        workgroupBarrier();
        for (var k = 0u; k < BK; k++) {
            var b: array<vec4<f32>, TN>;
            for (var j = 0u; j < TN; j++) { b[j] = b_slice[k * BS + local.x + j * 16]; }
            for (var i = 0u; i < TM; i++) {
                let a = a_slice[k * AS + local.y + i * LY];
                for (var j = 0u; j < TN; j++) {
                    let s = (i * TN + j) * 4;
                    sums[s] = fma(a.xxxx, b[j], sums[s]);
                    sums[s + 1] = fma(a.yyyy, b[j], sums[s + 1]);
                    sums[s + 2] = fma(a.zzzz, b[j], sums[s + 2]);
                    sums[s + 3] = fma(a.wwww, b[j], sums[s + 3]);
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

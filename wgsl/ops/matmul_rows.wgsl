// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k]), for few rows of x
// One workgroup per COLS columns, M rows; invocations split k. STEP: how many weights an invocation decodes at a time, 1, 2 or 8; k
// is a multiple of it.
//
// use elem                                  Elem, load, store
// use weight                                load_weight, load_weight2, load_weight8
// use lib/epilogue                          epilogue
// use lib/index                             flat_group

struct Params {
    n: u32,
    k: u32,
}

const M: u32 = 1;                                 // rows
const COLS: u32 = 4;                              // columns per workgroup
const STEP: u32 = 1;
override WG: u32 = 64;                       // invocations

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<workgroup> partial: array<f32, M * COLS * (WG + 1)>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let j0 = flat_group(group, groups) * COLS;
    if j0 >= params.n { return; }

    var sums: array<f32, M * COLS>;
    if STEP == 8 {
        for (var k = 8 * lane; k < params.k; k += 8 * WG) {
            var a: array<vec4<f32>, 2 * M>;
            for (var i = 0u; i < M; i++) {
                let at = i * params.k + k;
                a[2 * i] = x_four(at);
                a[2 * i + 1] = x_four(at + 4);
            }
            for (var j = 0u; j < COLS; j++) {
                // Columns past the last repeat it: cheaper than a branch, and never stored.
                let b = load_weight8(min(j0 + j, params.n - 1) * params.k + k);
                for (var i = 0u; i < M; i++) { sums[i * COLS + j] += dot(a[2 * i], b[0]) + dot(a[2 * i + 1], b[1]); }
            }
        }
    } else if STEP == 2 {
        for (var k = 2 * lane; k < params.k; k += 2 * WG) {
            var a: array<vec2<f32>, M>;
            for (var i = 0u; i < M; i++) {
                let at = i * params.k + k;
                a[i] = vec2<f32>(load(x[at]), load(x[at + 1]));
            }
            for (var j = 0u; j < COLS; j++) {
                let b = load_weight2(min(j0 + j, params.n - 1) * params.k + k);
                for (var i = 0u; i < M; i++) { sums[i * COLS + j] += a[i].x * b.x + a[i].y * b.y; }
            }
        }
    } else {
        for (var k = lane; k < params.k; k += WG) {
            var a: array<f32, M>;
            for (var i = 0u; i < M; i++) { a[i] = load(x[i * params.k + k]); }
            for (var j = 0u; j < COLS; j++) {
                let b = load_weight(min(j0 + j, params.n - 1) * params.k + k);
                for (var i = 0u; i < M; i++) { sums[i * COLS + j] += a[i] * b; }
            }
        }
    }
    for (var s = 0u; s < M * COLS; s++) { partial[s * (WG + 1) + lane] = sums[s]; }
    workgroupBarrier();

    for (var s = lane; s < M * COLS; s += WG) {
        let col = j0 + s % COLS;
        var sum = 0.0;
        for (var p = 0u; p < WG; p++) { sum += partial[s * (WG + 1) + p]; }
        if col < params.n {
            let at = s / COLS * params.n + col;
            y[at] = store(epilogue(sum, at, col));
        }
    }
}

fn x_four(at: u32) -> vec4<f32> { return vec4<f32>(load(x[at]), load(x[at + 1]), load(x[at + 2]), load(x[at + 3])); }

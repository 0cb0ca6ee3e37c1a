// batched_matmul: y[p, i, j] = scale * sum_k a[p, i, k] * b[p, k, j], or b[p, j, k] with TRANSPOSED
// One workgroup per tile of outputs of one product.
//
// use elem                                  Elem, load, store
// use lib/index                             flat_group
// use lib/tiles                             ROWS, COLS, LY, multiply_tile

struct Params {
    batches: u32,
    m: u32,
    n: u32,
    k: u32,
    scale: f32,
}

const TRANSPOSED: u32 = 0;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> a: array<Elem>;
@group(0) @binding(3) var<storage, read> b: array<Elem>;

var<private> batch: u32;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let tiles_m = (params.m + ROWS - 1) / ROWS;
    let tiles_n = (params.n + COLS - 1) / COLS;
    let tiles = tiles_m * tiles_n;
    let flat = flat_group(group, groups);
    if flat >= tiles * params.batches { return; }
    batch = flat / tiles;
    let tile = flat % tiles;
    multiply_tile(tile % tiles_m * ROWS, tile / tiles_m * COLS, params.k, local);
}

fn a_at(i: u32, k: u32) -> f32 {
    if i < params.m && k < params.k { return load(a[(batch * params.m + i) * params.k + k]); }
    return 0.0;
}

fn b_four(j: u32, k: u32) -> vec4<f32> { return vec4<f32>(b_at(j, k), b_at(j + 1, k), b_at(j + 2, k), b_at(j + 3, k)); }

fn b_at(j: u32, k: u32) -> f32 {
    if j >= params.n || k >= params.k { return 0.0; }
    if TRANSPOSED == 1 { return load(b[(batch * params.n + j) * params.k + k]); }
    return load(b[(batch * params.k + k) * params.n + j]);
}

fn put(i: u32, j: u32, sum: f32) {
    if i < params.m && j < params.n {
        y[(batch * params.m + i) * params.n + j] = store(params.scale * sum);
    }
}

// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k])
// One workgroup per tile of outputs.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/tiles                             ROWS, COLS, LY, multiply_tile

struct Params {
    m: u32,
    n: u32,                                  // rows of w, of which this may be a part
    k: u32,
    first: u32,                              // column of y that the part begins at
    cols: u32,                               // of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    // Row tiles come first, so that groups that run together share weights.
    let tiles_m = (params.m + ROWS - 1) / ROWS;
    let tiles_n = (params.n + COLS - 1) / COLS;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n { return; }
    multiply_tile(tile % tiles_m * ROWS, tile / tiles_m * COLS, params.k, local);
}

fn a_at(i: u32, k: u32) -> f32 {
    if i < params.m && k < params.k { return load(x[i * params.k + k]); }
    return 0.0;
}

fn b_four(j: u32, k: u32) -> vec4<f32> { return vec4<f32>(b_at(j, k), b_at(j + 1, k), b_at(j + 2, k), b_at(j + 3, k)); }

fn b_at(j: u32, k: u32) -> f32 {
    if j < params.n && k < params.k { return load_weight(j * params.k + k); }
    return 0.0;
}

fn put(i: u32, j: u32, sum: f32) {
    if i < params.m && j < params.n {
        let col = params.first + j;
        let at = i * params.cols + col;
        y[at] = store(epilogue(sum, at, col));
    }
}

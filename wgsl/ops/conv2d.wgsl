// conv2d: y[n, o, r, c] = epilogue(sum_i,u,v x[n, i, r SY + u - TOP, c SX + v - LEFT] * w[o, i, u, v])
// A matrix product of filters and patches: rows are output channels, columns are pixels, and no patch is ever written out.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/tiles                             ROWS, COLS, LY, multiply_tile

struct Params {
    pictures: u32,
    channels: u32,                           // of x
    height: u32,
    width: u32,
    filters: u32,                            // channels of y
    rows: u32,
    cols: u32,
}

const KH: u32 = 3;
const KW: u32 = 3;
const SY: u32 = 1;
const SX: u32 = 1;
const TOP: u32 = 1;
const LEFT: u32 = 1;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<private> picture: u32;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let tiles_m = (params.filters + ROWS - 1) / ROWS;
    let tiles_n = (params.rows * params.cols + COLS - 1) / COLS;
    let tiles = tiles_m * tiles_n;
    let flat = flat_group(group, groups);
    if flat >= tiles * params.pictures { return; }
    picture = flat / tiles;
    let tile = flat % tiles;
    multiply_tile(tile % tiles_m * ROWS, tile / tiles_m * COLS, params.channels * KH * KW, local);
}

fn a_at(i: u32, k: u32) -> f32 {
    let depth = params.channels * KH * KW;
    if i < params.filters && k < depth { return load_weight(i * depth + k); }
    return 0.0;
}

fn b_at(j: u32, k: u32) -> f32 {
    let channel = k / (KH * KW);
    let row = j / params.cols * SY + k / KW % KH;
    let col = j % params.cols * SX + k % KW;
    // Below the first row or column the difference wraps around, which is beyond the last as well.
    let inside = row - TOP < params.height && col - LEFT < params.width;
    if inside && channel < params.channels && j < params.rows * params.cols {
        return load(x[((picture * params.channels + channel) * params.height + row - TOP) * params.width + col - LEFT]);
    }
    return 0.0;
}

fn put(i: u32, j: u32, sum: f32) {
    let plane = params.rows * params.cols;
    if i < params.filters && j < plane {
        let at = (picture * params.filters + i) * plane + j;
        y[at] = store(epilogue(sum, at, i));
    }
}

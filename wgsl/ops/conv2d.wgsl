// conv2d: y[b, o, p] = epilogue(sum_{c, i, j} w[o, c, i, j] * x[b, c, row(p) + i, col(p) + j]), zero outside x
// A product of the filters with the patch of each pixel, in tiles. Patches are gathered while a tile is loaded; where an
// invocation's four pixels begin in x is worked out once.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/tiles                             ROWS, COLS, LY, multiply_tile, four_of

struct Params {
    batches: u32,
    channels: u32,                           // of y
    k: u32,                                  // elements of a filter
    height: u32,                             // of x
    width: u32,
    pixels: u32,                             // of a picture of y
    y_width: u32,
    stride_y: u32,
    stride_x: u32,
    top: u32,                                // padding
    left: u32,
}

const KH: u32 = 3;
const KW: u32 = 3;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

var<private> batch: u32;
// First elements of the patches of the invocation's pixels; negative in the padding.
var<private> rows: vec4<i32>;
var<private> cols: vec4<i32>;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    // Tiles of channels come first, so that groups that run together share pixels.
    let tiles_m = (params.channels + ROWS - 1) / ROWS;
    let tiles = tiles_m * ((params.pixels + COLS - 1) / COLS);
    let flat = flat_group(group, groups);
    if flat >= tiles * params.batches { return; }
    batch = flat / tiles;
    let j0 = flat % tiles / tiles_m * COLS;
    let at = four_of(j0, local) + vec4<u32>(0, 1, 2, 3);
    rows = vec4<i32>(at / params.y_width * params.stride_y) - i32(params.top);
    cols = vec4<i32>(at % params.y_width * params.stride_x) - i32(params.left);
    multiply_tile(flat % tiles % tiles_m * ROWS, j0, params.k, local);
}

fn a_at(i: u32, k: u32) -> f32 {
    if i < params.channels && k < params.k { return load_weight(i * params.k + k); }
    return 0.0;
}

// Pixels past the last read beyond the picture or another pixel's patch; their sums are not stored.
fn b_four(j: u32, k: u32) -> vec4<f32> {
    let c = k / (KH * KW);
    let row = vec4<u32>(rows + i32(k % (KH * KW) / KW));
    let col = vec4<u32>(cols + i32(k % KW));
    // A negative row or column is a large unsigned one.
    let inside = (row < vec4<u32>(params.height)) & (col < vec4<u32>(params.width)) & vec4<bool>(k < params.k);
    let at = ((batch * (params.k / (KH * KW)) + c) * params.height + row) * params.width + col;
    var v = vec4<f32>();
    if inside.x { v.x = load(x[at.x]); }
    if inside.y { v.y = load(x[at.y]); }
    if inside.z { v.z = load(x[at.z]); }
    if inside.w { v.w = load(x[at.w]); }
    return v;
}

fn put(i: u32, j: u32, sum: f32) {
    if i < params.channels && j < params.pixels {
        let at = (batch * params.channels + i) * params.pixels + j;
        y[at] = store(epilogue(sum, at, i));
    }
}

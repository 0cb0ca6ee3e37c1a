// conv2d: y[n, o, r, c] = epilogue(sum_i,u,v x[n, i, r SY + u - TOP, c SX + v - LEFT] * w[o, i, u, v])
// A matrix product of filters and patches: rows are output channels, columns are pixels. Patches are gathered while a tile is
// loaded; where those of an invocation's four pixels begin is worked out once.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/tiles                             ROWS, COLS, LY, multiply_tile, four_of

struct Params {
    pictures: u32,
    channels: u32,                           // of x
    height: u32,
    width: u32,
    filters: u32,                            // of w, of which this may be a part
    rows: u32,
    cols: u32,
    first: u32,                              // channel of y that the part begins at
    all_filters: u32,                        // channels of y
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
// Where the patches of the invocation's pixels begin; above or left of the picture it wraps around.
var<private> first_row: vec4<u32>;
var<private> first_col: vec4<u32>;

@compute @workgroup_size(16, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    // Row tiles come first, so that groups that run together share pixels.
    let tiles_m = (params.filters + ROWS - 1) / ROWS;
    let tiles_n = (params.rows * params.cols + COLS - 1) / COLS;
    let flat = flat_group(group, groups);
    if flat >= tiles_m * tiles_n * params.pictures { return; }
    picture = flat / (tiles_m * tiles_n);
    let tile = flat % (tiles_m * tiles_n);
    let j0 = tile / tiles_m * COLS;
    let pixels = four_of(j0, local) + vec4<u32>(0, 1, 2, 3);
    first_row = pixels / params.cols * SY - TOP;
    first_col = pixels % params.cols * SX - LEFT;
    multiply_tile(tile % tiles_m * ROWS, j0, params.channels * KH * KW, local);
}

fn a_at(i: u32, k: u32) -> f32 {
    let depth = params.channels * KH * KW;
    if i < params.filters && k < depth { return load_weight(i * depth + k); }
    return 0.0;
}

// Sums of pixels past the last are not stored, so it does not matter what these read.
fn b_four(j: u32, k: u32) -> vec4<f32> {
    let channel = k / (KH * KW);
    let rows = first_row + k / KW % KH;
    let cols = first_col + k % KW;
    let inside = (rows < vec4<u32>(params.height)) & (cols < vec4<u32>(params.width)) & vec4<bool>(channel < params.channels);
    let at = ((picture * params.channels + channel) * params.height + rows) * params.width + cols;
    var v = vec4<f32>();
    if inside.x { v.x = load(x[at.x]); }
    if inside.y { v.y = load(x[at.y]); }
    if inside.z { v.z = load(x[at.z]); }
    if inside.w { v.w = load(x[at.w]); }
    return v;
}

fn put(i: u32, j: u32, sum: f32) {
    let plane = params.rows * params.cols;
    if i < params.filters && j < plane {
        let o = params.first + i;
        let at = (picture * params.all_filters + o) * plane + j;
        y[at] = store(epilogue(sum, at, o));
    }
}

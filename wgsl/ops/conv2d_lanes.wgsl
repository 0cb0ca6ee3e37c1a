// conv2d: y[n, o, r, c] = epilogue(sum_i,u,v x[n, i, r SY + u - TOP, c SX + v - LEFT] * w[o, i, u, v]), for software adapters
// A matrix product of filters and patches, as in conv2d; one subgroup per 16 filters and 32 pixels.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/lanes                             multiply_lanes

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

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tiles_m = (params.filters + 15) / 16;
    let tiles_n = (params.rows * params.cols + 31) / 32;
    let tiles = tiles_m * tiles_n;
    let flat = flat_group(group, groups);
    if flat >= tiles * params.pictures { return; }
    picture = flat / tiles;
    let tile = flat % tiles;
    multiply_lanes(tile % tiles_m * 16, tile / tiles_m * 32 + lane, params.channels * KH * KW, lane);
}

// Filters past the last repeat it.
fn a_rows(i: u32, k: u32) -> vec4<f32> {
    let filters = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.filters - 1));
    let at = filters * (params.channels * KH * KW) + k;
    return vec4<f32>(load_weight(at.x), load_weight(at.y), load_weight(at.z), load_weight(at.w));
}

fn b_columns(j: u32, k: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(b_column(j, k), b_column(j, k + 1));
}

fn b_column(j: u32, k: u32) -> vec4<f32> {
    let pixels = vec4<u32>(j, j + 8, j + 16, j + 24);
    // Above the first row and left of the first column the difference wraps around, which is beyond the last as well.
    let rows = pixels / params.cols * SY + k / KW % KH - TOP;
    let cols = pixels % params.cols * SX + k % KW - LEFT;
    let inside = (rows < vec4<u32>(params.height)) & (cols < vec4<u32>(params.width));
    let channel = picture * params.channels + k / (KH * KW);
    // Outside the picture the first element is loaded, and not used: cheaper than a branch.
    let at = select(vec4<u32>(), (channel * params.height + rows) * params.width + cols, inside);
    let values = vec4<f32>(load(x[at.x]), load(x[at.y]), load(x[at.z]), load(x[at.w]));
    return select(vec4<f32>(), values, inside);
}

fn put(i: u32, j: u32, sums: vec4<f32>) {
    if i < params.filters {
        put_one(i, j, sums.x);
        put_one(i, j + 8, sums.y);
        put_one(i, j + 16, sums.z);
        put_one(i, j + 24, sums.w);
    }
}

fn put_one(i: u32, j: u32, sum: f32) {
    let plane = params.rows * params.cols;
    if j < plane {
        let at = (picture * params.filters + i) * plane + j;
        y[at] = store(epilogue(sum, at, i));
    }
}

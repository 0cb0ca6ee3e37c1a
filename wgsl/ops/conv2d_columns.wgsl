// conv2d: y[n, o, r, c] = epilogue(sum_i,u,v x[n, i, r + u - TOP, c SX + v - LEFT] * w[o, i, u, v]), for software adapters
// There a storage load is a loop over the lanes, so what counts is arithmetic per load. A subgroup makes up to 16 channels of
// 8 x 8 pixels: a lane holds a column of eight, loads the weights of two channels and gets the others from its neighbours. A step
// down the filter loads one row, not eight, since rows are next to each other: SY is 1.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/columns                           EIGHTS, Sums, add, put_all

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

// Four rows of a picture: where they begin, and which lie in it.
struct Rows {
    at: vec4<u32>,
    inside: vec4<bool>,
}

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tiles_o = (params.filters + 8 * EIGHTS - 1) / (8 * EIGHTS);
    let tiles_c = (params.cols + 7) / 8;
    let tiles_r = (params.rows + 7) / 8;
    let tile = flat_group(group, groups);
    if tile >= tiles_o * tiles_c * tiles_r * params.pictures { return; }
    let o = tile % tiles_o * (8 * EIGHTS);
    let c = tile / tiles_o % tiles_c * 8 + lane;
    let r = tile / (tiles_o * tiles_c) % tiles_r * 8;
    let picture = tile / (tiles_o * tiles_c * tiles_r);

    // Filters past the last repeat it, and are not stored.
    let filters = min(vec2<u32>(o + lane, o + 8 + lane), vec2<u32>(params.filters - 1)) * (params.channels * KH * KW);
    let upper = rows(r);
    let lower = rows(r + 4);
    let below = rows(r + 8);
    var s: Sums;
    for (var i = 0u; i < params.channels; i++) {
        let plane = (picture * params.channels + i) * params.height * params.width;
        for (var v = 0u; v < KW; v++) {
            let col = c * SX + v - LEFT;
            let at = filters + i * (KH * KW) + v;
            var up = pixels(plane, upper, col);
            var low = pixels(plane, lower, col);
            add(&s, load_weight(at.x), second(at.y), up, low);
            if KH > 1 {
                up = vec4<f32>(up.yzw, low.x);
                low = vec4<f32>(low.yzw, pixel(plane, below.at.x, below.inside.x, col));
                add(&s, load_weight(at.x + KW), second(at.y + KW), up, low);
            }
            if KH > 2 {
                up = vec4<f32>(up.yzw, low.x);
                low = vec4<f32>(low.yzw, pixel(plane, below.at.y, below.inside.y, col));
                add(&s, load_weight(at.x + 2 * KW), second(at.y + 2 * KW), up, low);
            }
            for (var u = 3u; u < KH; u++) {
                let row = rows(r + 7 + u);
                up = vec4<f32>(up.yzw, low.x);
                low = vec4<f32>(low.yzw, pixel(plane, row.at.x, row.inside.x, col));
                add(&s, load_weight(at.x + u * KW), second(at.y + u * KW), up, low);
            }
        }
    }

    if c >= params.cols { return; }
    put_all(&s, ((picture * params.filters + o) * params.rows + r) * params.cols + c, o, r);
}

// A weight for the second eight.
fn second(at: u32) -> f32 {
    if EIGHTS == 1 { return 0.0; }
    return load_weight(at);
}

// Four rows below `first` of the padded picture. One above the picture wraps around, which is below it as well.
fn rows(first: u32) -> Rows {
    let row = first + vec4<u32>(0, 1, 2, 3) - TOP;
    let inside = row < vec4<u32>(params.height);
    return Rows(select(vec4<u32>(), row * params.width, inside), inside);
}

fn pixels(plane: u32, rows: Rows, col: u32) -> vec4<f32> {
    return vec4<f32>(
        pixel(plane, rows.at.x, rows.inside.x, col),
        pixel(plane, rows.at.y, rows.inside.y, col),
        pixel(plane, rows.at.z, rows.inside.z, col),
        pixel(plane, rows.at.w, rows.inside.w, col),
    );
}

fn pixel(plane: u32, row: u32, inside: bool, col: u32) -> f32 {
    return select(0.0, load(x[plane + row + min(col, params.width - 1)]), inside && col < params.width);
}

fn put(at: u32, o: u32, n: u32, r: u32, up: vec4<f32>, low: vec4<f32>) {
    if o + n < params.filters {
        let i = at + n * params.rows * params.cols;
        put_one(i, o + n, r, up.x);
        put_one(i + params.cols, o + n, r + 1, up.y);
        put_one(i + 2 * params.cols, o + n, r + 2, up.z);
        put_one(i + 3 * params.cols, o + n, r + 3, up.w);
        put_one(i + 4 * params.cols, o + n, r + 4, low.x);
        put_one(i + 5 * params.cols, o + n, r + 5, low.y);
        put_one(i + 6 * params.cols, o + n, r + 6, low.z);
        put_one(i + 7 * params.cols, o + n, r + 7, low.w);
    }
}

fn put_one(at: u32, o: u32, r: u32, sum: f32) {
    if r < params.rows { y[at] = store(epilogue(sum, at, o)); }
}

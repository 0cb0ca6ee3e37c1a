// conv2d: y[b, o, p] = epilogue(sum_{c, i, j} w[o, c, i, j] * x[b, c, row(p) + i, col(p) + j]), for software adapters with
// subgroups of 8
// There a storage load is a loop over the lanes, so what counts is arithmetic per load. A subgroup makes up to 16 channels of
// 8 x 8 pixels: a lane holds a column of eight, loads the weights of two channels and gets the others from its neighbours. With
// stride 1 a step down the filter loads one row, not eight.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
// use lib/lanes                             EIGHTS, Sums, add, put_all
enable subgroups;

struct Params {
    batches: u32,
    y_channels: u32,
    y_height: u32,
    y_width: u32,
    x_channels: u32,
    x_height: u32,
    x_width: u32,
    stride_x: u32,
    top: u32,                                // padding
    left: u32,
}

const KH: u32 = 3;
const KW: u32 = 3;
const STRIDE_Y: u32 = 1;

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
    let tiles_o = (params.y_channels + 8 * EIGHTS - 1) / (8 * EIGHTS);
    let tiles_x = (params.y_width + 7) / 8;
    let tiles_y = (params.y_height + 7) / 8;
    let tile = flat_group(group, groups);
    if tile >= tiles_o * tiles_x * tiles_y * params.batches { return; }
    let o0 = tile % tiles_o * (8 * EIGHTS);
    let q = tile / tiles_o % tiles_x * 8 + lane;
    let p = tile / (tiles_o * tiles_x) % tiles_y * 8;
    let batch = tile / (tiles_o * tiles_x * tiles_y);

    // Channels past the last repeat it, and are not stored.
    let filter_at = min(vec2<u32>(o0 + lane, o0 + 8 + lane), vec2<u32>(params.y_channels - 1)) * (params.x_channels * KH * KW);
    let first = i32(p * STRIDE_Y) - i32(params.top);
    let upper = rows(first);
    let lower = rows(first + 4 * i32(STRIDE_Y));
    let below = rows(first + 8);
    var s: Sums;
    for (var c = 0u; c < params.x_channels; c++) {
        let plane = (batch * params.x_channels + c) * params.x_height * params.x_width;
        for (var j = 0u; j < KW; j++) {
            let col = q * params.stride_x + j - params.left;
            let at = filter_at + c * (KH * KW) + j;
            var up = pixels(plane, upper, col);
            var low = pixels(plane, lower, col);
            add(&s, load_weight(at.x), second(at.y), up, low);
            if STRIDE_Y == 1 {
                // A step down the filter brings in one row.
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
                for (var i = 3u; i < KH; i++) {
                    let row = rows(first + 7 + i32(i));
                    up = vec4<f32>(up.yzw, low.x);
                    low = vec4<f32>(low.yzw, pixel(plane, row.at.x, row.inside.x, col));
                    add(&s, load_weight(at.x + i * KW), second(at.y + i * KW), up, low);
                }
            } else {
                for (var i = 1u; i < KH; i++) {
                    up = pixels(plane, rows(first + i32(i)), col);
                    low = pixels(plane, rows(first + i32(i + 4 * STRIDE_Y)), col);
                    add(&s, load_weight(at.x + i * KW), second(at.y + i * KW), up, low);
                }
            }
        }
    }

    if q >= params.y_width { return; }
    let out = ((batch * params.y_channels + o0) * params.y_height + p) * params.y_width + q;
    put_all(&s, out, o0, p);
}

// A weight for the second eight.
fn second(at: u32) -> f32 {
    if EIGHTS == 1 { return 0.0; }
    return load_weight(at);
}

// Every STRIDE_Y-th row from `first` on. A negative row is a large unsigned one.
fn rows(first: i32) -> Rows {
    let row = vec4<u32>(first + vec4<i32>(0, 1, 2, 3) * i32(STRIDE_Y));
    let inside = row < vec4<u32>(params.x_height);
    return Rows(select(vec4<u32>(), row * params.x_width, inside), inside);
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
    return select(0.0, load(x[plane + row + min(col, params.x_width - 1)]), inside && col < params.x_width);
}

fn put(at: u32, o0: u32, o: u32, p: u32, up: vec4<f32>, low: vec4<f32>) {
    if o0 + o < params.y_channels {
        let i = at + o * params.y_height * params.y_width;
        put1(i, o0 + o, p, up.x);
        put1(i + params.y_width, o0 + o, p + 1, up.y);
        put1(i + 2 * params.y_width, o0 + o, p + 2, up.z);
        put1(i + 3 * params.y_width, o0 + o, p + 3, up.w);
        put1(i + 4 * params.y_width, o0 + o, p + 4, low.x);
        put1(i + 5 * params.y_width, o0 + o, p + 5, low.y);
        put1(i + 6 * params.y_width, o0 + o, p + 6, low.z);
        put1(i + 7 * params.y_width, o0 + o, p + 7, low.w);
    }
}

fn put1(at: u32, o: u32, p: u32, sum: f32) {
    if p < params.y_height { y[at] = store(epilogue(sum, at, o)); }
}

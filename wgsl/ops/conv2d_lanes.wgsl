// conv2d: y[b, o, p] = epilogue(sum_{c, i, j} w[o, c, i, j] * x[b, c, row(p) + i, col(p) + j]), for software adapters with
// subgroups of 8
// There a storage load is a loop over the lanes, so what counts is arithmetic per load. A subgroup makes 16 channels of 8 x 4
// pixels: a lane holds a column of four, loads the weights of two channels and gets the others from its neighbours. With stride 1
// a step down the filter loads one row, not four. Sums have constant indices, since a loop over them would keep them in memory.
//
// use elem                                  Elem, load, store
// use weight                                load_weight
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
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

alias Sums = array<vec4<f32>, 16>;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tiles_o = (params.y_channels + 15) / 16;
    let tiles_x = (params.y_width + 7) / 8;
    let tiles_y = (params.y_height + 3) / 4;
    let tile = flat_group(group, groups);
    if tile >= tiles_o * tiles_x * tiles_y * params.batches { return; }
    let o0 = tile % tiles_o * 16;
    let q = tile / tiles_o % tiles_x * 8 + lane;
    let p = tile / (tiles_o * tiles_x) % tiles_y * 4;
    let batch = tile / (tiles_o * tiles_x * tiles_y);

    // Channels past the last repeat it, and are not stored.
    let filter_at = min(vec2<u32>(o0 + lane, o0 + 8 + lane), vec2<u32>(params.y_channels - 1)) * (params.x_channels * KH * KW);
    let rows = vec4<i32>((p + vec4<u32>(0, 1, 2, 3)) * STRIDE_Y) - i32(params.top);
    var s: Sums;
    for (var c = 0u; c < params.x_channels; c++) {
        let plane = (batch * params.x_channels + c) * params.x_height;
        for (var j = 0u; j < KW; j++) {
            let col = q * params.stride_x + j - params.left;
            let at = filter_at + c * (KH * KW) + j;
            var v = pixels(plane, rows, col);
            add(&s, load_weight(at.x), load_weight(at.y), v);
            if KH > 1 {
                v = next(v, plane, rows + 1, col);
                add(&s, load_weight(at.x + KW), load_weight(at.y + KW), v);
            }
            if KH > 2 {
                v = next(v, plane, rows + 2, col);
                add(&s, load_weight(at.x + 2 * KW), load_weight(at.y + 2 * KW), v);
            }
            for (var i = 3u; i < KH; i++) {
                v = next(v, plane, rows + i32(i), col);
                add(&s, load_weight(at.x + i * KW), load_weight(at.y + i * KW), v);
            }
        }
    }

    let first = ((batch * params.y_channels + o0) * params.y_height + p) * params.y_width + q;
    if q >= params.y_width { return; }
    put(first, o0, 0, p, s[0]);
    put(first, o0, 1, p, s[1]);
    put(first, o0, 2, p, s[2]);
    put(first, o0, 3, p, s[3]);
    put(first, o0, 4, p, s[4]);
    put(first, o0, 5, p, s[5]);
    put(first, o0, 6, p, s[6]);
    put(first, o0, 7, p, s[7]);
    put(first, o0, 8, p, s[8]);
    put(first, o0, 9, p, s[9]);
    put(first, o0, 10, p, s[10]);
    put(first, o0, 11, p, s[11]);
    put(first, o0, 12, p, s[12]);
    put(first, o0, 13, p, s[13]);
    put(first, o0, 14, p, s[14]);
    put(first, o0, 15, p, s[15]);
}

// Adds a column of four pixels, times one weight of each of 16 channels: a in the lanes for the first eight, b for the others.
fn add(s: ptr<function, Sums>, a: f32, b: f32, v: vec4<f32>) {
    (*s)[0] = fma(vec4<f32>(subgroupBroadcast(a, 0u)), v, (*s)[0]);
    (*s)[1] = fma(vec4<f32>(subgroupBroadcast(a, 1u)), v, (*s)[1]);
    (*s)[2] = fma(vec4<f32>(subgroupBroadcast(a, 2u)), v, (*s)[2]);
    (*s)[3] = fma(vec4<f32>(subgroupBroadcast(a, 3u)), v, (*s)[3]);
    (*s)[4] = fma(vec4<f32>(subgroupBroadcast(a, 4u)), v, (*s)[4]);
    (*s)[5] = fma(vec4<f32>(subgroupBroadcast(a, 5u)), v, (*s)[5]);
    (*s)[6] = fma(vec4<f32>(subgroupBroadcast(a, 6u)), v, (*s)[6]);
    (*s)[7] = fma(vec4<f32>(subgroupBroadcast(a, 7u)), v, (*s)[7]);
    (*s)[8] = fma(vec4<f32>(subgroupBroadcast(b, 0u)), v, (*s)[8]);
    (*s)[9] = fma(vec4<f32>(subgroupBroadcast(b, 1u)), v, (*s)[9]);
    (*s)[10] = fma(vec4<f32>(subgroupBroadcast(b, 2u)), v, (*s)[10]);
    (*s)[11] = fma(vec4<f32>(subgroupBroadcast(b, 3u)), v, (*s)[11]);
    (*s)[12] = fma(vec4<f32>(subgroupBroadcast(b, 4u)), v, (*s)[12]);
    (*s)[13] = fma(vec4<f32>(subgroupBroadcast(b, 5u)), v, (*s)[13]);
    (*s)[14] = fma(vec4<f32>(subgroupBroadcast(b, 6u)), v, (*s)[14]);
    (*s)[15] = fma(vec4<f32>(subgroupBroadcast(b, 7u)), v, (*s)[15]);
}

// The pixels one row further down than v.
fn next(v: vec4<f32>, plane: u32, rows: vec4<i32>, col: u32) -> vec4<f32> {
    if STRIDE_Y == 1 { return vec4<f32>(v.yzw, pixel(plane, rows.w, col)); }
    return pixels(plane, rows, col);
}

fn pixels(plane: u32, rows: vec4<i32>, col: u32) -> vec4<f32> {
    return vec4<f32>(pixel(plane, rows.x, col), pixel(plane, rows.y, col), pixel(plane, rows.z, col), pixel(plane, rows.w, col));
}

// A negative row or column is a large unsigned one.
fn pixel(plane: u32, row: i32, col: u32) -> f32 {
    let inside = u32(row) < params.x_height && col < params.x_width;
    return select(0.0, load(x[select(0u, (plane + u32(row)) * params.x_width + col, inside)]), inside);
}

fn put(first: u32, o0: u32, o: u32, p: u32, sums: vec4<f32>) {
    if o0 + o < params.y_channels {
        let at = first + o * params.y_height * params.y_width;
        put1(at, o0 + o, p, sums.x);
        put1(at + params.y_width, o0 + o, p + 1, sums.y);
        put1(at + 2 * params.y_width, o0 + o, p + 2, sums.z);
        put1(at + 3 * params.y_width, o0 + o, p + 3, sums.w);
    }
}

fn put1(at: u32, o: u32, p: u32, sum: f32) {
    if p < params.y_height { y[at] = store(epilogue(sum, at, o)); }
}

// attention on software adapters, 3 of 3: y[b, i, h, c] = s[p, i, tk] * sum_j s[p, i, j] * v[b, j, h', c], where p = b * hq + h
// One subgroup per 16 queries and 32 columns of a head.
//
// use elem                                  Elem, load, store
// use lib/index                             flat_group
// use lib/lanes                             multiply_lanes

struct Params {
    batches: u32,
    tq: u32,
    tk: u32,
    hq: u32,
    hk: u32,
    d: u32,
    mask_b: u32,
    mask_h: u32,
    mask_i: u32,
    scale: f32,
}

const CAUSAL: u32 = 0;                       // 1: query i sees keys up to i + tk - tq

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> s: array<f32>;
@group(0) @binding(4) var<storage, read> v: array<Elem>;

var<private> s_base: u32;
var<private> v_base: u32;
var<private> y_base: u32;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tiles_q = (params.tq + 15) / 16;
    let tiles = tiles_q * ((params.d + 31) / 32);
    let flat = flat_group(group, groups);
    if flat >= tiles * params.hq * params.batches { return; }
    let h = flat / tiles % params.hq;
    let b = flat / tiles / params.hq;
    s_base = (b * params.hq + h) * params.tq * (params.tk + 1);
    v_base = (b * params.tk * params.hk + h / (params.hq / params.hk)) * params.d;
    y_base = (b * params.tq * params.hq + h) * params.d;
    let i0 = flat % tiles % tiles_q * 16;
    var keys = params.tk;
    if CAUSAL == 1 { keys = u32(clamp(i32(i0 + 16 + params.tk) - i32(params.tq), 0, i32(params.tk))); }
    multiply_lanes(i0, flat % tiles / tiles_q * 32 + lane, keys, lane);
}

// Queries and columns past the last repeat it.
fn a_rows(i: u32, j: u32) -> vec4<f32> {
    let rows = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.tq - 1));
    let at = rows * (params.tk + 1) + s_base + j;
    return vec4<f32>(s[at.x], s[at.y], s[at.z], s[at.w]);
}

fn b_columns(c: u32, j: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(b_column(c, j), b_column(c, j + 1));
}

fn b_column(c: u32, j: u32) -> vec4<f32> {
    let columns = min(vec4<u32>(c, c + 8, c + 16, c + 24), vec4<u32>(params.d - 1));
    let at = columns + v_base + j * params.hk * params.d;
    return vec4<f32>(load(v[at.x]), load(v[at.y]), load(v[at.z]), load(v[at.w]));
}

fn put(i: u32, c: u32, sums: vec4<f32>) {
    if i < params.tq {
        let scaled = sums * s[s_base + i * (params.tk + 1) + params.tk];
        put_one(i, c, scaled.x);
        put_one(i, c + 8, scaled.y);
        put_one(i, c + 16, scaled.z);
        put_one(i, c + 24, scaled.w);
    }
}

fn put_one(i: u32, c: u32, value: f32) {
    if c < params.d { y[y_base + i * params.hq * params.d + c] = store(value); }
}

// attention on software adapters, 1 of 3: s[p, i, j] = scale * q[b, i, h] . k[b, j, h'] + mask[b, h, i, j], where p = b * hq + h
// One subgroup per 16 x 32 scores. Rows of s have one element more than keys, for attention_weights.
//
// use elem                                  Elem, load
// use mask                                  mask_at
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
const MIN_F32: f32 = -3.4028234e38;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> s: array<f32>;
@group(0) @binding(2) var<storage, read> q: array<Elem>;
@group(0) @binding(3) var<storage, read> k: array<Elem>;

var<private> b: u32;
var<private> h: u32;
var<private> q_base: u32;
var<private> k_base: u32;

@compute @workgroup_size(8)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let tiles_q = (params.tq + 15) / 16;
    let tiles = tiles_q * ((params.tk + 31) / 32);
    let flat = flat_group(group, groups);
    if flat >= tiles * params.hq * params.batches { return; }
    h = flat / tiles % params.hq;
    b = flat / tiles / params.hq;
    q_base = (b * params.tq * params.hq + h) * params.d;
    k_base = (b * params.tk * params.hk + h / (params.hq / params.hk)) * params.d;
    let i0 = flat % tiles % tiles_q * 16;
    let j0 = flat % tiles / tiles_q * 32;
    // A tile that no query sees needs no products.
    let hidden = CAUSAL == 1 && j0 + params.tq > i0 + 15 + params.tk;
    multiply_lanes(i0, j0 + lane, select(params.d, 0, hidden), lane);
}

// Queries and keys past the last repeat it.
fn a_rows(i: u32, c: u32) -> vec4<f32> {
    let rows = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.tq - 1));
    let at = rows * (params.hq * params.d) + q_base + c;
    return vec4<f32>(load(q[at.x]), load(q[at.y]), load(q[at.z]), load(q[at.w]));
}

fn b_columns(j: u32, c: u32) -> array<vec4<f32>, 2> {
    return array<vec4<f32>, 2>(b_column(j, c), b_column(j, c + 1));
}

fn b_column(j: u32, c: u32) -> vec4<f32> {
    let rows = min(vec4<u32>(j, j + 8, j + 16, j + 24), vec4<u32>(params.tk - 1));
    let at = rows * (params.hk * params.d) + k_base + c;
    return vec4<f32>(load(k[at.x]), load(k[at.y]), load(k[at.z]), load(k[at.w]));
}

fn put(i: u32, j: u32, sums: vec4<f32>) {
    if i < params.tq {
        put_one(i, j, sums.x);
        put_one(i, j + 8, sums.y);
        put_one(i, j + 16, sums.z);
        put_one(i, j + 24, sums.w);
    }
}

fn put_one(i: u32, j: u32, dot: f32) {
    if j >= params.tk { return; }
    let at = ((b * params.hq + h) * params.tq + i) * (params.tk + 1) + j;
    if CAUSAL == 1 && j + params.tq > i + params.tk {
        s[at] = MIN_F32;
    } else {
        s[at] = params.scale * dot + mask_at(b, h, i, j);
    }
}

// attention: y[b, i, h] = sum_j softmax_j(scale * q[b, i, h] . k[b, j, h'] + mask[b, h, i, j]) * v[b, j, h']
// One workgroup per 4 LY queries of a head. It streams over blocks of 32 keys and keeps a running maximum and sum, so no row of
// scores is ever stored. An invocation has four queries (as a vector) times 32 / LX keys of the scores, and the same four queries
// times CT columns of the result.
//
// use elem                                  Elem, load, store
// use mask                                  mask_at
// use lib/index                             flat_group

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

const LX: u32 = 16;                          // invocations along keys and columns, 16 or 32
const LY: u32 = 16;                          // invocations along queries
const CT: u32 = 4;                           // columns of the result per invocation: d / LX, rounded up
const CAUSAL: u32 = 0;                       // 1: query i sees keys up to i + tk - tq
const BC: u32 = 16;                          // columns of q and k in a slice
const KT: u32 = 32 / LX;                     // keys per invocation
const QUERIES: u32 = 4 * LY;
const MIN_F32: f32 = -3.4028234e38;
const MASKED: f32 = -1e38;                   // scores from here down have no weight

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> q: array<Elem>;
@group(0) @binding(3) var<storage, read> k: array<Elem>;
@group(0) @binding(4) var<storage, read> v: array<Elem>;

// A row is one longer than its contents, so that slices are stored without bank conflicts.
// Holds LX * LY partial results between slices.
var<workgroup> q_slice: array<vec4<f32>, 272>;
var<workgroup> k_slice: array<f32, BC * 33>;
var<workgroup> weights: array<vec4<f32>, 32 * LY>;

@compute @workgroup_size(LX, LY)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let blocks = (params.tq + QUERIES - 1) / QUERIES;
    let flat = flat_group(group, groups);
    if flat >= blocks * params.hq * params.batches { return; }
    let i0 = flat % blocks * QUERIES;
    let h = flat / blocks % params.hq;
    let b = flat / blocks / params.hq;
    let h_kv = h / (params.hq / params.hk);
    // Element 0 of the head in row 0, and the distance between rows.
    let q_base = (b * params.tq * params.hq + h) * params.d;
    let q_row = params.hq * params.d;
    let kv_base = (b * params.tk * params.hk + h_kv) * params.d;
    let kv_row = params.hk * params.d;

    var keys = params.tk;
    if CAUSAL == 1 { keys = u32(clamp(i32(i0 + QUERIES + params.tk) - i32(params.tq), 0, i32(params.tk))); }

    var high = vec4<f32>(MIN_F32);
    var sum = vec4<f32>();                   // over this invocation's keys
    var result: array<vec4<f32>, CT>;
    for (var j0 = 0u; j0 < keys; j0 += 32) {
        var s: array<vec4<f32>, KT>;
        for (var c0 = 0u; c0 < params.d; c0 += BC) {
            for (var e = lane; e < LY * BC; e += LX * LY) {
                let c = c0 + e % BC;
                let i = i0 + e / BC * 4;
                var rows = vec4<f32>();
                if c < params.d {
                    // Queries past the last repeat it, and are not stored.
                    let at = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.tq - 1)) * q_row + q_base + c;
                    rows = vec4<f32>(load(q[at.x]), load(q[at.y]), load(q[at.z]), load(q[at.w]));
                }
                q_slice[e % BC * (LY + 1) + e / BC] = rows;
            }
            for (var e = lane; e < 32 * BC; e += LX * LY) {
                let c = c0 + e % BC;
                let j = j0 + e / BC;
                var value = 0.0;
                if c < params.d && j < params.tk { value = load(k[kv_base + j * kv_row + c]); }
                k_slice[e % BC * 33 + e / BC] = value;
            }
            workgroupBarrier();
            for (var c = 0u; c < BC; c++) {
                let a = q_slice[c * (LY + 1) + local.y];
                for (var t = 0u; t < KT; t++) { s[t] = fma(a, vec4<f32>(k_slice[c * 33 + local.x + t * LX]), s[t]); }
            }
            workgroupBarrier();
        }

        var block_high = high;
        for (var t = 0u; t < KT; t++) {
            let j = j0 + local.x + t * LX;
            let i = i0 + local.y * 4;
            s[t] = vec4<f32>(score(s[t].x, b, h, i, j), score(s[t].y, b, h, i + 1, j), score(s[t].z, b, h, i + 2, j), score(s[t].w, b, h, i + 3, j));
            block_high = max(block_high, s[t]);
        }
        q_slice[local.x * LY + local.y] = block_high;
        workgroupBarrier();
        for (var e = 0u; e < LX; e++) { block_high = max(block_high, q_slice[e * LY + local.y]); }

        let keep = exp(high - block_high);
        high = block_high;
        sum *= keep;
        for (var t = 0u; t < KT; t++) {
            let p = select(exp(s[t] - high), vec4<f32>(), s[t] <= vec4<f32>(MASKED));
            sum += p;
            weights[(local.x + t * LX) * LY + local.y] = p;
        }
        workgroupBarrier();

        for (var t = 0u; t < CT; t++) { result[t] *= keep; }
        for (var e = 0u; e < min(32, keys - j0); e++) {
            let p = weights[e * LY + local.y];
            let at = kv_base + (j0 + e) * kv_row;
            for (var t = 0u; t < CT; t++) {
                let c = local.x + t * LX;
                if c < params.d { result[t] = fma(p, vec4<f32>(load(v[at + c])), result[t]); }
            }
        }
        workgroupBarrier();
    }

    q_slice[local.x * LY + local.y] = sum;
    workgroupBarrier();
    sum = vec4<f32>();
    for (var e = 0u; e < LX; e++) { sum += q_slice[e * LY + local.y]; }
    // A query that sees no key gets zeros.
    let factor = select(1.0 / sum, vec4<f32>(), sum == vec4<f32>());
    for (var t = 0u; t < CT; t++) {
        let c = local.x + t * LX;
        let r = result[t] * factor;
        if c < params.d {
            let i = i0 + local.y * 4;
            let at = q_base + i * q_row + c;
            if i < params.tq { y[at] = store(r.x); }
            if i + 1 < params.tq { y[at + q_row] = store(r.y); }
            if i + 2 < params.tq { y[at + 2 * q_row] = store(r.z); }
            if i + 3 < params.tq { y[at + 3 * q_row] = store(r.w); }
        }
    }
}

fn score(dot: f32, b: u32, h: u32, i: u32, j: u32) -> f32 {
    let hidden = CAUSAL == 1 && j + params.tq > i + params.tk;
    if i >= params.tq || j >= params.tk || hidden { return MIN_F32; }
    return params.scale * dot + mask_at(b, h, i, j);
}

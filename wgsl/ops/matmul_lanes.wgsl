// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k]), for software adapters with subgroups of 8
// There a storage load is a loop over the lanes, so what counts is arithmetic per load. A subgroup makes 16 x 32 outputs: a lane
// holds 16 rows of 4 columns, loads x at its own k and gets the other seven from its neighbours. PAIRS: k is even, so that
// packed weights are read two at a time. Sums have constant indices, since a loop over them would keep them in memory.
//
// use elem                                  Elem, load, store
// use weight                                load_weight, load_weight2
// use lib/epilogue                          epilogue
// use lib/index                             flat_group
enable subgroups;

struct Params {
    m: u32,
    n: u32,
    k: u32,
}

const PAIRS: u32 = 0;

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
    let tiles_m = (params.m + 15) / 16;
    let tiles_n = (params.n + 31) / 32;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n { return; }
    let i0 = tile % tiles_m * 16;
    let j0 = tile / tiles_m * 32 + lane;
    // Rows past the last repeat it, and are not stored.
    let at = min(vec4<u32>(j0, j0 + 8, j0 + 16, j0 + 24), vec4<u32>(params.n - 1)) * params.k;

    var s: Sums;
    let whole = params.k - params.k % 8;
    for (var k = 0u; k < whole; k += 8) {
        let a0 = x_rows(i0, k + lane);
        let a1 = x_rows(i0 + 4, k + lane);
        let a2 = x_rows(i0 + 8, k + lane);
        let a3 = x_rows(i0 + 12, k + lane);
        var b = w_pairs(at + k);
        add(&s, subgroupBroadcast(a0, 0u), subgroupBroadcast(a1, 0u), subgroupBroadcast(a2, 0u), subgroupBroadcast(a3, 0u), b[0]);
        add(&s, subgroupBroadcast(a0, 1u), subgroupBroadcast(a1, 1u), subgroupBroadcast(a2, 1u), subgroupBroadcast(a3, 1u), b[1]);
        b = w_pairs(at + k + 2);
        add(&s, subgroupBroadcast(a0, 2u), subgroupBroadcast(a1, 2u), subgroupBroadcast(a2, 2u), subgroupBroadcast(a3, 2u), b[0]);
        add(&s, subgroupBroadcast(a0, 3u), subgroupBroadcast(a1, 3u), subgroupBroadcast(a2, 3u), subgroupBroadcast(a3, 3u), b[1]);
        b = w_pairs(at + k + 4);
        add(&s, subgroupBroadcast(a0, 4u), subgroupBroadcast(a1, 4u), subgroupBroadcast(a2, 4u), subgroupBroadcast(a3, 4u), b[0]);
        add(&s, subgroupBroadcast(a0, 5u), subgroupBroadcast(a1, 5u), subgroupBroadcast(a2, 5u), subgroupBroadcast(a3, 5u), b[1]);
        b = w_pairs(at + k + 6);
        add(&s, subgroupBroadcast(a0, 6u), subgroupBroadcast(a1, 6u), subgroupBroadcast(a2, 6u), subgroupBroadcast(a3, 6u), b[0]);
        add(&s, subgroupBroadcast(a0, 7u), subgroupBroadcast(a1, 7u), subgroupBroadcast(a2, 7u), subgroupBroadcast(a3, 7u), b[1]);
    }
    for (var k = whole; k < params.k; k++) {
        let b = vec4<f32>(load_weight(at.x + k), load_weight(at.y + k), load_weight(at.z + k), load_weight(at.w + k));
        add(&s, x_rows(i0, k), x_rows(i0 + 4, k), x_rows(i0 + 8, k), x_rows(i0 + 12, k), b);
    }

    put(i0, j0, s[0]);
    put(i0 + 1, j0, s[1]);
    put(i0 + 2, j0, s[2]);
    put(i0 + 3, j0, s[3]);
    put(i0 + 4, j0, s[4]);
    put(i0 + 5, j0, s[5]);
    put(i0 + 6, j0, s[6]);
    put(i0 + 7, j0, s[7]);
    put(i0 + 8, j0, s[8]);
    put(i0 + 9, j0, s[9]);
    put(i0 + 10, j0, s[10]);
    put(i0 + 11, j0, s[11]);
    put(i0 + 12, j0, s[12]);
    put(i0 + 13, j0, s[13]);
    put(i0 + 14, j0, s[14]);
    put(i0 + 15, j0, s[15]);
}

// Adds the product of 16 rows and 4 columns at one k.
fn add(s: ptr<function, Sums>, a0: vec4<f32>, a1: vec4<f32>, a2: vec4<f32>, a3: vec4<f32>, b: vec4<f32>) {
    (*s)[0] = fma(a0.xxxx, b, (*s)[0]);
    (*s)[1] = fma(a0.yyyy, b, (*s)[1]);
    (*s)[2] = fma(a0.zzzz, b, (*s)[2]);
    (*s)[3] = fma(a0.wwww, b, (*s)[3]);
    (*s)[4] = fma(a1.xxxx, b, (*s)[4]);
    (*s)[5] = fma(a1.yyyy, b, (*s)[5]);
    (*s)[6] = fma(a1.zzzz, b, (*s)[6]);
    (*s)[7] = fma(a1.wwww, b, (*s)[7]);
    (*s)[8] = fma(a2.xxxx, b, (*s)[8]);
    (*s)[9] = fma(a2.yyyy, b, (*s)[9]);
    (*s)[10] = fma(a2.zzzz, b, (*s)[10]);
    (*s)[11] = fma(a2.wwww, b, (*s)[11]);
    (*s)[12] = fma(a3.xxxx, b, (*s)[12]);
    (*s)[13] = fma(a3.yyyy, b, (*s)[13]);
    (*s)[14] = fma(a3.zzzz, b, (*s)[14]);
    (*s)[15] = fma(a3.wwww, b, (*s)[15]);
}

// Four rows of x at one k.
fn x_rows(i: u32, k: u32) -> vec4<f32> {
    let at = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.m - 1)) * params.k + k;
    return vec4<f32>(load(x[at.x]), load(x[at.y]), load(x[at.z]), load(x[at.w]));
}

// Four columns of w at k and at k + 1.
fn w_pairs(at: vec4<u32>) -> array<vec4<f32>, 2> {
    if PAIRS == 1 {
        let a = load_weight2(at.x);
        let b = load_weight2(at.y);
        let c = load_weight2(at.z);
        let d = load_weight2(at.w);
        return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
    }
    let b0 = vec4<f32>(load_weight(at.x), load_weight(at.y), load_weight(at.z), load_weight(at.w));
    let b1 = vec4<f32>(load_weight(at.x + 1), load_weight(at.y + 1), load_weight(at.z + 1), load_weight(at.w + 1));
    return array<vec4<f32>, 2>(b0, b1);
}

fn put(i: u32, j: u32, sums: vec4<f32>) {
    if i < params.m {
        put1(i, j, sums.x);
        put1(i, j + 8, sums.y);
        put1(i, j + 16, sums.z);
        put1(i, j + 24, sums.w);
    }
}

fn put1(i: u32, j: u32, sum: f32) {
    if j < params.n {
        let at = i * params.n + j;
        y[at] = store(epilogue(sum, at, j));
    }
}

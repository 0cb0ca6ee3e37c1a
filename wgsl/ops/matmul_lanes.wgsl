// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k]), for software adapters
// One subgroup per 16 x 32 outputs. PAIRS: k is even, so that packed weights are read two at a time.
//
// use elem                                  Elem
// use weight                                load_weight, load_weight2
// use lib/lanes_matmul                      a_rows, put
// use lib/index                             flat_group
// use lib/lanes                             multiply_lanes

struct Params {
    m: u32,
    n: u32,
    k: u32,
}

const PAIRS: u32 = 0;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

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
    multiply_lanes(tile % tiles_m * 16, tile / tiles_m * 32 + lane, params.k, lane);
}

fn b_columns(j: u32, k: u32) -> array<vec4<f32>, 2> {
    let at = min(vec4<u32>(j, j + 8, j + 16, j + 24), vec4<u32>(params.n - 1)) * params.k + k;
    if PAIRS == 1 {
        let a = load_weight2(at.x);
        let b = load_weight2(at.y);
        let c = load_weight2(at.z);
        let d = load_weight2(at.w);
        return array<vec4<f32>, 2>(vec4<f32>(a.x, b.x, c.x, d.x), vec4<f32>(a.y, b.y, c.y, d.y));
    }
    return array<vec4<f32>, 2>(b_column(j, k), b_column(j, k + 1));
}

fn b_column(j: u32, k: u32) -> vec4<f32> {
    let at = min(vec4<u32>(j, j + 8, j + 16, j + 24), vec4<u32>(params.n - 1)) * params.k + k;
    return vec4<f32>(load_weight(at.x), load_weight(at.y), load_weight(at.z), load_weight(at.w));
}

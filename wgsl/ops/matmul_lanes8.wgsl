// matmul: y[i, j] = epilogue(sum_k x[i, k] * w[j, k]), for software adapters and packed weights; k is a multiple of 8
// One subgroup per 16 x 32 outputs. A lane decodes eight weights of each of its columns at a time: few loads for many products.
//
// use elem                                  Elem
// use weight                                load_weight8
// use lib/index                             flat_group
// use lib/lanes_matmul                      a_rows, put
// use lib/lanes_sums                        Sums, add, put_all
enable subgroups;

struct Params {
    m: u32,
    n: u32,
    k: u32,
}

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
    let i0 = tile % tiles_m * 16;
    let j0 = tile / tiles_m * 32 + lane;
    // Columns past the last repeat it.
    let rows = min(vec4<u32>(j0, j0 + 8, j0 + 16, j0 + 24), vec4<u32>(params.n - 1)) * params.k;

    var s: Sums;
    for (var k = 0u; k < params.k; k += 8) {
        let a0 = a_rows(i0, k + lane);
        let a1 = a_rows(i0 + 4, k + lane);
        let a2 = a_rows(i0 + 8, k + lane);
        let a3 = a_rows(i0 + 12, k + lane);
        let p = load_weight8(rows.x + k);
        let q = load_weight8(rows.y + k);
        let r = load_weight8(rows.z + k);
        let t = load_weight8(rows.w + k);
        add(&s, subgroupBroadcast(a0, 0u), subgroupBroadcast(a1, 0u), subgroupBroadcast(a2, 0u), subgroupBroadcast(a3, 0u), vec4<f32>(p[0].x, q[0].x, r[0].x, t[0].x));
        add(&s, subgroupBroadcast(a0, 1u), subgroupBroadcast(a1, 1u), subgroupBroadcast(a2, 1u), subgroupBroadcast(a3, 1u), vec4<f32>(p[0].y, q[0].y, r[0].y, t[0].y));
        add(&s, subgroupBroadcast(a0, 2u), subgroupBroadcast(a1, 2u), subgroupBroadcast(a2, 2u), subgroupBroadcast(a3, 2u), vec4<f32>(p[0].z, q[0].z, r[0].z, t[0].z));
        add(&s, subgroupBroadcast(a0, 3u), subgroupBroadcast(a1, 3u), subgroupBroadcast(a2, 3u), subgroupBroadcast(a3, 3u), vec4<f32>(p[0].w, q[0].w, r[0].w, t[0].w));
        add(&s, subgroupBroadcast(a0, 4u), subgroupBroadcast(a1, 4u), subgroupBroadcast(a2, 4u), subgroupBroadcast(a3, 4u), vec4<f32>(p[1].x, q[1].x, r[1].x, t[1].x));
        add(&s, subgroupBroadcast(a0, 5u), subgroupBroadcast(a1, 5u), subgroupBroadcast(a2, 5u), subgroupBroadcast(a3, 5u), vec4<f32>(p[1].y, q[1].y, r[1].y, t[1].y));
        add(&s, subgroupBroadcast(a0, 6u), subgroupBroadcast(a1, 6u), subgroupBroadcast(a2, 6u), subgroupBroadcast(a3, 6u), vec4<f32>(p[1].z, q[1].z, r[1].z, t[1].z));
        add(&s, subgroupBroadcast(a0, 7u), subgroupBroadcast(a1, 7u), subgroupBroadcast(a2, 7u), subgroupBroadcast(a3, 7u), vec4<f32>(p[1].w, q[1].w, r[1].w, t[1].w));
    }
    put_all(i0, j0, &s);
}

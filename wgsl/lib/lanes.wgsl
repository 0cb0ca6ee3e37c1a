// One subgroup's part of a matrix product on a software adapter: sum_k a[i, k] * b[k, j] for 16 rows and 32 columns.
// Such an adapter loops over the lanes of a subgroup to load from storage, so what counts is arithmetic per load. A lane loads a at
// its own k and gets the other seven from its neighbours.
//
// use lib/lanes_sums                        Sums, add, put_all
//
// The caller runs subgroups of 8, each on its own, and declares
//   fn a_rows(i: u32, k: u32) -> vec4<f32>, a[i .. i + 4, k]: any value in rows outside the matrix;
//   fn b_columns(j: u32, k: u32) -> array<vec4<f32>, 2>, b[.., j + 0, 8, 16, 24] at k and k + 1, where k is even and inside;
//   fn b_column(j: u32, k: u32) -> vec4<f32>, the same at k alone; and put for lib/lanes_sums.
enable subgroups;

// Rows from i0 on, and columns j0 + 0, 8, 16, 24, of matrices with `depth` products per sum. Wants uniform control flow.
fn multiply_lanes(i0: u32, j0: u32, depth: u32, lane: u32) {
    var s: Sums;
    let whole = depth - depth % 8;
    for (var k = 0u; k < whole; k += 8) {
        let a0 = a_rows(i0, k + lane);
        let a1 = a_rows(i0 + 4, k + lane);
        let a2 = a_rows(i0 + 8, k + lane);
        let a3 = a_rows(i0 + 12, k + lane);
        var b = b_columns(j0, k);
        add(&s, subgroupBroadcast(a0, 0u), subgroupBroadcast(a1, 0u), subgroupBroadcast(a2, 0u), subgroupBroadcast(a3, 0u), b[0]);
        add(&s, subgroupBroadcast(a0, 1u), subgroupBroadcast(a1, 1u), subgroupBroadcast(a2, 1u), subgroupBroadcast(a3, 1u), b[1]);
        b = b_columns(j0, k + 2);
        add(&s, subgroupBroadcast(a0, 2u), subgroupBroadcast(a1, 2u), subgroupBroadcast(a2, 2u), subgroupBroadcast(a3, 2u), b[0]);
        add(&s, subgroupBroadcast(a0, 3u), subgroupBroadcast(a1, 3u), subgroupBroadcast(a2, 3u), subgroupBroadcast(a3, 3u), b[1]);
        b = b_columns(j0, k + 4);
        add(&s, subgroupBroadcast(a0, 4u), subgroupBroadcast(a1, 4u), subgroupBroadcast(a2, 4u), subgroupBroadcast(a3, 4u), b[0]);
        add(&s, subgroupBroadcast(a0, 5u), subgroupBroadcast(a1, 5u), subgroupBroadcast(a2, 5u), subgroupBroadcast(a3, 5u), b[1]);
        b = b_columns(j0, k + 6);
        add(&s, subgroupBroadcast(a0, 6u), subgroupBroadcast(a1, 6u), subgroupBroadcast(a2, 6u), subgroupBroadcast(a3, 6u), b[0]);
        add(&s, subgroupBroadcast(a0, 7u), subgroupBroadcast(a1, 7u), subgroupBroadcast(a2, 7u), subgroupBroadcast(a3, 7u), b[1]);
    }
    for (var k = whole; k < depth; k++) {
        add(&s, a_rows(i0, k), a_rows(i0 + 4, k), a_rows(i0 + 8, k), a_rows(i0 + 12, k), b_column(j0, k));
    }
    put_all(i0, j0, &s);
}

// One subgroup's part of a matrix product on a software adapter: sum_k a[i, k] * b[k, j] for 16 rows and 32 columns.
// Such an adapter loops over the lanes of a subgroup to load from storage, so what counts is arithmetic per load. A lane holds 16
// rows of 4 columns, 8 apart; it loads a at its own k and gets the other seven from its neighbours. Sums have constant indices,
// since a loop over them would keep them in memory.
// The caller runs subgroups of 8, each on its own, and declares
//   fn a_rows(i: u32, k: u32) -> vec4<f32>, a[i .. i + 4, k]: any value in rows outside the matrix;
//   fn b_columns(j: u32, k: u32) -> array<vec4<f32>, 2>, b[.., j + 0, 8, 16, 24] at k and k + 1, where k is even and inside;
//   fn b_column(j: u32, k: u32) -> vec4<f32>, the same at k alone;
//   fn put(i: u32, j: u32, sums: vec4<f32>), which stores what lies inside the output.
enable subgroups;

alias Sums = array<vec4<f32>, 16>;

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

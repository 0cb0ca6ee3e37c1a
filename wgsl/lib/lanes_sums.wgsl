// Sums of a subgroup of 8 lanes over 16 rows and 32 columns of an output: a lane holds 16 rows of 4 columns, 8 apart. Their indices
// are constant, since a loop over them would keep them in memory. The caller declares
//   fn put(i: u32, j: u32, sums: vec4<f32>), which stores what lies inside the output.
alias Sums = array<vec4<f32>, 16>;

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

// Stores them, from row i0 on in columns j0 + 0, 8, 16, 24.
fn put_all(i0: u32, j0: u32, s: ptr<function, Sums>) {
    put(i0, j0, (*s)[0]);
    put(i0 + 1, j0, (*s)[1]);
    put(i0 + 2, j0, (*s)[2]);
    put(i0 + 3, j0, (*s)[3]);
    put(i0 + 4, j0, (*s)[4]);
    put(i0 + 5, j0, (*s)[5]);
    put(i0 + 6, j0, (*s)[6]);
    put(i0 + 7, j0, (*s)[7]);
    put(i0 + 8, j0, (*s)[8]);
    put(i0 + 9, j0, (*s)[9]);
    put(i0 + 10, j0, (*s)[10]);
    put(i0 + 11, j0, (*s)[11]);
    put(i0 + 12, j0, (*s)[12]);
    put(i0 + 13, j0, (*s)[13]);
    put(i0 + 14, j0, (*s)[14]);
    put(i0 + 15, j0, (*s)[15]);
}

// What matmul kernels on lanes share: rows of x, and the outputs. `Params` has m, n and k.
//
// use elem                                  Elem, load, store
// use lib/epilogue                          epilogue

// Rows past the last repeat it.
fn a_rows(i: u32, k: u32) -> vec4<f32> {
    let at = min(vec4<u32>(i, i + 1, i + 2, i + 3), vec4<u32>(params.m - 1)) * params.k + k;
    return vec4<f32>(load(x[at.x]), load(x[at.y]), load(x[at.z]), load(x[at.w]));
}

fn put(i: u32, j: u32, sums: vec4<f32>) {
    if i < params.m {
        put_one(i, j, sums.x);
        put_one(i, j + 8, sums.y);
        put_one(i, j + 16, sums.z);
        put_one(i, j + 24, sums.w);
    }
}

fn put_one(i: u32, j: u32, sum: f32) {
    if j < params.n {
        let at = i * params.n + j;
        y[at] = store(epilogue(sum, at, j));
    }
}

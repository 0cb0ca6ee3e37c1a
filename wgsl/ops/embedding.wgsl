// embedding: y[t, :] = table[ids[t], :]
// An id outside the table gives NaN.
//
// use elem                                  Elem, store
// use weight                                load_weight
// use lib/flat                              main

struct Params {
    count: u32,
    rows: u32,
    cols: u32,
    nan: f32,                                // WGSL has no literal for it
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;

fn make(i: u32) {
    let t = i / params.cols;
    let id = ids[t];
    var v = params.nan;
    if id < params.rows { v = load_weight(id * params.cols + i - t * params.cols); }
    y[i] = store(v);
}

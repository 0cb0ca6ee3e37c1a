// embedding: y[t, :] = table[ids[t], :]
// A launch for each part of the table writes what is in its rows; an id outside the table gives NaN.
//
// use elem                                  Elem, store
// use weight                                load_weight
// use lib/flat                              main

struct Params {
    count: u32,
    first: u32,                              // row of the table that the part begins at
    rows: u32,                               // of the part
    all_rows: u32,
    cols: u32,
    nan: f32,                                // WGSL has no literal for it
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;

fn make(i: u32) {
    let t = i / params.cols;
    let id = ids[t];
    // Rows before the part wrap around, which is past its last.
    let row = id - params.first;
    if row < params.rows {
        y[i] = store(load_weight(row * params.cols + i - t * params.cols));
    } else if id >= params.all_rows {
        y[i] = store(params.nan);
    }
}

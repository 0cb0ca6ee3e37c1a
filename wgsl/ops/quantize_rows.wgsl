// quantize_rows: y[r, c] = the nearest code of x[r, c] / s[r], halves to even; four codes in a word
//
// use elem                                  Elem, load
// use lib/flat                              main

struct Params {
    count: u32,                              // words
    elements: u32,
    cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(3) var<storage, read> scales: array<f32>;

fn make(i: u32) {
    var word = 0u;
    for (var j = 0u; j < 4u; j++) {
        let e = 4 * i + j;
        if e < params.elements { word = insertBits(word, code(e), 8 * j, 8u); }
    }
    y[i] = word;
}

fn code(e: u32) -> u32 {
    let q = round(load(x[e]) / scales[e / params.cols]);
    return bitcast<u32>(i32(clamp(q, -128.0, 127.0)));
}

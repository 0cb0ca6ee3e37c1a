// rotate_stage: one stage of rotate in place, for groups too large for workgroup memory
//
// use elem                                  Elem, load, store
// use lib/butterfly                         butterfly
// use lib/flat                              main

struct Params {
    count: u32,                              // butterflies
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;

fn make(i: u32) {
    let s = params.stride;
    let e = i / s * 4 * s + i % s;
    let v = butterfly(vec4<f32>(load(y[e]), load(y[e + s]), load(y[e + 2 * s]), load(y[e + 3 * s])));
    y[e] = store(v.x);
    y[e + s] = store(v.y);
    y[e + 2 * s] = store(v.z);
    y[e + 3 * s] = store(v.w);
}

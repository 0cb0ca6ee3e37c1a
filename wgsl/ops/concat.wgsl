// concat: y[o, offset + r] = x[o, r]: one input into its place in each row of the output
// One launch per input.
//
// use elem                                  Elem
// use lib/flat                              main

struct Params {
    count: u32,                              // elements of x
    length: u32,                             // of a row of x
    stride: u32,                             // of a row of y
    offset: u32,                             // in a row of y
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

fn make(i: u32) { y[i / params.length * params.stride + params.offset + i % params.length] = x[i]; }

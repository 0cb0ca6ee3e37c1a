// unary: y = act(x), element by element
//
// use elem                                  Elem, load, store
// use act                                   act
// use lib/flat                              main

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

fn make(i: u32) { y[i] = store(act(load(x[i]))); }

// cast: y = x in another element type, rounded to nearest
//
// use elem                                  Elem, store
// use from                                  From, widen
// use lib/flat                              main

struct Params {
    count: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<From>;

fn make(i: u32) { y[i] = store(widen(x[i])); }

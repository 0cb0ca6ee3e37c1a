// broadcast: y[i] = combine(a, b, ..), element by element, where an operand may repeat along axes
//
// use elem                                  Elem, load, store
// use combine                               combine
// use place                                 place
// use lib/flat                              main

// Axes from the innermost on, neighbours merged where every operand allows; n5 is not needed to undo an index.
struct Params {
    count: u32,
    n0: u32, n1: u32, n2: u32, n3: u32, n4: u32,
    a0: u32, a1: u32, a2: u32, a3: u32, a4: u32, a5: u32,
    b0: u32, b1: u32, b2: u32, b3: u32, b4: u32, b5: u32,
    c0: u32, c1: u32, c2: u32, c3: u32, c4: u32, c5: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> a: array<Elem>;
@group(0) @binding(3) var<storage, read> b: array<Elem>;

fn make(i: u32) { y[i] = store(combine(place(i))); }

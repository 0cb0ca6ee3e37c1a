// strided: y[i] = x[offset + i0 s0 + .. + i5 s5], where i0 .. i5 are the indices of i in the extents n0 .. n5
// Permutations, slices, patches and repeats are all this.
//
// use elem                                  Elem
// use lib/flat                              main

struct Params {
    count: u32,
    offset: u32,
    n1: u32, n2: u32, n3: u32, n4: u32, n5: u32,
    s0: u32, s1: u32, s2: u32, s3: u32, s4: u32, s5: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;

fn make(i: u32) { y[i] = x[source(i)]; }

fn source(i: u32) -> u32 {
    var rest = i;
    var at = params.offset + (rest % params.n5) * params.s5;
    rest /= params.n5;
    at += (rest % params.n4) * params.s4;
    rest /= params.n4;
    at += (rest % params.n3) * params.s3;
    rest /= params.n3;
    at += (rest % params.n2) * params.s2;
    rest /= params.n2;
    at += (rest % params.n1) * params.s1;
    return at + rest / params.n1 * params.s0;
}

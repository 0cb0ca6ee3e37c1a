// rotary: (y[lo], y[hi]) = rotation of (x[lo], x[hi]) by the angle of row t and pair i
//
// use elem                                  Elem, load, store
// use lib/flat                              main

struct Params {
    count: u32,                              // pairs of the tensor
    half: u32,                               // pairs of a head
    heads: u32,
    time: u32,
    step: u32,                               // from the first of a pair to the first of the next
    gap: u32,                                // from the first of a pair to its second
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<Elem>;
@group(0) @binding(2) var<storage, read> x: array<Elem>;
@group(0) @binding(3) var<storage, read> cosines: array<f32>;
@group(0) @binding(4) var<storage, read> sines: array<f32>;

fn make(p: u32) {
    let row = p / params.half;
    let i = p - row * params.half;
    let angle = row / params.heads % params.time * params.half + i;
    let lo = row * 2u * params.half + i * params.step;
    let hi = lo + params.gap;
    let a = load(x[lo]);
    let b = load(x[hi]);
    let c = cosines[angle];
    let s = sines[angle];
    y[lo] = store(a * c - b * s);
    y[hi] = store(a * s + b * c);
}

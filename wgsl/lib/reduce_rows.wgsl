// Sums over LANES neighbouring invocations, so that a workgroup can hold several short rows.
// The caller declares `override WG` and `override LANES` (powers of two, LANES <= WG) and calls in uniform control flow.
// Two levels of many terms, not a tree of many levels: barriers cost more than additions.
var<workgroup> row_scratch: array<vec2<f32>, WG>;

override RADIX: u32 = 4;                     // sums of the first level; near the root of LANES, and divides it

fn row_sums(v: vec2<f32>, lane: u32) -> vec2<f32> {
    // All have read what an earlier call left.
    workgroupBarrier();
    row_scratch[lane] = v;
    workgroupBarrier();
    if lane % LANES < RADIX {
        var part = v;
        for (var i = RADIX; i < LANES; i += RADIX) { part += row_scratch[lane + i]; }
        row_scratch[lane] = part;
    }
    workgroupBarrier();
    let first = lane - lane % LANES;
    var sum = row_scratch[first];
    for (var i = 1u; i < RADIX; i++) { sum += row_scratch[first + i]; }
    return sum;
}

fn row_sum(v: f32, lane: u32) -> f32 { return row_sums(vec2(v, 0.0), lane).x; }

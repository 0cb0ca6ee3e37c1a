// Sums over LANES neighbouring invocations, so that a workgroup can hold several short rows.
// The caller declares `override WG` and `override LANES` (powers of two, LANES <= WG) and calls in uniform control flow.
var<workgroup> row_scratch: array<f32, WG>;

fn row_sum(v: f32, lane: u32) -> f32 {
    row_scratch[lane] = v;
    for (var step = LANES / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane % LANES < step { row_scratch[lane] += row_scratch[lane + step]; }
    }
    workgroupBarrier();
    let sum = row_scratch[lane - lane % LANES];
    // The next call may overwrite the scratch only when all have read it.
    workgroupBarrier();
    return sum;
}

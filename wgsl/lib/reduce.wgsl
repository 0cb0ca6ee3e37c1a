// Workgroup reductions. The caller declares `override WG` (a power of two) and calls them in uniform control flow.
const MIN_F32: f32 = -3.4028234e38;
var<workgroup> reduce_scratch: array<f32, WG>;

fn workgroup_max(v: f32, lane: u32) -> f32 {
    reduce_scratch[lane] = v;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step { reduce_scratch[lane] = max(reduce_scratch[lane], reduce_scratch[lane + step]); }
    }
    // The load has a barrier on both sides, so the scratch is free for the next call.
    return workgroupUniformLoad(&reduce_scratch[0]);
}

fn workgroup_sum(v: f32, lane: u32) -> f32 {
    reduce_scratch[lane] = v;
    for (var step = WG / 2u; step > 0u; step >>= 1u) {
        workgroupBarrier();
        if lane < step { reduce_scratch[lane] += reduce_scratch[lane + step]; }
    }
    return workgroupUniformLoad(&reduce_scratch[0]);
}

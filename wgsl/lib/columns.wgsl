// Sums of a subgroup of 8 lanes: up to 16 channels, by eight pixels in each lane. Their indices are constant, since a loop over
// them would keep them in memory. The caller declares
//   fn put(at: u32, o: u32, n: u32, r: u32, up: vec4<f32>, low: vec4<f32>), which stores the pixels of channel o + n.
enable subgroups;

const EIGHTS: u32 = 2;                       // eights of channels: 1 or 2

// The upper and the lower four pixels of each channel.
alias Sums = array<vec4<f32>, 32>;

// Adds a column of eight pixels, times one weight of each of 16 channels: a in the lanes for the first eight, b for the others.
fn add(s: ptr<function, Sums>, a: f32, b: f32, up: vec4<f32>, low: vec4<f32>) {
    var w = vec4<f32>(subgroupBroadcast(a, 0u));
    (*s)[0] = fma(w, up, (*s)[0]);
    (*s)[1] = fma(w, low, (*s)[1]);
    w = vec4<f32>(subgroupBroadcast(a, 1u));
    (*s)[2] = fma(w, up, (*s)[2]);
    (*s)[3] = fma(w, low, (*s)[3]);
    w = vec4<f32>(subgroupBroadcast(a, 2u));
    (*s)[4] = fma(w, up, (*s)[4]);
    (*s)[5] = fma(w, low, (*s)[5]);
    w = vec4<f32>(subgroupBroadcast(a, 3u));
    (*s)[6] = fma(w, up, (*s)[6]);
    (*s)[7] = fma(w, low, (*s)[7]);
    w = vec4<f32>(subgroupBroadcast(a, 4u));
    (*s)[8] = fma(w, up, (*s)[8]);
    (*s)[9] = fma(w, low, (*s)[9]);
    w = vec4<f32>(subgroupBroadcast(a, 5u));
    (*s)[10] = fma(w, up, (*s)[10]);
    (*s)[11] = fma(w, low, (*s)[11]);
    w = vec4<f32>(subgroupBroadcast(a, 6u));
    (*s)[12] = fma(w, up, (*s)[12]);
    (*s)[13] = fma(w, low, (*s)[13]);
    w = vec4<f32>(subgroupBroadcast(a, 7u));
    (*s)[14] = fma(w, up, (*s)[14]);
    (*s)[15] = fma(w, low, (*s)[15]);
    if EIGHTS == 1 { return; }
    w = vec4<f32>(subgroupBroadcast(b, 0u));
    (*s)[16] = fma(w, up, (*s)[16]);
    (*s)[17] = fma(w, low, (*s)[17]);
    w = vec4<f32>(subgroupBroadcast(b, 1u));
    (*s)[18] = fma(w, up, (*s)[18]);
    (*s)[19] = fma(w, low, (*s)[19]);
    w = vec4<f32>(subgroupBroadcast(b, 2u));
    (*s)[20] = fma(w, up, (*s)[20]);
    (*s)[21] = fma(w, low, (*s)[21]);
    w = vec4<f32>(subgroupBroadcast(b, 3u));
    (*s)[22] = fma(w, up, (*s)[22]);
    (*s)[23] = fma(w, low, (*s)[23]);
    w = vec4<f32>(subgroupBroadcast(b, 4u));
    (*s)[24] = fma(w, up, (*s)[24]);
    (*s)[25] = fma(w, low, (*s)[25]);
    w = vec4<f32>(subgroupBroadcast(b, 5u));
    (*s)[26] = fma(w, up, (*s)[26]);
    (*s)[27] = fma(w, low, (*s)[27]);
    w = vec4<f32>(subgroupBroadcast(b, 6u));
    (*s)[28] = fma(w, up, (*s)[28]);
    (*s)[29] = fma(w, low, (*s)[29]);
    w = vec4<f32>(subgroupBroadcast(b, 7u));
    (*s)[30] = fma(w, up, (*s)[30]);
    (*s)[31] = fma(w, low, (*s)[31]);
}

fn put_all(s: ptr<function, Sums>, at: u32, o: u32, r: u32) {
    put(at, o, 0, r, (*s)[0], (*s)[1]);
    put(at, o, 1, r, (*s)[2], (*s)[3]);
    put(at, o, 2, r, (*s)[4], (*s)[5]);
    put(at, o, 3, r, (*s)[6], (*s)[7]);
    put(at, o, 4, r, (*s)[8], (*s)[9]);
    put(at, o, 5, r, (*s)[10], (*s)[11]);
    put(at, o, 6, r, (*s)[12], (*s)[13]);
    put(at, o, 7, r, (*s)[14], (*s)[15]);
    if EIGHTS == 1 { return; }
    put(at, o, 8, r, (*s)[16], (*s)[17]);
    put(at, o, 9, r, (*s)[18], (*s)[19]);
    put(at, o, 10, r, (*s)[20], (*s)[21]);
    put(at, o, 11, r, (*s)[22], (*s)[23]);
    put(at, o, 12, r, (*s)[24], (*s)[25]);
    put(at, o, 13, r, (*s)[26], (*s)[27]);
    put(at, o, 14, r, (*s)[28], (*s)[29]);
    put(at, o, 15, r, (*s)[30], (*s)[31]);
}

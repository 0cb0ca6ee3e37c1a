// Sine and cosine of any angle up to some 10,000: the built-in ones may be wrong by 2^-11, and by anything outside -pi..pi.
// pi / 2 in three parts (Cody and Waite), the first two short enough that their products with k are exact; then Taylor terms.
const C1: f32 = 1.5703125;
const C2: f32 = 0.000483751296997070313;
const C3: f32 = 7.54978995e-8;

fn cos_sin(angle: f32) -> vec2<f32> {
    let k = round(angle * 0.63661977);
    let r = fma(-k, C3, fma(-k, C2, fma(-k, C1, angle)));
    let q = r * r;
    let s = r + r * q * (-0.16666667 + q * (8.3333333e-3 + q * (-1.9841270e-4 + q * 2.7557319e-6)));
    let c = 1.0 - 0.5 * q + q * q * (4.1666667e-2 + q * (-1.3888889e-3 + q * (2.4801587e-5 - q * 2.7557319e-7)));
    switch i32(k) & 3 {
        case 0: { return vec2(c, s); }
        case 1: { return vec2(-s, c); }
        case 2: { return vec2(-c, -s); }
        default: { return vec2(s, -c); }
    }
}

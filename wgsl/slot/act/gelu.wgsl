// act = gelu: v * Phi(v), with Phi from erfc(z) = t exp(-z^2) P(t), t = 1 / (1 + z / 2), z = |v| / sqrt(2).
// P is the Chebyshev fit of degree 8 over z < 9.1 (relative error 4e-8); in f32 erfc is within 2e-7, its tail within 2e-6 of itself.
fn act(v: f32) -> f32 {
    let z = 0.70710678 * abs(v);
    let t = 1.0 / (1.0 + 0.5 * z);
    var p = -0.0589797146;
    p = p * t + 0.284261513;
    p = p * t - 0.48679028;
    p = p * t + 0.277847374;
    p = p * t - 0.0266199402;
    p = p * t + 0.202731113;
    p = p * t + 0.243085606;
    p = p * t + 0.282377991;
    p = p * t + 0.2820863;
    let tail = 0.5 * t * p * exp(-z * z);
    return v * select(1.0 - tail, tail, v < 0.0);
}

//! Scalar functions that the compiler can vectorise, which it cannot do with calls into the C library.

/// `e^x` within 2 units in the last place, with infinity, zero, denormals and NaN where `f32::exp` has them.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Comparisons and not `clamp`, so that NaN passes.
    let x = if x < -105.0 { -105.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    // Adding 1.5 * 2^23 rounds to a whole number, whose bits end up at the low end.
    const MAGIC: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    // ln 2 in two parts; the first has few enough bits that its product with n is exact.
    let r = (x - n * (355.0 / 512.0)) + n * 2.121_944_4e-4;
    // Taylor terms: |r| <= ln 2 / 2, so the next one is below 2^-27.
    let p = 1.0 / 5040.0;
    let p = p * r + 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    // 2^n in two factors: n reaches from -152 to 128, further than one exponent field.
    let n = (shifted.to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) << 23) as u32);
    p * power(half) * power(n.wrapping_sub(half))
}

#[cfg(test)]
mod tests {
    use super::exp;

    #[test]
    fn exp_is_near_the_standard_one() {
        for i in -104_000..88_700 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            let ulp = (want * 1.2e-7).max(1.5e-45);
            assert!(
                (f64::from(exp(x)) - want).abs() <= 2.0 * ulp,
                "exp({x}) = {}, not {want}",
                exp(x)
            );
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}

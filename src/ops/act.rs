//! Activation functions: scalar definitions, and fast loops for the CPU.

use super::math::exp;

/// What is applied to the result of a matmul, a convolution or a norm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Act {
    /// Nothing.
    #[default]
    None,
    /// `max(v, 0)`
    Relu,
    /// `v * sigmoid(v)`
    Silu,
    /// `v * Phi(v)`, with the error function.
    Gelu,
    /// GELU by its tanh formula.
    GeluTanh,
}

impl Act {
    /// The choice for the kernel slot `act`.
    pub fn slot(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relu => "relu",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
        }
    }

    /// The definition.
    pub fn apply(self, v: f64) -> f64 {
        match self {
            Self::None => v,
            Self::Relu => relu_f64(v),
            Self::Silu => v * sigmoid_f64(v),
            Self::Gelu => gelu_f64(v),
            Self::GeluTanh => gelu_tanh_f64(v),
        }
    }

    /// The same in `f32`, fast.
    pub fn apply_f32(self, v: f32) -> f32 {
        match self {
            Self::None => v,
            Self::Relu => relu(v),
            Self::Silu => silu(v),
            Self::Gelu => gelu(v),
            Self::GeluTanh => gelu_tanh(v),
        }
    }

    /// [`Act::apply_f32`] on every value. One loop per function, so that each can be vectorised.
    pub fn apply_all(self, values: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Relu => each(values, relu),
            Self::Silu => each(values, silu),
            Self::Gelu => each(values, gelu),
            Self::GeluTanh => each(values, gelu_tanh),
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in values {
        *v = f(*v);
    }
}

// Comparisons and not `max`, which would turn a NaN into a number.
pub(super) fn relu_f64(v: f64) -> f64 {
    if v < 0.0 { 0.0 } else { v }
}

pub(super) fn sigmoid_f64(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

pub(super) fn gelu_f64(v: f64) -> f64 {
    0.5 * v * (1.0 + erf(v * std::f64::consts::FRAC_1_SQRT_2))
}

pub(super) fn gelu_tanh_f64(v: f64) -> f64 {
    let u = std::f64::consts::FRAC_2_PI.sqrt() * (v + 0.044715 * v * v * v);
    0.5 * v * (1.0 + u.tanh())
}

/// Error function by its series without cancellation (Abramowitz and Stegun 7.1.6).
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let mut term = x;
    let mut sum = x;
    let mut n = 0.0;
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

#[inline(always)]
pub(super) fn relu(v: f32) -> f32 {
    if v < 0.0 { 0.0 } else { v }
}

#[inline(always)]
pub(super) fn sigmoid(v: f32) -> f32 {
    1.0 / (1.0 + exp(-v))
}

#[inline(always)]
pub(super) fn silu(v: f32) -> f32 {
    v / (1.0 + exp(-v))
}

#[inline(always)]
pub(super) fn quick_gelu(v: f32) -> f32 {
    v / (1.0 + exp(-1.702 * v))
}

#[inline(always)]
pub(super) fn gelu_tanh(v: f32) -> f32 {
    // (1 + tanh u) / 2 is sigmoid(2 u).
    let u = 0.797_884_6 * (v + 0.044_715 * v * v * v);
    v / (1.0 + exp(-2.0 * u))
}

/// See `wgsl/slot/act/gelu.wgsl` for where the polynomial comes from.
#[inline(always)]
pub(super) fn gelu(v: f32) -> f32 {
    const P: [f32; 9] = [
        -0.058_979_715,
        0.284_261_5,
        -0.486_790_3,
        0.277_847_38,
        -0.026_619_94,
        0.202_731_1,
        0.243_085_61,
        0.282_378,
        0.282_086_3,
    ];
    let z = std::f32::consts::FRAC_1_SQRT_2 * v.abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = P.iter().fold(0.0, |p, c| p * t + c);
    let tail = 0.5 * t * p * exp(-z * z);
    v * if v < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Act; 5] = [Act::None, Act::Relu, Act::Silu, Act::Gelu, Act::GeluTanh];

    #[test]
    fn fast_is_near_the_definition() {
        for act in ALL {
            for i in -20_000..20_000 {
                let v = i as f32 * 1e-3;
                let (got, want) = (f64::from(act.apply_f32(v)), act.apply(f64::from(v)));
                let limit = 4e-7 * want.abs() + 2e-7 * f64::from(v).abs().min(1.0);
                assert!((got - want).abs() <= limit, "{act:?}({v}) = {got}, not {want}");
            }
        }
    }

    #[test]
    fn error_function_has_its_known_values() {
        for (x, want) in [
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - want).abs() < 1e-15 && (erf(-x) + want).abs() < 1e-15);
        }
    }

    #[test]
    fn extremes_stay_sound() {
        for act in ALL {
            assert!(
                act.apply_f32(f32::NAN).is_nan() && act.apply(f64::NAN).is_nan(),
                "{act:?}"
            );
            assert_eq!(act.apply_f32(1e30), 1e30, "{act:?}");
            if act != Act::None {
                assert_eq!(act.apply_f32(-1e30), 0.0, "{act:?}");
            }
        }
    }
}

//! Initial noise, computed on the host so that a seed gives the same values on every device.

use std::f32::consts::TAU;

/// Which generator makes the noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum Rng {
    /// PyTorch's CPU generator: [`TorchCpu`].
    #[default]
    Torch,
    /// PyTorch's CUDA generator as the Stable Diffusion tools imitate it: [`Philox`].
    Philox,
}

impl Rng {
    /// Name in options and metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Torch => "torch",
            Self::Philox => "philox",
        }
    }

    /// A generator at the start of the sequence of `seed`.
    pub fn start(self, seed: u64) -> Noise {
        match self {
            Self::Torch => Noise::Torch(Box::new(TorchCpu::new(seed))),
            Self::Philox => Noise::Philox(Philox::new(seed)),
        }
    }
}

/// A generator with its state: successive draws go on where the last one stopped, as with one `torch.Generator`.
#[derive(Clone, Debug)]
pub enum Noise {
    /// See [`TorchCpu`].
    Torch(Box<TorchCpu>),
    /// See [`Philox`].
    Philox(Philox),
}

impl Noise {
    /// The next `n` standard normal values: one tensor of that many elements.
    pub fn normal(&mut self, n: usize) -> Vec<f32> {
        match self {
            Self::Torch(generator) => generator.normal(n),
            Self::Philox(generator) => generator.normal(n),
        }
    }
}

/// What `torch.randn(n, generator=torch.Generator("cpu").manual_seed(seed))` gives.
pub fn torch_cpu(seed: u64, n: usize) -> Vec<f32> {
    TorchCpu::new(seed).normal(n)
}

/// What `torch.manual_seed(seed); torch.randn(n, device="cuda")` gives; see [`Philox`] for how far that holds.
pub fn philox(seed: u64, n: usize) -> Vec<f32> {
    Philox::new(seed).normal(n)
}

const STATE: usize = 624;
const SHIFT: usize = 397;

/// PyTorch's CPU generator: MT19937 and Box-Muller.
///
/// Tensors of 16 elements and more take 24-bit uniforms in blocks of 16; smaller ones take 53-bit uniforms in pairs. PyTorch evaluates
/// `log`, `cos` and `sin` of the blocks with single-precision polynomials, here they are rounded from double precision: values agree
/// to a few units in the last place, not bit for bit.
#[derive(Clone)]
pub struct TorchCpu {
    state: [u32; STATE],
    next: usize,
    spare: Option<f64>,
}

impl std::fmt::Debug for TorchCpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TorchCpu")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

impl TorchCpu {
    /// Starts the sequence of a seed. As in PyTorch, only the low 32 bits count.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; STATE];
        state[0] = seed as u32;
        for i in 1..STATE {
            let last: u32 = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self {
            state,
            next: STATE,
            spare: None,
        }
    }

    /// The next `n` standard normal values, as one tensor of `n` elements.
    pub fn normal(&mut self, n: usize) -> Vec<f32> {
        if n < 16 {
            return (0..n).map(|_| self.scalar() as f32).collect();
        }
        let mut values: Vec<f32> = (0..n).map(|_| self.uniform()).collect();
        let (blocks, rest) = values.as_chunks_mut::<16>();
        blocks.iter_mut().for_each(box_muller);
        if !rest.is_empty() {
            // PyTorch draws the last 16 values anew, over the end of the last whole block.
            let mut last = std::array::from_fn(|_| self.uniform());
            box_muller(&mut last);
            values[n - 16..].copy_from_slice(&last);
        }
        values
    }

    fn scalar(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let (u1, u2) = (self.uniform53(), self.uniform53());
        let radius = (-2.0 * (-u2).ln_1p()).sqrt();
        let theta = std::f64::consts::TAU * u1;
        self.spare = Some(radius * theta.sin());
        radius * theta.cos()
    }

    fn uniform(&mut self) -> f32 {
        (self.word() & 0x00ff_ffff) as f32 * 2f32.powi(-24)
    }

    fn uniform53(&mut self) -> f64 {
        let high = u64::from(self.word());
        let bits = (high << 32) | u64::from(self.word());
        (bits & ((1 << 53) - 1)) as f64 * 2f64.powi(-53)
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE {
            self.refill();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    fn refill(&mut self) {
        for i in 0..STATE {
            let y = (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % STATE] & 0x7fff_ffff);
            let twist = if y & 1 == 0 { 0 } else { 0x9908_b0df };
            self.state[i] = self.state[(i + SHIFT) % STATE] ^ (y >> 1) ^ twist;
        }
        self.next = 0;
    }
}

/// Eight uniform pairs `(i, i + 8)` to eight normal pairs.
fn box_muller(block: &mut [f32; 16]) {
    for i in 0..8 {
        // From [0, 1) to (0, 1], for the logarithm.
        let u1 = 1.0 - block[i];
        let radius = (-2.0 * f64::from(u1).ln() as f32).sqrt();
        let theta = f64::from(TAU * block[i + 8]);
        block[i] = radius * theta.cos() as f32;
        block[i + 8] = radius * theta.sin() as f32;
    }
}

/// Philox4x32-10 with PyTorch's CUDA seeding, in the element order that AUTOMATIC1111, ComfyUI and stable-diffusion.cpp use: element
/// `i` of the k-th tensor is the sine half of Box-Muller of the first two words at counter `[k, 0, i, 0]`.
///
/// PyTorch itself runs a grid of at most `multiprocessors * threads per multiprocessor` threads, and each thread gives four
/// elements that lie a grid apart. So values agree with a card up to that many elements (262,144 or so: a latent of 16
/// channels at 1024x1024) and its order beyond depends on the card; the tools above, and this, do not follow it there.
#[derive(Clone, Debug)]
pub struct Philox {
    key: [u32; 2],
    offset: u32,
}

impl Philox {
    /// Starts the sequence of a seed; all 64 bits count.
    pub fn new(seed: u64) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            offset: 0,
        }
    }

    /// The next `n` standard normal values, as one tensor of `n` elements.
    pub fn normal(&mut self, n: usize) -> Vec<f32> {
        let offset = self.offset;
        self.offset = offset.wrapping_add(1);
        let scale = 2f64.powi(-32);
        (0..n)
            .map(|i| {
                // The high word keeps more than 2^32 elements distinct; no tool goes there.
                let [x, y, ..] = philox4x32([offset, 0, i as u32, ((i as u64) >> 32) as u32], self.key);
                let u = f64::from(x) * scale + scale / 2.0;
                let v = (f64::from(y) * scale + scale / 2.0) * std::f64::consts::TAU;
                ((-2.0 * u.ln()).sqrt() * v.sin()) as f32
            })
            .collect()
    }
}

/// Ten rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3").
fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    for _ in 0..10 {
        let (high0, low0) = wide(0xd251_1f53, counter[0]);
        let (high1, low1) = wide(0xcd9e_8d57, counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: &[f32], wanted: &[f32]) {
        for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
            assert!((f - w).abs() <= 5.1e-5, "element {i}: {f}, wanted {w}");
        }
    }

    #[test]
    fn mt19937_of_the_standard() {
        // The C++ standard: the 10000th word of the default seed.
        let mut generator = TorchCpu::new(5489);
        let words: Vec<u32> = (0..10_000).map(|_| generator.word()).collect();
        assert_eq!((words[0], words[9999]), (3_499_211_612, 4_123_659_995));
    }

    #[test]
    fn torch_blocks() {
        // `torch.manual_seed(0); torch.randn(4, 4)` as PyTorch prints it.
        let printed = [
            -1.1258, -1.1524, -0.2506, -0.4339, 0.8487, 0.6920, -0.3160, -2.1152, 0.3223, -1.2633, 0.3500, 0.3081,
            0.1198, 1.2377, 1.1168, -0.2473,
        ];
        near(&torch_cpu(0, 16), &printed);
        // A tail keeps the values before the last 16 and draws the rest anew.
        let (whole, cut) = (torch_cpu(0, 48), torch_cpu(0, 37));
        assert_eq!(whole[..16], cut[..16]);
        let mut generator = TorchCpu::new(0);
        let _ = (0..37).map(|_| generator.uniform()).collect::<Vec<_>>();
        let mut last = std::array::from_fn(|_| generator.uniform());
        box_muller(&mut last);
        assert_eq!(cut[21..], last);
    }

    #[test]
    fn torch_scalars() {
        // `torch.manual_seed(0); torch.randn(2, 3)` and seed 42's first three, as PyTorch prints them.
        near(&torch_cpu(0, 6), &[1.5410, -0.2934, -2.1788, 0.5684, -1.0845, -1.3986]);
        near(&torch_cpu(42, 3), &[0.3367, 0.1288, 0.2345]);
        // The spare of a pair outlives the call.
        let mut generator = TorchCpu::new(0);
        near(
            &[generator.normal(1), generator.normal(2)].concat(),
            &[1.5410, -0.2934, -2.1788],
        );
        assert_eq!(torch_cpu(1 << 32, 3), torch_cpu(0, 3));
    }

    #[test]
    fn philox_known_answers() {
        // Random123's kat_vectors.
        let all = u32::MAX;
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let vectors = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([all; 4], [all; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                pi,
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, wanted) in vectors {
            assert_eq!(philox4x32(counter, key), wanted);
        }
    }

    #[test]
    fn philox_as_printed_by_automatic1111() {
        // The docstring of its rng_philox.py, seed 0; `torch.randn(4, device="cuda")` prints the first four.
        let printed = [
            -0.924_662_6,
            -0.425_344_15,
            -2.643_845_7,
            0.145_183_88,
            -0.120_866_47,
            -0.579_725_6,
            -0.622_851_2,
            -0.328_387_1,
            -1.074_542_3,
            -0.363_144_07,
            -1.671_050_7,
            2.265_505,
        ];
        for (f, w) in philox(0, 12).iter().zip(printed) {
            assert!((f - w).abs() <= 2e-6, "{f}, wanted {w}");
        }
    }

    #[test]
    fn draws_go_on() {
        for rng in [Rng::Torch, Rng::Philox] {
            let mut noise = rng.start(7);
            let (first, second) = (noise.normal(32), noise.normal(32));
            assert_ne!(first, second);
            assert_eq!(rng.start(7).normal(32), first);
            let mean = first.iter().chain(&second).sum::<f32>() / 64.0;
            assert!(mean.abs() < 0.5, "{mean}");
        }
    }
}

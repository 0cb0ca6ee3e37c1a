//! The embedded model on devices that are opened with less than the adapter has, so that the API itself refuses what is too large.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use rotile::Error;
use rotile::backend::Session;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Picture, Request, Stage};
use rotile::error::PlanError;
use rotile::gpu::Limits;
use rotile::media::Comparison;
use rotile::plan::Named;
use rotile::tensor::Tensor;

const MIB: u64 = 1 << 20;
/// What WebGPU promises: 256 MiB for a buffer, 128 MiB for a binding.
const DEFAULTS: [u64; 2] = [256 * MIB, 128 * MIB];

fn limits([max_buffer, max_binding]: [u64; 2]) -> Limits {
    Limits {
        max_buffer: Some(max_buffer),
        max_binding: Some(max_binding),
    }
}

fn engine(device: DeviceChoice, limits: Limits) -> Engine {
    let options = Options {
        device,
        limits,
        ..Options::default()
    };
    pollster::block_on(Engine::embedded(&options)).unwrap_or_else(|e| panic!("{e}"))
}

fn generate(engine: &mut Engine, request: &Request, on: impl FnMut(Event)) -> rotile::Result<Picture> {
    let mut pictures = engine.generate_blocking(request, on, &Cancel::new())?;
    Ok(pictures.remove(0))
}

#[test]
fn the_same_picture_under_small_limits() {
    if support::gpu().is_none() {
        return;
    }
    // The largest weights take 512 KiB: the last limit cuts them. At 64x64 an activation takes as much.
    let cases = [
        (None, DEFAULTS),
        (None, [16 * MIB; 2]),
        (Some(64), [MIB / 2; 2]),
        (Some(48), [3 * MIB / 8; 2]),
    ];
    for (side, forced) in cases {
        let mut request = Request::new("a red house under a blue sky").steps(2);
        (request.width, request.height) = (side, side);
        let [want, got] = [Limits::default(), limits(forced)].map(|limits| {
            let mut engine = engine(DeviceChoice::Auto, limits);
            let picture = generate(&mut engine, &request, |_| {}).unwrap_or_else(|e| panic!("{forced:?}: {e}"));
            let (planned, allocated) = engine.bytes();
            assert_eq!(planned, allocated, "{forced:?}");
            let weights = |(_, session): (_, &Session)| session.plan().weights.clone();
            let cut = |w: &Named| limits.max_binding.is_some_and(|limit| w.ty.parts(limit).len() > 1);
            let cut = engine.pipeline().sessions().flat_map(weights).any(|w| cut(&w));
            assert_eq!(
                cut,
                limits.max_binding.is_some_and(|limit| limit < MIB / 2),
                "{forced:?}"
            );
            picture
        });
        let psnr = Comparison::of(&got.image, &want.image).expect("the same size").psnr;
        println!("{forced:?}: {psnr:.1} dB");
        assert!(psnr >= 60.0, "{forced:?}: {psnr} dB");
    }
}

#[test]
fn limits_too_small_are_a_typed_error_before_anything_runs() {
    if support::gpu().is_none() {
        return;
    }
    for forced in [[MIB / 4; 2], [16 * MIB, MIB / 4], [MIB, 4096]] {
        let mut engine = engine(DeviceChoice::Auto, limits(forced));
        let mut stages = Vec::new();
        let request = Request::new("a red house").steps(2);
        let result = generate(&mut engine, &request, |event| {
            if let Event::Stage(stage) = event {
                stages.push(stage);
            }
        });
        match result {
            Err(Error::Plan(PlanError::ExceedsLimit { bytes, limit, .. })) => {
                assert!(bytes > limit && forced.contains(&limit), "{bytes} over {limit}");
            }
            other => panic!("{forced:?}: {other:?}"),
        }
        assert_eq!(stages, [Stage::Prepare], "{forced:?}");
    }
}

/// Rows and columns of a latent, and the limits on buffers and bindings.
const DECODES: [([usize; 2], [u64; 2]); 20] = [
    ([1, 1], [MIB / 4; 2]),
    ([1, 1], [4096; 2]),
    ([1, 2], [MIB / 4; 2]),
    ([3, 1], [MIB / 8; 2]),
    ([2, 2], [MIB / 4; 2]),
    ([4, 4], [MIB / 4; 2]),
    ([5, 7], [MIB; 2]),
    ([7, 5], [MIB, MIB / 2]),
    ([8, 8], [MIB / 2; 2]),
    ([8, 8], [MIB / 2 - 4; 2]),
    ([9, 8], [MIB / 2; 2]),
    ([3, 17], [MIB; 2]),
    ([12, 12], [2 * MIB; 2]),
    ([13, 11], [MIB; 2]),
    ([16, 16], [2 * MIB; 2]),
    ([16, 16], [4 * MIB, 2 * MIB]),
    ([16, 16], [MIB; 2]),
    ([17, 9], [16 * MIB; 2]),
    ([24, 16], [3 * MIB; 2]),
    ([32, 32], DEFAULTS),
];

#[test]
fn every_decode_is_right_or_refused() {
    if support::gpu().is_none() {
        return;
    }
    let mut cpu = engine(DeviceChoice::Cpu, Limits::default());
    let mut refused = 0;
    for ([height, width], forced) in DECODES {
        let shape = [1, 16, height, width];
        let mut uniform = support::uniform(&format!("{shape:?}"));
        let latent = Tensor::new(shape, (0..16 * height * width).map(|_| uniform()).collect());
        let name = format!("{height}x{width} under {forced:?}");
        let mut gpu = engine(DeviceChoice::Auto, limits(forced));
        match pollster::block_on(gpu.decode(&latent)) {
            Ok(got) => {
                let want = pollster::block_on(cpu.decode(&latent)).unwrap_or_else(|e| panic!("{name}: {e}"));
                let psnr = Comparison::of(&got, &want).expect("the same size").psnr;
                println!("{name}: {psnr:.1} dB");
                assert!(psnr >= 45.0, "{name}: {psnr} dB");
            }
            Err(Error::Plan(error @ PlanError::ExceedsLimit { .. })) => {
                refused += 1;
                println!("{name}: {error}");
            }
            Err(other) => panic!("{name}: {other}"),
        }
    }
    assert!((1..DECODES.len()).contains(&refused), "{refused} refused");
}

//! A model held in every tier: the same picture, within the bytes that it may take.

#![cfg(feature = "scenes-tiny")]
#![expect(clippy::print_stdout, reason = "people read what a test has measured")]

mod support;

use pollster::block_on;
use rotile::diffusion::MemoryOptions;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Picture, Request};
use rotile::error::{Error, PlanError};
use rotile::memory::budget::MaxMemory;
use rotile::memory::tier::{Mode, Tier};

fn engine(device: &DeviceChoice, mode: Mode, max: Option<u64>) -> Engine {
    let options = Options {
        device: device.clone(),
        memory: MemoryOptions {
            mode,
            max: max.map(MaxMemory::Most),
        },
        ..Options::default()
    };
    block_on(Engine::embedded(&options)).expect("is embedded")
}

fn generate(engine: &mut Engine, request: &Request) -> Result<(Vec<Picture>, Vec<String>), Error> {
    let mut notes = Vec::new();
    let on = |event| {
        if let Event::Note(note) = event {
            notes.push(note);
        }
    };
    let pictures = block_on(engine.generate(request, on, &Cancel::new()))?;
    Ok((pictures, notes))
}

fn devices() -> Vec<DeviceChoice> {
    let gpu = support::gpu().map(|_| DeviceChoice::Gpu(rotile::gpu::AdapterChoice::Best));
    [Some(DeviceChoice::Cpu), gpu].into_iter().flatten().collect()
}

/// Two prompts of different lengths, and two pictures.
fn request() -> Request {
    let long = "a red paper boat on a calm sea at sunset below a high cliff, ".repeat(4);
    Request::new("a red boat")
        .negative_prompt(long)
        .guidance(3.0)
        .steps(2)
        .batch(2)
        .size(64, 96)
}

#[test]
fn every_tier_gives_the_same_bytes() {
    for device in devices() {
        let request = request();
        let mut fast = engine(&device, Mode::Fast, None);
        let (wanted, _) = generate(&mut fast, &request).unwrap_or_else(|e| panic!("{e}"));
        let need = fast.engaged().expect("it ran").peak;
        assert_eq!(fast.engaged().map(|e| e.tier), Some(Tier::Resident));
        for (mode, tier) in [(Mode::Balanced, Tier::Streamed), (Mode::LowVram, Tier::Parts)] {
            let mut engine = engine(&device, mode, None);
            for _ in 0..2 {
                let (pictures, notes) = generate(&mut engine, &request).unwrap_or_else(|e| panic!("{e}"));
                let engaged = engine.engaged().expect("it ran");
                println!("{mode}: {} {} of {need}; {notes:?}", engaged.tier.name(), engaged.peak);
                assert_eq!(engaged.tier, tier);
                assert!(engaged.peak < need);
                for (picture, wanted) in pictures.iter().zip(&wanted) {
                    assert_eq!(picture.image, wanted.image, "{mode}");
                    assert!(picture.settings.contains(&("memory".into(), tier.name().into())));
                }
            }
        }
    }
}

#[test]
fn from_all_that_it_needs_down_to_the_floor() {
    for device in devices() {
        let request = request();
        let mut fast = engine(&device, Mode::Fast, None);
        let (wanted, _) = generate(&mut fast, &request).unwrap_or_else(|e| panic!("{e}"));
        let need = fast.engaged().expect("it ran").peak;
        drop(fast);
        let error = generate(&mut engine(&device, Mode::Auto, Some(1 << 16)), &request).expect_err("64 KiB");
        let Error::Plan(PlanError::MaxMemory { wanted: floor, .. }) = error else {
            panic!("{error}")
        };
        let mut tiers = Vec::new();
        for step in 0..=10 {
            let max = need - (need - floor) * step / 10;
            let mut engine = engine(&device, Mode::Auto, Some(max));
            let (pictures, notes) = generate(&mut engine, &request).unwrap_or_else(|e| panic!("{max}: {e}"));
            let engaged = engine.engaged().expect("it ran");
            let tiled = notes.iter().any(|note| note.contains("tiles"));
            let same = pictures.iter().zip(&wanted).all(|(p, w)| p.image == w.image);
            println!(
                "{max}: {}, {} at most, tiled {tiled}, same {same}",
                engaged.tier.name(),
                engaged.peak
            );
            assert!(engaged.peak <= max);
            assert!(same || tiled);
            assert!(!tiled || engaged.tier.takes_turns(), "{notes:?}");
            tiers.push(engaged.tier);
        }
        assert_eq!(tiers.first(), Some(&Tier::Resident));
        assert!(tiers.is_sorted(), "{tiers:?}");
        let error = generate(&mut engine(&device, Mode::Auto, Some(floor - 1)), &request).expect_err("below the floor");
        assert!(matches!(error, Error::Plan(PlanError::MaxMemory { .. })), "{error}");
    }
}

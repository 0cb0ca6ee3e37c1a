//! An engine with the embedded model and a request that it is given again and again.

#![allow(dead_code, reason = "each test file uses a part")]

use pollster::block_on;
use rotile::backend::Device;
use rotile::diffusion::MemoryOptions;
use rotile::diffusion::vae::VaeOptions;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Request, Stage};
use rotile::error::Error;
use rotile::media::Image;
use rotile::memory::faults::Faults;
use rotile::memory::tier::Mode;

pub(crate) const PROMPT: &str = "a red boat";
pub(crate) const STRENGTH: f32 = 0.8;

/// What to start from.
pub(crate) fn start() -> Image {
    let pixels = (0..64 * 64 * 3).map(|i| (i * 7 % 251) as u8).collect();
    Image::new(64, 64, pixels)
}

/// A picture from nothing, and one from a picture.
pub(crate) fn requests() -> [Request; 2] {
    let plain = Request::new(PROMPT).steps(2).size(64, 64).guidance(0.0).seed(3);
    [plain.clone(), plain.init_image(start(), STRENGTH)]
}

pub(crate) struct Run {
    pub(crate) engine: Engine,
    pub(crate) request: Request,
    /// What the last run has said.
    pub(crate) notes: Vec<String>,
    /// Where it was at the end.
    pub(crate) stage: Option<Stage>,
}

impl Run {
    pub(crate) fn new(device: &DeviceChoice, mode: Mode, request: &Request) -> Self {
        Self::with_vae(device, mode, request, VaeOptions::default())
    }

    pub(crate) fn with_vae(device: &DeviceChoice, mode: Mode, request: &Request, vae: VaeOptions) -> Self {
        let options = Options {
            device: device.clone(),
            memory: MemoryOptions {
                mode,
                ..MemoryOptions::default()
            },
            vae,
            ..Options::default()
        };
        Self {
            engine: block_on(Engine::embedded(&options)).expect("is embedded"),
            request: request.clone(),
            notes: Vec::new(),
            stage: None,
        }
    }

    pub(crate) fn generate(&mut self) -> Result<Image, Error> {
        self.notes.clear();
        let (notes, stage) = (&mut self.notes, &mut self.stage);
        let on = |event| match event {
            Event::Note(note) => notes.push(note),
            Event::Stage(now) => *stage = Some(now),
            _ => (),
        };
        let pictures = block_on(self.engine.generate(&self.request, on, &Cancel::new()));
        pictures.map(|mut pictures| pictures.remove(0).image)
    }

    pub(crate) fn good(&mut self) -> Image {
        self.generate().unwrap_or_else(|e| panic!("{e}"))
    }

    pub(crate) fn device(&mut self) -> Device {
        self.engine.pipeline().device().clone()
    }

    pub(crate) fn faults(&mut self) -> &Faults {
        self.engine.pipeline().device().faults()
    }

    pub(crate) fn release(&mut self) {
        self.engine.pipeline().release();
    }
}

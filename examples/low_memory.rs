//! The same picture with all of the model on the device, and with one block of it at a time.

use rotile::diffusion::MemoryOptions;
use rotile::engine::{Cancel, Engine, Event, Options, Request};
use rotile::memory::budget::MaxMemory;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let request = Request::new("a red paper boat on a calm sea at sunset")
        .steps(2)
        .size(64, 64);
    let generate = |max: Option<MaxMemory>| {
        let memory = MemoryOptions {
            max,
            ..MemoryOptions::default()
        };
        let options = Options {
            memory,
            ..Options::default()
        };
        let mut engine = pollster::block_on(Engine::embedded(&options))?;
        let on = |event| {
            if let Event::Note(note) = event {
                eprintln!("note: {note}");
            }
        };
        let pictures = engine.generate_blocking(&request, on, &Cancel::new())?;
        let engaged = engine.engaged().expect("a run has been given its memory").clone();
        eprintln!("{}: {} bytes at most", engaged.tier.name(), engaged.peak);
        Ok::<_, rotile::Error>(pictures[0].image.clone())
    };
    let resident = generate(None)?;
    // A quarter of what the CPU takes for it, and less than half of what a GPU does.
    let streamed = generate(Some("10MiB".parse()?))?;
    eprintln!("the same picture: {}", resident == streamed);
    Ok(())
}

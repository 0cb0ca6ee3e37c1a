//! The smallest program: one picture from the embedded model.

use rotile::engine::{Cancel, Engine, Options, Request};
use rotile::media::Format;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut engine = pollster::block_on(Engine::embedded(&Options::default()))?;
    let request = Request::new("a red lighthouse by the sea at night").seed(3);
    let pictures = engine.generate_blocking(&request, |event| eprintln!("{event:?}"), &Cancel::new())?;
    let png = pictures[0].image.to_bytes(Format::Png, &pictures[0].settings)?;
    std::fs::write(std::env::temp_dir().join("rotile-hello.png"), png)?;
    Ok(())
}

//! An engine as an app holds it: on a worker thread, made anew, several at once.

#![cfg(feature = "scenes-tiny")]

mod support;

use rotile::Error;
use rotile::backend::Session;
use rotile::engine::{Cancel, DeviceChoice, Engine, Event, Options, Picture, Request};
use rotile::graph::Graph;
use rotile::plan::Plan;
use std::thread;

fn is_send<T: Send>() {}

#[test]
fn everything_can_go_to_a_worker_thread() {
    is_send::<Engine>();
    is_send::<Request>();
    is_send::<Event>();
    is_send::<Picture>();
    is_send::<Error>();
    is_send::<Cancel>();
    is_send::<Session>();
    is_send::<Graph>();
    is_send::<Plan>();
}

fn devices() -> Vec<DeviceChoice> {
    let gpu = support::gpu().map(|_| DeviceChoice::Auto);
    [DeviceChoice::Cpu].into_iter().chain(gpu).collect()
}

fn engine(device: &DeviceChoice) -> Engine {
    let options = Options {
        device: device.clone(),
        ..Options::default()
    };
    pollster::block_on(Engine::embedded(&options)).expect("the embedded model")
}

fn picture(engine: &mut Engine, prompt: &str) -> Vec<u8> {
    let request = Request::new(prompt).steps(1).guidance(2.0);
    let pictures = engine.generate_blocking(&request, |_| {}, &Cancel::new());
    pictures.expect("a picture")[0].image.rgb8().to_vec()
}

#[test]
fn engines_share_nothing_and_can_be_made_anew() {
    const PROMPTS: [&str; 2] = ["a red boat", "a green tree in a meadow under a blue sky"];
    for device in devices() {
        // Each of these engines is dropped before the next is made.
        let alone = PROMPTS.map(|prompt| picture(&mut engine(&device), prompt));
        assert_ne!(alone[0], alone[1], "{device:?}");
        let mut engines = PROMPTS.map(|prompt| (engine(&device), prompt));
        let together = thread::scope(|scope| {
            let [a, b] = &mut engines;
            let run = |(engine, prompt): &mut (Engine, &str)| picture(engine, prompt);
            let (a, b) = (scope.spawn(move || run(a)), scope.spawn(move || run(b)));
            [a, b].map(|thread| thread.join().expect("no panic"))
        });
        assert!(together == alone, "{device:?}: two at once give other pictures");
    }
}

//! The progress bar, on standard error.

use indicatif::{ProgressBar, ProgressStyle};
use rotile::engine::Event;
use std::time::Duration;

/// Shows events of an engine; keeps its notes.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// What the engine had to say.
    pub(crate) notes: Vec<String>,
}

const WORKING: &str = "{msg:>8} {spinner} {elapsed}";
const COUNTING: &str = "{msg:>8} [{bar:30}] {pos}/{len} {elapsed}, {eta} left";
const BYTES: &str = "{msg:>8} [{bar:30}] {bytes}/{total_bytes} {elapsed}, {eta} left";

impl Progress {
    /// Starts with a stage.
    pub(crate) fn new(stage: &'static str) -> Self {
        let mut progress = Self {
            bar: ProgressBar::new_spinner(),
            notes: Vec::new(),
        };
        progress.stage(stage);
        progress.bar.enable_steady_tick(Duration::from_millis(200));
        progress
    }

    /// Shows an event.
    pub(crate) fn show(&mut self, event: Event) {
        match event {
            Event::Stage(stage) => self.stage(stage.name()),
            Event::Step {
                step,
                of,
                picture,
                of_pictures,
                ..
            } => {
                self.count(of * of_pictures, (picture - 1) * of + step);
            }
            Event::Tile { done, of } => self.count(of, done),
            Event::Note(text) => {
                self.bar.suspend(|| eprintln!("note: {text}"));
                self.notes.push(text);
            }
            _ => {}
        }
    }

    /// Shows how many bytes of a file are written.
    pub(crate) fn bytes(&self, of: u64, done: u64) {
        if self.bar.length().is_none() {
            self.style(BYTES);
        }
        self.bar.set_length(of);
        self.bar.set_position(done);
    }

    fn stage(&mut self, name: &'static str) {
        self.bar.unset_length();
        self.style(WORKING);
        self.bar.set_message(name);
        tracing::info!("{name}");
    }

    fn count(&mut self, of: u32, done: u32) {
        if self.bar.length().is_none() {
            self.bar.reset_eta();
            self.style(COUNTING);
        }
        self.bar.set_length(of.into());
        self.bar.set_position(done.into());
    }

    fn style(&self, template: &str) {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.set_style(style.progress_chars("=> "));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

//! Residency: which weight is where, who holds it, and what a failure leaves behind. No device is needed.

#[path = "residency/fake.rs"]
mod fake;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "residency/random.rs"]
mod random;
#[path = "residency/refusals.rs"]
mod refusals;
#[path = "residency/steps.rs"]
mod steps;
#[path = "residency/table.rs"]
mod table;

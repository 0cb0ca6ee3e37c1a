//! Residency: which weight is where, who holds it, and what a failure leaves behind. Only the last part needs a device.

#[path = "residency/device.rs"]
mod device;
#[path = "residency/fake.rs"]
mod fake;
#[path = "support/gguf.rs"]
mod gguf;
#[path = "residency/model.rs"]
mod model;
#[path = "residency/random.rs"]
mod random;
#[path = "residency/refusals.rs"]
mod refusals;
#[path = "residency/steps.rs"]
mod steps;
mod support;
#[path = "residency/table.rs"]
mod table;

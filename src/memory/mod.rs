//! Who holds which weight where, and whether there is room.

pub mod budget;
pub mod offload;
mod residency;

pub use residency::{Residency, Resident};

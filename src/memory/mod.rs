//! Who holds which weight where, and whether there is room.

pub mod budget;
pub mod estimate;
pub mod offload;
pub mod peak;
mod residency;

pub use residency::{Residency, Resident};

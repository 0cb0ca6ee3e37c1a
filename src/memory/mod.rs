//! Who holds which weight where, and whether there is room.

pub mod budget;
pub mod residency;
mod shared;

pub use shared::{Residency, Resident};

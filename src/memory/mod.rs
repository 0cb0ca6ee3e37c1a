//! Who holds which weight where.

mod residency;

pub use residency::{Residency, Resident};

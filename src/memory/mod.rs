//! Who holds which weight where, and whether there is room.

pub mod budget;
pub mod offload;
pub mod residency;
pub mod route;
pub mod tier;

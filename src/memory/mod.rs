//! Who holds which weight where, and whether there is room.

pub mod budget;
pub mod estimate;
#[doc(hidden)]
pub mod faults;
pub mod offload;
pub mod peak;
pub mod residency;
pub mod route;
pub mod tier;

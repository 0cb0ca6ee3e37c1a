//! Who holds which weight where, and whether there is room.

pub mod budget;
#[doc(hidden)]
pub mod faults;
pub mod offload;
pub mod residency;
pub mod route;
pub mod tier;

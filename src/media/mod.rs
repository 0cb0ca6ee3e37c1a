//! Pictures: files, text chunks, comparison.

pub mod compare;
#[cfg(feature = "native")]
mod file;
mod image;

pub use compare::{Comparison, psnr};
#[cfg(feature = "native")]
pub use file::{check_writable, read, write, write_with as write_file_with};
pub use image::{Format, Image};

//! Text: from a prompt to token ids.

pub mod prompt;
mod tokenizer;

pub use crate::error::TextError;
pub use tokenizer::{Tokenizer, Tokens};

//! What is put around a prompt before it is tokenised.

use super::{TextError, Tokenizer, Tokens};

/// Tokens that a Z-Image pipeline takes.
pub const Z_IMAGE_TOKENS: usize = 512;

/// Qwen3's chat: one message of the user, the answer of the assistant to come (thinking allowed, so no empty thought).
pub fn qwen3_chat(prompt: &str) -> String {
    format!("<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n")
}

/// Ids that a Z-Image pipeline computes for a prompt, also for an empty one.
///
/// # Errors
/// If the tokenizer cannot encode the prompt.
pub fn z_image(tokenizer: &Tokenizer, prompt: &str) -> Result<Tokens, TextError> {
    tokenizer.encode(&qwen3_chat(prompt), Z_IMAGE_TOKENS)
}

//! Tokenizers, as `tokenizer.json` describes them.

use super::TextError;

/// A tokenizer: text in, ids out.
#[derive(Debug)]
pub struct Tokenizer {
    file: String,
    inner: tokenizers::Tokenizer,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`; `file` is its name in messages.
    ///
    /// # Errors
    /// If it is no tokenizer.
    pub fn from_bytes(file: &str, json: &[u8]) -> Result<Self, TextError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|e| error(file, &e))?;
        // Length and padding are the model's business; some files carry settings of their training.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| error(file, &e))?;
        Ok(Self {
            file: file.to_owned(),
            inner,
        })
    }

    /// Ids of a text, at most `limit`; more are cut off at the end, as transformers does. Special tokens in the text are
    /// recognised.
    ///
    /// # Errors
    /// If the tokenizer cannot encode the text.
    pub fn encode(&self, text: &str, limit: usize) -> Result<Tokens, TextError> {
        let encoding = self.inner.encode_fast(text, true).map_err(|e| error(&self.file, &e))?;
        let mut ids = encoding.get_ids().to_vec();
        let dropped = ids.len().saturating_sub(limit);
        ids.truncate(limit);
        Ok(Tokens { ids, dropped })
    }
}

fn error(file: &str, reason: &tokenizers::Error) -> TextError {
    TextError::Tokenizer {
        file: file.to_owned(),
        reason: reason.to_string(),
    }
}

/// Token ids of one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The ids.
    pub ids: Vec<u32>,
    /// How many were cut off because the text was too long.
    pub dropped: usize,
}

impl Tokens {
    /// What to tell the user where something was cut off.
    pub fn note(&self) -> Option<String> {
        (self.dropped > 0).then(|| {
            format!(
                "the prompt is too long for this model: only the first {} of {} tokens are used",
                self.ids.len(),
                self.ids.len() + self.dropped
            )
        })
    }

    /// Checks that an embedding table of `rows` rows has them all.
    ///
    /// # Errors
    /// If an id is too large.
    pub fn check(&self, rows: usize) -> Result<(), TextError> {
        match self.ids.iter().find(|&&id| id as usize >= rows) {
            Some(&id) => Err(TextError::Vocabulary { id, rows }),
            None => Ok(()),
        }
    }
}

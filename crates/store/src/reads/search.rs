//! Reads of the full-text index.

use lodge_core::record::MessageRow;

use super::Result;

/// A session, with its newest message.
#[derive(Debug, Clone)]
pub struct SessionHead {
    pub id: String,
    pub created_at: i64,
    pub agent: String,
    pub seq: i64,
}

/// The words of a message: its text and the calls in it.
#[derive(Debug)]
pub struct MessageWords {
    pub seq: i64,
    pub at: i64,
    pub text: String,
}

/// How much one page of [`SearchReads::message_words`] may hold.
#[derive(Debug, Clone, Copy)]
pub struct WordsMax {
    pub messages: usize,
    pub bytes: usize,
    /// Of one message; the rest of it is left out.
    pub message_bytes: usize,
}

pub trait SearchReads {
    /// Those of these sessions, each given with its creation time, that the store does not have.
    fn sessions_gone(&self, known: &[(String, i64)]) -> Result<Vec<String>>;
    /// A page of all sessions, in the order of their ids.
    fn session_heads(&self, after: &str, limit: u32) -> Result<Vec<SessionHead>>;
    /// The messages of a session after one.
    fn message_words(&self, session: &str, after: i64, most: WordsMax) -> Result<Vec<MessageWords>>;
    /// A message, with its agent, and whether its turn is on the path.
    fn message(&self, session: &str, seq: i64) -> Result<Option<(MessageRow, String, bool)>>;
}

//! Tokens, and work in quarantine.

use lodge_core::quarantine::QuarantineRow;
use lodge_core::token::TokenRow;
use lodge_core::{Timestamp, TokenId};

use super::Result;

/// Which tokens a listing is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct TokenFilter<'a> {
    pub after: Option<&'a str>,
    /// Only those that are neither revoked nor over at this time.
    pub live_at: Option<Timestamp>,
}

pub trait TokenReads {
    fn tokens(&self, filter: TokenFilter<'_>, limit: u32) -> Result<Vec<TokenRow>>;
    fn token(&self, id: &TokenId) -> Result<Option<TokenRow>>;
    /// The tokens with this id prefix, at most [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_tokens(&self, given: &str) -> Result<Vec<TokenId>>;
}

pub trait QuarantineReads {
    /// All of it: there is never much.
    fn quarantine(&self) -> Result<Vec<QuarantineRow>>;
}

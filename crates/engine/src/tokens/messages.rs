//! Commands about tokens, and answers.

use lodge_core::token::TokenRow;
use lodge_core::{AgentId, Timestamp};

#[derive(Debug)]
pub enum TokenCommand {
    Issue(Box<NewToken>),
    Revoke {
        /// The store's state of it.
        row: Box<TokenRow>,
    },
}

/// A token to issue.
#[derive(Debug)]
pub struct NewToken {
    pub holder: NewTokenHolder,
    pub name: Option<String>,
    pub expires_at: Timestamp,
}

#[derive(Debug)]
pub enum NewTokenHolder {
    Operator,
    Agent(AgentId),
    /// The operator of this machine: the previous token ends.
    Credentials,
}

#[derive(Debug, Clone)]
pub struct TokenAnswer {
    pub row: TokenRow,
    /// The time of the request, which decides whether the token has expired.
    pub at: Timestamp,
}

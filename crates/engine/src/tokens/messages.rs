//! Commands about tokens.

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

//! What the engine is asked about tokens.

use lodge_core::token::TokenRow;
use lodge_core::{AgentId, Timestamp};

#[derive(Debug)]
pub enum TokenCommand {
    Issue(Box<NewToken>),
    Revoke {
        /// As the store has it.
        row: Box<TokenRow>,
    },
}

/// A token that somebody wants.
#[derive(Debug)]
pub struct NewToken {
    pub holder: TokenFor,
    pub name: Option<String>,
    pub expires_at: Timestamp,
}

#[derive(Debug)]
pub enum TokenFor {
    Operator,
    Agent(AgentId),
    /// The operator of this machine: the one before it is over.
    Credentials,
}

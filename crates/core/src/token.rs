//! Tokens: who may call, until when. Of a token only its id and its terms are recorded, never its value.

use crate::Timestamp;
use crate::id::{AgentId, TokenId};

/// The name of the token in `credentials.json`. No other token may have it.
pub const CREDENTIALS: &str = "credentials.json";

pub const OPERATOR_ISSUER: &str = "lodge:operator";
pub const AGENT_ISSUER: &str = "lodge:agent";

/// The holder of a token. Codes are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenHolder {
    /// May do everything.
    Operator,
    /// May talk to this agent.
    Agent(AgentId),
}

impl TokenHolder {
    /// The issuer in the token. Each issuer has its own rights.
    pub fn issuer(&self) -> &'static str {
        match self {
            TokenHolder::Operator => OPERATOR_ISSUER,
            TokenHolder::Agent(_) => AGENT_ISSUER,
        }
    }

    pub fn agent(&self) -> Option<&AgentId> {
        match self {
            TokenHolder::Operator => None,
            TokenHolder::Agent(agent) => Some(agent),
        }
    }

    pub fn code(&self) -> i64 {
        match self {
            TokenHolder::Operator => 1,
            TokenHolder::Agent(_) => 2,
        }
    }

    pub fn from_code(code: i64, agent: Option<AgentId>) -> Option<TokenHolder> {
        match (code, agent) {
            (1, None) => Some(TokenHolder::Operator),
            (2, Some(agent)) => Some(TokenHolder::Agent(agent)),
            (_, Some(_) | None) => None,
        }
    }
}

/// A recorded token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRow {
    pub id: TokenId,
    pub holder: TokenHolder,
    pub name: Option<String>,
    pub issued_at: Timestamp,
    pub expires_at: Timestamp,
    /// Set once, and never cleared.
    pub revoked_at: Option<Timestamp>,
}

impl TokenRow {
    pub fn standing(&self, now: Timestamp) -> TokenStatus {
        if self.revoked_at.is_some() {
            TokenStatus::Revoked
        } else if self.expires_at <= now {
            TokenStatus::Expired
        } else {
            TokenStatus::Live
        }
    }
}

/// Whether a token is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenStatus {
    Live,
    Expired,
    Revoked,
}

impl TokenStatus {
    pub fn word(self) -> &'static str {
        match self {
            TokenStatus::Live => "live",
            TokenStatus::Expired => "expired",
            TokenStatus::Revoked => "revoked",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lives_until_the_instant_of_its_end_and_never_after_it_was_revoked() {
        let at = Timestamp::from_ms;
        let mut row = TokenRow {
            id: TokenId::new(&mut crate::IdSource::new(1), at(0)),
            holder: TokenHolder::Operator,
            name: None,
            issued_at: at(0),
            expires_at: at(10),
            revoked_at: None,
        };
        assert_eq!((row.standing(at(9)), row.standing(at(10))), (TokenStatus::Live, TokenStatus::Expired));
        row.revoked_at = Some(at(5));
        assert_eq!((row.standing(at(1)), row.standing(at(20))), (TokenStatus::Revoked, TokenStatus::Revoked));
    }

    #[test]
    fn a_stored_holder_comes_back_as_it_was_and_nonsense_as_nobody() {
        let agent: AgentId = "agt_1".parse().unwrap();
        for holder in [TokenHolder::Operator, TokenHolder::Agent(agent.clone())] {
            assert_eq!(TokenHolder::from_code(holder.code(), holder.agent().cloned()), Some(holder));
        }
        assert_eq!(TokenHolder::from_code(1, Some(agent)), None);
        assert_eq!(TokenHolder::from_code(2, None), None);
    }
}

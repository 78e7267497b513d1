//! Tokens: issued and revoked by commits, and revoked with their agent.

pub mod messages;

use lodge_core::agent::AgentState;
use lodge_core::limits::{LIVE_TOKENS_MAX, TOKEN_NAME_BYTES_MAX};
use lodge_core::token::{CREDENTIALS, TokenHolder, TokenRow, TokenStatus};
use lodge_core::{AgentId, TokenId};

use crate::agents::no_agent;
use crate::batch::Step;
use crate::{Answer, Caller, Effect, Engine, NewToken, NewTokenHolder, Refusal, TokenAnswer};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    #[error("{LIVE_TOKENS_MAX} tokens are live already")]
    TooMany,
    #[error("that cannot be a token's name")]
    BadName,
}

impl TokenRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            TokenRefusal::TooMany => "token.too_many",
            TokenRefusal::BadName => "token.bad_name",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            TokenRefusal::TooMany => "`lodge token ls` lists them, `lodge token revoke` ends one".to_owned(),
            TokenRefusal::BadName => format!(
                "1 to {TOKEN_NAME_BYTES_MAX} bytes without control characters, and not `{CREDENTIALS}`"
            ),
        }
    }
}

impl Engine {
    /// The answer has the terms of the token; the daemon computes its value with the key.
    pub(crate) fn issue_token(&mut self, caller: Caller, new: NewToken) -> Result<(), Refusal> {
        let (holder, name) = match new.holder {
            NewTokenHolder::Credentials => {
                self.revoke_where(|row| row.name.as_deref() == Some(CREDENTIALS));
                (TokenHolder::Operator, Some(CREDENTIALS.to_owned()))
            }
            NewTokenHolder::Operator => (TokenHolder::Operator, checked_name(new.name)?),
            NewTokenHolder::Agent(agent) => {
                let known = self.agents.get(&agent).ok_or_else(|| no_agent(&agent))?;
                if known.row.state == AgentState::Removing {
                    return Err(no_agent(&agent));
                }
                (TokenHolder::Agent(agent), checked_name(new.name)?)
            }
        };
        self.tokens.retain(|_, row| row.standing(self.step.now) == TokenStatus::Live);
        if self.tokens.len() >= LIVE_TOKENS_MAX {
            return Err(TokenRefusal::TooMany.into());
        }
        let row = TokenRow {
            id: TokenId::new(&mut self.ids, self.step.now),
            holder,
            name,
            issued_at: self.step.now,
            expires_at: new.expires_at,
            revoked_at: None,
        };
        self.tokens.insert(row.id.clone(), row.clone());
        let answer = Answer::Token(Box::new(TokenAnswer { row: row.clone(), at: self.step.now }));
        record(&mut self.step, row);
        self.reply(caller, answer);
        Ok(())
    }

    /// A second revocation changes nothing. `row` is the store's state; memory takes precedence.
    pub(crate) fn revoke_token(&mut self, caller: Caller, mut row: TokenRow) {
        self.tokens.remove(&row.id);
        if row.revoked_at.is_none() {
            row.revoked_at = Some(self.step.now);
            record(&mut self.step, row.clone());
        }
        let answer = Answer::Token(Box::new(TokenAnswer { row: row.clone(), at: self.step.now }));
        self.reply(caller, answer);
    }

    pub(crate) fn revoke_tokens_of(&mut self, agent: &AgentId) {
        self.revoke_where(|row| row.holder.agent() == Some(agent));
    }

    fn revoke_where(&mut self, over: impl Fn(&TokenRow) -> bool) {
        for (_, mut row) in self.tokens.extract_if(.., |_, row| over(row)) {
            row.revoked_at = Some(self.step.now);
            record(&mut self.step, row);
        }
    }
}

/// The listeners apply it before the caller is answered: the answer is true when it is sent.
fn record(step: &mut Step, row: TokenRow) {
    step.write(row.clone());
    step.act(Effect::Token(Box::new(row)));
}

fn checked_name(name: Option<String>) -> Result<Option<String>, TokenRefusal> {
    let Some(name) = name else { return Ok(None) };
    let fits = (1..=TOKEN_NAME_BYTES_MAX).contains(&name.len()) && !name.chars().any(char::is_control);
    if fits && name != CREDENTIALS {
        return Ok(Some(name));
    }
    Err(TokenRefusal::BadName)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lodge_core::lineage::Policy;
    use lodge_core::record::{StoredState, Write};
    use lodge_core::retry::Backoff;
    use lodge_core::{IdSource, Timestamp};

    use super::*;
    use crate::{Batch, BatchOutput, Command, Host, Input, Settings, TokenCommand};

    const NOW: Timestamp = Timestamp::from_ms(1_000);

    fn engine(tokens: Vec<TokenRow>) -> Engine {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(30) };
        let settings = Settings {
            policy: Policy::Revive,
            backoff,
            max_concurrent: 10,
            max_jobs: 10,
            job_output: 1 << 20,
        };
        let host = Host { boot: "boot".into(), own_uids: false, settings, render: crate::tests::rendered };
        let loaded = StoredState { tokens, ..StoredState::default() };
        Engine::boot(loaded, host, IdSource::new(3), "0", NOW).0
    }

    fn ask(engine: &mut Engine, command: Command, now: Timestamp) -> Batch {
        engine.step([Input::Api { ticket: 1, request: None, command }], now)
    }

    fn issue(engine: &mut Engine, holder: NewTokenHolder, now: Timestamp) -> Batch {
        let new = NewToken { holder, name: None, expires_at: NOW.plus_ms(100) };
        ask(engine, Command::Token(TokenCommand::Issue(Box::new(new))), now)
    }

    fn written(batch: &Batch) -> Vec<TokenRow> {
        let rows = batch.writes.iter().filter_map(|write| match write {
            Write::Token(row) => Some(row.clone()),
            _ => None,
        });
        rows.collect()
    }

    fn refusal(batch: &Batch) -> Option<String> {
        batch.after.iter().find_map(|out| match out {
            BatchOutput::Reply { reply: Err(body), .. } => Some(body.code().to_owned()),
            BatchOutput::Reply { reply: Ok(_), .. } | BatchOutput::Act(_) => None,
        })
    }

    #[test]
    fn the_listeners_apply_a_token_before_its_caller_is_answered() {
        let mut engine = engine(Vec::new());
        let issued = issue(&mut engine, NewTokenHolder::Operator, NOW);
        let row = written(&issued).remove(0);
        let revoked = ask(&mut engine, Command::Token(TokenCommand::Revoke { row: Box::new(row) }), NOW);
        for batch in [issued, revoked] {
            assert!(matches!(
                batch.after[..],
                [BatchOutput::Act(Effect::Token(_)), BatchOutput::Reply { reply: Ok(_), .. }]
            ));
        }
        assert!(engine.tokens.is_empty());
    }

    #[test]
    fn a_new_credential_ends_the_one_before_it_and_nobody_elses() {
        let mut engine = engine(Vec::new());
        let first = written(&issue(&mut engine, NewTokenHolder::Credentials, NOW)).remove(0);
        issue(&mut engine, NewTokenHolder::Operator, NOW);
        let rows = written(&issue(&mut engine, NewTokenHolder::Credentials, NOW));
        assert_eq!((&rows[0].id, rows[0].revoked_at), (&first.id, Some(NOW)));
        assert_eq!((rows.len(), rows[1].revoked_at, engine.tokens.len()), (2, None, 2));
    }

    #[test]
    fn so_many_tokens_may_live_and_those_whose_time_is_over_do_not_count() {
        let mut engine = engine(Vec::new());
        for _ in 0..LIVE_TOKENS_MAX {
            assert_eq!(refusal(&issue(&mut engine, NewTokenHolder::Operator, NOW)), None);
        }
        assert_eq!(
            refusal(&issue(&mut engine, NewTokenHolder::Operator, NOW)),
            Some("token.too_many".into())
        );
        assert_eq!(refusal(&issue(&mut engine, NewTokenHolder::Operator, NOW.plus_ms(100))), None);
        assert_eq!(engine.tokens.len(), 1);
    }

    #[test]
    fn revoking_what_is_revoked_already_writes_nothing() {
        let mut engine = engine(Vec::new());
        let mut row = written(&issue(&mut engine, NewTokenHolder::Operator, NOW)).remove(0);
        row.revoked_at = Some(NOW);
        let again =
            ask(&mut engine, Command::Token(TokenCommand::Revoke { row: Box::new(row) }), NOW.plus_ms(5));
        assert!(written(&again).is_empty());
    }
}

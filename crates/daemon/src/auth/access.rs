//! Which tokens open the doors now, and the callers who came in with them.
//!
//! A copy of the committed state: a token is added after the commit that issued it, and removed after the commit that
//! revoked it, before either is published.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lodge_core::token::{CREDENTIALS, TokenHolder, TokenRow, TokenStatus};
use lodge_core::{AgentId, Timestamp, TokenId};
use tokio_util::sync::CancellationToken;

use crate::shell::now;

/// How long a silent connection may be open without a look at the clock: one that was set forward ends tokens, too.
const LOOK_EVERY: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub struct Access {
    live: Mutex<HashMap<TokenId, LiveToken>>,
}

#[derive(Debug)]
struct LiveToken {
    row: TokenRow,
    revoked: CancellationToken,
}

/// A caller whose token was good when it came.
#[derive(Debug, Clone)]
pub struct ApiCaller {
    /// Under this name its requests are kept: every token is a caller of its own. The one in `credentials.json` is the
    /// same caller when it is replaced, because its user is the same.
    pub caller: String,
    /// Under this name releases before kept them, for a day: all operators were one caller, and all tokens of an agent.
    pub caller_before: String,
    pub token: TokenRow,
    revoked: CancellationToken,
}

impl Access {
    pub fn of(rows: impl IntoIterator<Item = TokenRow>, now: Timestamp) -> Access {
        let access = Access::default();
        rows.into_iter().for_each(|row| access.put(row, now));
        access
    }

    /// Adds a token, or disconnects the callers of a revoked one.
    pub fn put(&self, row: TokenRow, now: Timestamp) {
        let mut live = self.live();
        live.retain(|_, held| held.row.standing(now) != TokenStatus::Expired);
        match row.revoked_at {
            // A token that is present keeps its callers: they must be disconnected with it.
            None => {
                live.entry(row.id.clone())
                    .or_insert_with(|| LiveToken { row, revoked: CancellationToken::new() });
            }
            Some(_) => {
                if let Some(held) = live.remove(&row.id) {
                    held.revoked.cancel();
                }
            }
        }
    }

    /// The caller of this token; `None` if it was revoked or never recorded.
    pub fn enter(&self, id: &TokenId) -> Option<ApiCaller> {
        let live = self.live();
        let held = live.get(id)?;
        let is_credentials = held.row.name.as_deref() == Some(CREDENTIALS);
        let caller = if is_credentials { CREDENTIALS.to_owned() } else { held.row.id.to_string() };
        let caller_before = match &held.row.holder {
            TokenHolder::Operator => "operator".to_owned(),
            TokenHolder::Agent(agent) => agent.to_string(),
        };
        Some(ApiCaller { caller, caller_before, token: held.row.clone(), revoked: held.revoked.clone() })
    }

    fn live(&self) -> MutexGuard<'_, HashMap<TokenId, LiveToken>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiCaller {
    /// The one agent this caller may talk to; none for an operator, who may talk to all.
    pub fn agent(&self) -> Option<&AgentId> {
        self.token.holder.agent()
    }

    pub fn standing(&self) -> TokenStatus {
        if self.revoked.is_cancelled() { TokenStatus::Revoked } else { self.token.standing(now()) }
    }

    pub fn is_over(&self) -> bool {
        self.standing() != TokenStatus::Live
    }

    /// Ends when the token does: revoked, or its time is over.
    pub async fn over(&self) -> TokenStatus {
        loop {
            let left_ms = self.token.expires_at.ms() - now().ms();
            let Ok(left_ms @ 1..) = u64::try_from(left_ms) else { return TokenStatus::Expired };
            tokio::select! {
                () = self.revoked.cancelled() => return TokenStatus::Revoked,
                () = tokio::time::sleep(Duration::from_millis(left_ms).min(LOOK_EVERY)) => {}
            }
        }
    }
}

#[cfg(test)]
impl ApiCaller {
    pub(crate) fn with(token: TokenRow) -> ApiCaller {
        let access = Access::of([token.clone()], now());
        access.enter(&token.id).unwrap()
    }
}

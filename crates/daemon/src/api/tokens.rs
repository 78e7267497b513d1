//! `token/…`: issuing, listing and revoking.
//!
//! A token's value is signed here from what was recorded, so a request that is sent again gets the same one although
//! none is kept.

use std::sync::Arc;

use lodge_core::TokenId;
use lodge_core::token::TokenRow;
use lodge_proto::{
    ApiMethod, ErrorBody, IssueToken, ListTokens, RevokeToken, TokenIssueParams, TokenIssued, TokenList,
    TokenListParams, TokenRef, TokenView, error_code,
};
use lodge_store::TokenFilter;
use serde_json::Value;

use super::methods::{Reply, changed, find_agent, internal, is_id_prefix, no_method, page, reply, unique_id};
use super::{Api, params};
use crate::auth::DAY_MS;
use crate::read_view::ReadView;
use crate::shell::{Shell, now};
use crate::view;
use lodge_engine::{Answer, Command, NewToken, NewTokenHolder, RequestKey, TokenCommand};

const EXPIRES_DEFAULT_S: u64 = 90 * 24 * 60 * 60;
const EXPIRES_MAX_S: u64 = 3_650 * 24 * 60 * 60;

pub(super) async fn call(api: &Api, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        IssueToken::NAME => issue(api, key, params::<IssueToken>(given)?).await,
        ListTokens::NAME => {
            let given = params::<ListTokens>(given)?;
            api.shell.read(move |at| reply::<ListTokens>(list(at, &given))).await
        }
        RevokeToken::NAME => {
            changed::<RevokeToken>(&revoke(&api.shell, key, params::<RevokeToken>(given)?).await?)
        }
        _other => Err(no_method(method)),
    }
}

async fn issue(api: &Api, key: Option<RequestKey>, given: TokenIssueParams) -> Reply {
    let shell = &api.shell;
    let holder = match given.agent.as_deref() {
        None => NewTokenHolder::Operator,
        Some(agent) => {
            let agent = agent.to_owned();
            NewTokenHolder::Agent(shell.read_few(move |at| find_agent(at, &agent)).await?)
        }
    };
    let expires_in_s = given.expires_in_s.unwrap_or(EXPIRES_DEFAULT_S);
    if !(1..=EXPIRES_MAX_S).contains(&expires_in_s) {
        let days = EXPIRES_MAX_S.cast_signed() * 1_000 / DAY_MS;
        let what = format!("a token is good for a second at least, and for {days} days at most");
        return Err(ErrorBody::new("token.bad_expiry", what)
            .hint(format!("give 1 to {EXPIRES_MAX_S} seconds, which are {days} days")));
    }
    let expires_at = now().plus_ms(expires_in_s.cast_signed() * 1_000);
    let new = NewToken { holder, name: given.name, expires_at };
    let answer = shell.ask(key, Command::Token(TokenCommand::Issue(Box::new(new)))).await?;
    issued(api, answer).await
}

/// The answer to a request for a token, with the value that was not recorded with it.
pub(super) async fn issued(api: &Api, answer: Answer) -> Reply {
    let broken = |cause: String| {
        ErrorBody::new("daemon.internal", "the token was issued, but its value could not be computed")
            .because(cause)
    };
    let view: TokenView = match &answer {
        Answer::Token(token) => view::token(&token.row, token.at),
        recorded => {
            serde_json::from_str(&view::rendered(recorded).0).map_err(|error| broken(error.to_string()))?
        }
    };
    let id = view.id.clone();
    let row = api.shell.read_few(move |at| by_id(at, &id)).await?;
    let token = api.gate.value(&row).map_err(|error| broken(error.to_string()))?;
    reply::<IssueToken>(Ok(TokenIssued { view, token }))
}

fn list(at: &ReadView<'_>, given: &TokenListParams) -> Result<TokenList, ErrorBody> {
    let (limit, now) = (page(given.limit), now());
    let live_at = (!given.all).then_some(now);
    let filter = TokenFilter { after: given.after.as_deref(), live_at };
    let rows = at.store.tokens(filter, limit).map_err(internal)?;
    let next = (rows.len() == limit as usize).then(|| rows.last().map(|last| last.id.to_string())).flatten();
    Ok(TokenList { tokens: rows.iter().map(|row| view::token(row, now)).collect(), next })
}

async fn revoke(shell: &Arc<Shell>, key: Option<RequestKey>, given: TokenRef) -> Result<Answer, ErrorBody> {
    let row = shell.read_few(move |at| one(at, &given.token)).await?;
    Ok(shell.ask(key, Command::Token(TokenCommand::Revoke { row: Box::new(row) })).await?)
}

fn one(at: &ReadView<'_>, given: &str) -> Result<TokenRow, ErrorBody> {
    if !is_id_prefix(given, TokenId::PREFIX) {
        return Err(no_token(given));
    }
    let found = at.store.find_tokens(given).map_err(internal)?;
    let id = unique_id(found, given, error_code!("token.ambiguous"), "tokens")?;
    by_id(at, id.ok_or_else(|| no_token(given))?.as_str())
}

fn by_id(at: &ReadView<'_>, id: &str) -> Result<TokenRow, ErrorBody> {
    let parsed = id.parse().map_err(|_| no_token(id))?;
    at.store.token(&parsed).map_err(internal)?.ok_or_else(|| no_token(id))
}

/// What was given may be a token's value, typed in place of its id: it is not repeated.
fn no_token(given: &str) -> ErrorBody {
    let message = match given.parse::<TokenId>() {
        Ok(id) => format!("no token `{id}`"),
        Err(_) => "no token has that id".to_owned(),
    };
    ErrorBody::new("token.not_found", message)
        .hint("`lodge token ls -a` lists all tokens; give an id, not a value")
}

//! What a token of an agent reaches: that agent and what belongs to it. Everything else looks as if it were not there.

use lodge_core::{AgentId, SessionId};
use lodge_proto::{ApiMethod, AttachClient, AttachParams, ErrorBody, TokenReach};
use serde_json::Value;

use super::methods::{self, internal};
use super::{jobs, turns};
use crate::auth::ApiCaller;
use crate::auth::rights;
use crate::hub::EventFilter;
use crate::read_view::ReadView;

/// Refuses what the caller may not call, and leaves of the parameters what it may reach.
pub(super) fn narrow(
    at: &ReadView<'_>,
    who: &ApiCaller,
    method: &str,
    mut given: Value,
) -> Result<Value, ErrorBody> {
    let (Some(reach), Some(own)) = (rights::admit(who, method)?, who.agent()) else { return Ok(given) };
    match reach {
        TokenReach::Nobodys => {}
        TokenReach::Agent => fill_in(at, own, &mut given)?,
        TokenReach::AgentAndSession => {
            fill_in(at, own, &mut given)?;
            name_session(at, own, &mut given)?;
        }
        TokenReach::AgentAndKnownSession => {
            fill_in(at, own, &mut given)?;
            name_known_session(at, own, &mut given)?;
        }
        TokenReach::Session => name_known_session(at, own, &mut given)?,
        TokenReach::Turn => own_turn(at, own, &mut given)?,
        TokenReach::Job => own_job(at, own, &mut given)?,
    }
    Ok(given)
}

/// The parameters of an attach as far as the caller reaches. All that happens is, for an agent's token, all of its agent.
pub(super) fn attach(
    at: &ReadView<'_>,
    who: &ApiCaller,
    mut given: AttachParams,
) -> Result<AttachParams, ErrorBody> {
    rights::admit(who, AttachClient::NAME)?;
    let Some(own) = who.agent() else { return Ok(given) };
    if let Some(agent) = &given.agent {
        given.agent = Some(own_agent(at, own, agent)?);
    }
    if let Some(session) = &given.session {
        given.session = Some(own_session(at, own, session)?);
    }
    if let Some(job) = &given.job {
        given.job = Some(jobs::find(at, job, Some(own))?.to_string());
    }
    if std::mem::take(&mut given.all) {
        if given.agent.is_some() || given.session.is_some() || given.job.is_some() {
            given.all = true;
        } else {
            given.agent = Some(own.to_string());
        }
    }
    Ok(given)
}

/// The events that the caller may see, of those that a filter selects. This is the final check.
pub(super) fn events(who: &ApiCaller, filter: EventFilter) -> EventFilter {
    match who.agent() {
        None => filter,
        Some(own) => EventFilter { stream: Some(own.to_string()), ..filter },
    }
}

/// The agent that an agent's token names, when it is its own.
pub(super) fn own_agent(at: &ReadView<'_>, own: &AgentId, given: &str) -> Result<String, ErrorBody> {
    let is_id = given.starts_with(AgentId::PREFIX) && own.as_str().starts_with(given);
    let is_name = || -> Result<bool, ErrorBody> {
        let found = at.store.agent(own).map_err(internal)?;
        Ok(found.is_some_and(|found| found.row.name == given))
    };
    if is_id || is_name()? { Ok(own.to_string()) } else { Err(methods::no_agent(given)) }
}

/// Names the caller's agent where none is named, and refuses any other.
fn fill_in(at: &ReadView<'_>, own: &AgentId, given: &mut Value) -> Result<(), ErrorBody> {
    let Some(fields) = given.as_object_mut() else { return Ok(()) };
    match fields.get("agent") {
        None | Some(Value::Null) => {
            fields.insert("agent".to_owned(), own.to_string().into());
        }
        Some(Value::String(agent)) => {
            let agent = own_agent(at, own, agent)?;
            fields.insert("agent".to_owned(), agent.into());
        }
        // The method says what is wrong with it.
        Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {}
    }
    Ok(())
}

/// Puts the whole id in place of what the caller names a session of its agent with.
fn name_session(at: &ReadView<'_>, own: &AgentId, given: &mut Value) -> Result<(), ErrorBody> {
    let Some(fields) = given.as_object_mut() else { return Ok(()) };
    // Without one, or with something else, the method says what is wrong.
    let Some(session) = fields.get("session").and_then(Value::as_str) else { return Ok(()) };
    let id = own_session(at, own, session)?;
    fields.insert("session".to_owned(), id.into());
    Ok(())
}

/// The session that an agent's token means. Ids are the same for all agents, so one that is not its agent's yet is
/// prefixed with its agent: it cannot find out by trying which ids others have, nor take one that another could want.
fn own_session(at: &ReadView<'_>, own: &AgentId, given: &str) -> Result<String, ErrorBody> {
    // What cannot be an id is the method's business.
    let Ok(id) = given.parse::<SessionId>() else { return Ok(given.to_owned()) };
    let prefix = format!("{own}:");
    match at.store.session(&id).map_err(internal)? {
        Some(found) if found.row.agent == *own => return Ok(given.to_owned()),
        // An operator gave it to another agent.
        Some(_) if given.starts_with(&prefix) => return Err(crate::view::no_session(&given)),
        None if given.starts_with(&prefix) => return Ok(given.to_owned()),
        Some(_) | None => {}
    }
    let whole = format!("{prefix}{given}");
    if whole.parse::<SessionId>().is_err() {
        let most = SessionId::LEN_MAX - prefix.len();
        return Err(ErrorBody::new("session.bad_id", format!("the session id is longer than {most} bytes"))
            .hint("with an agent's token, use an id of at most that length, or omit it"));
    }
    Ok(whole)
}

/// The same for a session that must exist.
fn name_known_session(at: &ReadView<'_>, own: &AgentId, given: &mut Value) -> Result<(), ErrorBody> {
    let named = given.get("session").and_then(Value::as_str).map(str::to_owned);
    name_session(at, own, given)?;
    match named {
        Some(named) => known_session(at, &named, given.get("session").and_then(Value::as_str)),
        None => Ok(()),
    }
}

/// Refuses a session that is not there, by the name it was given.
fn known_session(at: &ReadView<'_>, named: &str, id: Option<&str>) -> Result<(), ErrorBody> {
    let Some(id) = id.and_then(|id| id.parse::<SessionId>().ok()) else { return Ok(()) };
    match at.store.session(&id).map_err(internal)? {
        Some(_) => Ok(()),
        None => Err(crate::view::no_session(&named)),
    }
}

/// Puts the whole id in place of what the caller names a job of its agent with.
fn own_job(at: &ReadView<'_>, own: &AgentId, given: &mut Value) -> Result<(), ErrorBody> {
    let Some(fields) = given.as_object_mut() else { return Ok(()) };
    // Without one, or with something else, the method says what is wrong.
    let Some(job) = fields.get("job").and_then(Value::as_str) else { return Ok(()) };
    let id = jobs::find(at, job, Some(own))?;
    fields.insert("job".to_owned(), id.to_string().into());
    Ok(())
}

/// Puts the whole id in place of what the caller names a turn of its agent with.
fn own_turn(at: &ReadView<'_>, own: &AgentId, given: &mut Value) -> Result<(), ErrorBody> {
    let Some(fields) = given.as_object_mut() else { return Ok(()) };
    // Without one, or with something else, the method says what is wrong.
    let Some(turn) = fields.get("turn").and_then(Value::as_str) else { return Ok(()) };
    let id = turns::find(at, turn, Some(own))?;
    fields.insert("turn".to_owned(), id.to_string().into());
    Ok(())
}

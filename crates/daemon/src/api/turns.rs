//! Turns: sent, found, listed, read, interrupted.

use std::sync::Arc;

use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, TurnId};
use lodge_model::schema::{SCHEMA_BYTES_MAX, Schema};
use lodge_proto::*;
use lodge_store::{TurnFilter, TurnScope};
use serde_json::Value;

use super::methods::{
    Reply, changed, find_agent, find_agent_ever, internal, is_id_prefix, no_method, no_turn, other_agent,
    page, reply, session_id, unique_id,
};
use super::{params, sessions, turn_retry};
use crate::compute::Charge;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::{Answer, Command, NewTurn, RequestKey, SessionChoice, TurnCommand};

// Clients refuse a longer message before they send it.
const _: () = assert!(MESSAGE_BYTES_MAX == lodge_core::limits::MESSAGE_BYTES_MAX);

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        SendTurn::NAME => changed::<SendTurn>(&turn_send(shell, key, params::<SendTurn>(given)?).await?),
        GetTurn::NAME => {
            let given = params::<GetTurn>(given)?;
            shell.read(move |at| reply::<GetTurn>(turn_get(at, &given))).await
        }
        ListTurns::NAME => {
            let given = params::<ListTurns>(given)?;
            shell.read(move |at| reply::<ListTurns>(list(at, &given))).await
        }
        InterruptTurn::NAME => {
            let given = params::<InterruptTurn>(given)?;
            let id = shell.read_few(move |at| find(at, &given.turn, None)).await?;
            changed::<InterruptTurn>(&shell.ask(key, Command::Turn(TurnCommand::Interrupt { id })).await?)
        }
        RetryTurn::NAME => {
            changed::<RetryTurn>(&turn_retry::retry(shell, key, params::<RetryTurn>(given)?).await?)
        }
        _other => Err(no_method(method)),
    }
}

async fn turn_send(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: TurnSendParams,
) -> Result<Answer, ErrorBody> {
    let TurnSendParams { agent, session, sender, text, schema, .. } = given;
    let of = sender.clone();
    let read = move |at: &ReadView<'_>| {
        let agent = find_agent(at, &agent)?;
        let session = chosen_session(at, &agent, session.as_deref(), of.as_deref())?;
        Ok::<_, ErrorBody>((agent, session))
    };
    let (agent, session) = shell.read_few(read).await?;
    let schema = match schema {
        // Off the async workers: a schema of some kilobytes can take a while to read.
        Some(schema) => {
            let check = move |_: &Charge| checked_schema(schema);
            Some(shell.compute.run(agent.as_str(), SCHEMA_BYTES_MAX, check).await??)
        }
        None => None,
    };
    let new = NewTurn { agent, session, sender, text, schema };
    Ok(shell.ask(key, Command::Turn(TurnCommand::Send(Box::new(new)))).await?)
}

/// The session that a turn is sent to, as it is recorded.
fn chosen_session(
    at: &ReadView<'_>,
    agent: &AgentId,
    session: Option<&str>,
    sender: Option<&str>,
) -> Result<SessionChoice, ErrorBody> {
    match (session, sender) {
        (Some(_), Some(_)) => Err(ErrorBody::new("params.invalid", "name a session or a sender, not both")),
        (Some(session), None) => {
            let id = session_id(session)?;
            let fact = at.store.session_fact(&id).map_err(internal)?;
            match &fact {
                Some(fact) if fact.row.agent != *agent => Err(other_agent(at, &id, &fact.row.agent)),
                Some(_) | None => Ok(SessionChoice::Named { id, fact }),
            }
        }
        (None, Some(sender)) => {
            // A sender's session has an id of its own, so that two first messages at once are one session.
            let mut fact = at.store.session_of(agent, sender).map_err(internal)?;
            let id = match &fact {
                Some(fact) => fact.row.id.clone(),
                None => sender_session(&at.state_key.0, agent, sender)?,
            };
            if fact.is_none() {
                // A session with this id may have been created by name.
                fact = at.store.session_fact(&id).map_err(internal)?;
            }
            Ok(SessionChoice::Named { id, fact })
        }
        (None, None) => Ok(SessionChoice::Fresh),
    }
}

/// A schema that answers can be checked against, as text.
fn checked_schema(given: Value) -> Result<String, ErrorBody> {
    let schema = Schema::new(given).map_err(|error| {
        let mut body = ErrorBody::new("turn.bad_schema", error.to_string());
        body.data.hint = error.hint();
        body
    })?;
    Ok(schema.value().to_string())
}

/// The id of an agent's session with a sender: always the same, and unpredictable, so that a caller that may create
/// sessions of another agent cannot take it.
fn sender_session(key: &[u8; 32], agent: &AgentId, sender: &str) -> Result<SessionId, ErrorBody> {
    if sender.is_empty() || sender.len() > 256 {
        return Err(ErrorBody::new("params.invalid", "a sender has 1 to 256 bytes"));
    }
    let digest = crate::auth::derive(key, &["sender", agent.as_str(), sender]);
    session_id(&format!("ses_{}", hex::encode(&digest[..8])))
}

fn turn_get(at: &ReadView<'_>, given: &TurnRef) -> Result<TurnView, ErrorBody> {
    let id = find(at, &given.turn, None)?;
    let found = at.store.turn(&id).map_err(internal)?.ok_or_else(|| no_turn(&given.turn))?;
    Ok(view::full_turn(found))
}

/// The turn that an id or a unique prefix of one means, of this agent or of any.
pub(super) fn find(at: &ReadView<'_>, given: &str, agent: Option<&AgentId>) -> Result<TurnId, ErrorBody> {
    if !is_id_prefix(given, TurnId::PREFIX) {
        return Err(no_turn(given));
    }
    let found = at.store.find_turns(given, agent).map_err(internal)?;
    unique_id(found, given, error_code!("turn.ambiguous"), "turns")?.ok_or_else(|| no_turn(given))
}

/// A session's turns are in the order of its path; all others are newest first.
fn list(at: &ReadView<'_>, given: &TurnListParams) -> Result<TurnList, ErrorBody> {
    let agent = given.agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
    let session = match given.session.as_str() {
        "" => None,
        session => Some(sessions::known(at, session, agent.as_ref())?),
    };
    match session {
        Some(id) if !given.newest_first && given.status.is_none() => sessions::turns(at, &id, given),
        session => newest(at, TurnFilter { agent, session, ..filter(given)? }, given),
    }
}

fn filter(given: &TurnListParams) -> Result<TurnFilter, ErrorBody> {
    let which = if given.all { TurnScope::All } else { TurnScope::Path };
    let state = match given.status.as_deref() {
        None => None,
        Some(word) => match TurnState::ALL.into_iter().find(|state| state.word() == word) {
            Some(state) => Some(state),
            None => {
                let words = TurnState::ALL.map(TurnState::word).join(", ");
                return Err(ErrorBody::new("params.invalid", format!("`{word}` is not a status of a turn"))
                    .hint(format!("a turn is one of: {words}")));
            }
        },
    };
    Ok(TurnFilter { state, which, ..TurnFilter::default() })
}

fn newest(at: &ReadView<'_>, filter: TurnFilter, given: &TurnListParams) -> Result<TurnList, ErrorBody> {
    let before = given.after.as_deref().map(|after| after.parse().map_err(|_| sessions::bad_cursor()));
    let before: Option<TurnId> = before.transpose()?;
    let page = at.store.newest_turns(&filter, before.as_ref(), page(given.limit)).map_err(internal)?;
    let next = page.turns.last().filter(|_| page.more).map(|last| last.row.id.to_string());
    Ok(TurnList { turns: page.turns.into_iter().map(view::full_turn).collect(), next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_of_a_sender_is_one_and_cannot_be_foretold_without_the_key() {
        let agent: AgentId = "agt_1".parse().unwrap();
        let of = |key: u8, sender: &str| sender_session(&[key; 32], &agent, sender).unwrap();
        assert_eq!(of(1, "ann"), of(1, "ann"));
        assert_ne!(of(1, "ann"), of(1, "bob"));
        assert_ne!(of(1, "ann"), of(2, "ann"));
        assert_eq!(sender_session(&[1; 32], &agent, "").unwrap_err().data.code, "params.invalid");
    }
}

//! Turns: sent, read, interrupted.

use std::sync::Arc;

use lodge_core::summary::TurnDetail;
use lodge_core::{AgentId, SessionId, TurnId};
use lodge_model::schema::{SCHEMA_BYTES_MAX, Schema};
use lodge_proto::*;
use serde_json::Value;

use super::methods::{
    Reply, changed, find_agent, internal, no_method, no_turn, other_agent, reply, session_id,
};
use super::{params, sessions};
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
            shell.read(move |at| reply::<ListTurns>(sessions::turns(at, &given))).await
        }
        InterruptTurn::NAME => {
            let given = params::<InterruptTurn>(given)?;
            let id = turn_id(&given.turn)?;
            let known = id.clone();
            shell.read_few(move |at| known_turn(at, &known).map(drop)).await?;
            changed::<InterruptTurn>(&shell.ask(key, Command::Turn(TurnCommand::Interrupt { id })).await?)
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
    Ok(view::full_turn(known_turn(at, &turn_id(&given.turn)?)?))
}

fn known_turn(at: &ReadView<'_>, id: &TurnId) -> Result<TurnDetail, ErrorBody> {
    at.store.turn(id).map_err(internal)?.ok_or_else(|| no_turn(id))
}

fn turn_id(given: &str) -> Result<TurnId, ErrorBody> {
    given.parse().map_err(|_| {
        ErrorBody::new("turn.not_found", format!("no turn `{given}`"))
            .hint("`lodge session show` lists turns")
    })
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

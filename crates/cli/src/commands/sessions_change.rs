//! `session fork`, `rewind`, `regenerate`, `activate` and `rm`.

use lodge_proto::{
    ActivateBranch, DeleteSession, ForkSession, GetSession, RegenerateTurn, RewindSession,
    SessionActivateParams, SessionDeleteParams, SessionForkParams, SessionRef, SessionRegenerateParams,
    SessionRewindParams, SessionView, error_code,
};

use super::prompt::{print_detached_turn, show_turn};
use super::results::ResultList;
use super::sessions::turns_text;
use super::sessions_repeat::RepeatConsent;
use super::{CommandContext, request_id, sessions_repeat};
use crate::answer::{PromptedAgent, ShownSteps};
use crate::failure::CommandFailure;
use crate::follow::{DaemonClient, FollowScope};
use crate::words::put;

/// How generated ids of sessions begin.
const GENERATED: &str = "ses_";

pub(super) async fn fork(
    context: &CommandContext,
    session: String,
    turn: Option<String>,
    to: Option<String>,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let session = whole_id(&mut daemon, session).await?;
    let params = SessionForkParams { session, turn, to, request_id: Some(request_id()?) };
    let view = daemon.call::<ForkSession>(params).await?;
    if context.words.json {
        return context.words.json(&view);
    }
    context.words.print_note(&format!("a session of {}", turns_text(view.turns)));
    put(&format!("{}\n", view.id))
}

pub(super) async fn rewind(
    context: &CommandContext,
    session: String,
    turn: String,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let session = whole_id(&mut daemon, session).await?;
    let params = SessionRewindParams { session, turn, request_id: Some(request_id()?) };
    let view: SessionView = daemon.call::<RewindSession>(params).await?;
    print_session(context, &view)?;
    if !context.words.json {
        let id = &view.id;
        context.words.print_note(&format!(
            "to come back: `lodge session show {id} --all` shows the turns that were left, \
             `lodge session activate {id} TURN` returns to one"
        ));
    }
    Ok(())
}

pub(super) async fn activate(
    context: &CommandContext,
    session: String,
    turn: String,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let session = whole_id(&mut daemon, session).await?;
    let params = SessionActivateParams { session, turn, request_id: Some(request_id()?) };
    let view: SessionView = daemon.call::<ActivateBranch>(params).await?;
    print_session(context, &view)
}

/// The id of a session that is named by any unique prefix. A change is sent with the whole id, so that a repeated request
/// cannot reach another session.
async fn whole_id(daemon: &mut DaemonClient<'_>, given: String) -> Result<String, CommandFailure> {
    let session = SessionRef { session: given };
    Ok(daemon.call::<GetSession>(session).await?.session.id)
}

/// The id of a session that is named by a prefix of a generated id; any other text is an id as it is. A command that creates
/// or deletes a session must not take a chosen id for the beginning of another.
pub(crate) async fn generated_id(
    daemon: &mut DaemonClient<'_>,
    given: String,
) -> Result<String, CommandFailure> {
    if !given.starts_with(GENERATED) {
        return Ok(given);
    }
    match whole_id(daemon, given.clone()).await {
        Err(failure)
            if failure.is(error_code!("session.not_found")) || failure.is(error_code!("session.bad_id")) =>
        {
            Ok(given)
        }
        found => found,
    }
}

/// The state of a session whose path changed.
fn print_session(context: &CommandContext, view: &SessionView) -> Result<(), CommandFailure> {
    if context.words.json {
        return context.words.json(view);
    }
    context.words.print_note(&format!("session {} has {} now", view.id, turns_text(view.turns)));
    Ok(())
}

pub(super) async fn regenerate(
    context: &CommandContext,
    session: String,
    turn: Option<String>,
    detach: bool,
    consent: RepeatConsent,
) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let view = daemon.call::<GetSession>(SessionRef { session }).await?;
    let session = view.session.id.clone();
    if consent == RepeatConsent::Ask {
        sessions_repeat::confirm(context, &mut daemon, &view.session, turn.as_deref()).await?;
    }
    let params = SessionRegenerateParams { session, turn, request_id: Some(request_id()?) };
    if detach {
        let turn = daemon.call::<RegenerateTurn>(params).await?;
        return print_detached_turn(context, &turn);
    }
    let agent = PromptedAgent { id: view.session.agent, name: view.session.agent_name, stays: true };
    // Attached before asking, so that the turn's first event cannot be missed.
    daemon.watch(FollowScope::Agent(agent.id.clone()), None).await?;
    let turn = daemon.call::<RegenerateTurn>(params).await?;
    show_turn(context, &mut daemon, &agent, turn, ShownSteps::All).await
}

/// Each session separately. A missing session counts as deleted.
pub(super) async fn remove(context: &CommandContext, sessions: Vec<String>) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, sessions.len());
    for session in sessions {
        let session = match generated_id(&mut daemon, session).await {
            Ok(session) => session,
            Err(failure) => {
                batch.failed(failure)?;
                continue;
            }
        };
        let params = SessionDeleteParams { session, request_id: Some(request_id()?) };
        match daemon.call::<DeleteSession>(params).await {
            Ok(one) => {
                if !one.deleted && !context.words.json {
                    context.words.print_note(&format!("there was no session {}", one.session));
                }
                batch.done(&one, || format!("{}\n", one.session))?;
            }
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

//! `turn/retry`: a new turn replaces one that failed or was interrupted, and continues where that one ended.

use std::sync::Arc;

use lodge_core::limits::FORK_BYTES_MAX;
use lodge_core::record::TurnRow;
use lodge_core::turn::TurnState;
use lodge_engine::{Answer, RequestKey, SessionChange, SessionOperation, TurnContinuation};
use lodge_proto::{ErrorBody, TurnRetryParams};
use lodge_store::{SessionBase, TurnSelectionError};

use super::methods::{answered, internal, no_turn};
use super::sessions::ask_planned;
use super::turns::find;
use crate::read_view::ReadView;
use crate::shell::Shell;

pub(super) async fn retry(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: TurnRetryParams,
) -> Result<Answer, ErrorBody> {
    let turn = given.turn.clone();
    let asked = ask_planned(shell, key.as_ref(), move |at| planned(at, &turn)).await;
    match asked.and_then(|answer| answer.ok_or_else(|| no_turn(&given.turn))) {
        Ok(answer) => Ok(answer),
        // The same request may have been decided a moment ago, and what it did may be why it is refused now.
        Err(refused) => {
            let known = answered(shell, key.as_ref()).await?;
            known.map(Answer::Rendered).ok_or(refused)
        }
    }
}

fn planned(at: &ReadView<'_>, given: &str) -> Result<Option<SessionChange>, ErrorBody> {
    let id = find(at, given, None)?;
    let turn = at.store.turn(&id).map_err(internal)?.ok_or_else(|| no_turn(given))?.row;
    has_ended_early(&turn)?;
    let Some(found) = at.store.retry_plan(&turn.session, &id).map_err(internal)? else { return Ok(None) };
    let (SessionBase { fact, agent_name, agent_removed }, remains) = found;
    let remains = remains.map_err(|no| match no {
        TurnSelectionError::Unknown | TurnSelectionError::TooMany => no_turn(given),
        TurnSelectionError::Inactive => inactive(&turn),
    })?;
    if turn.number != fact.turns {
        return Err(not_last(&turn));
    }
    let bytes: u64 = remains.messages.iter().map(|message| message.body.weight()).sum();
    if bytes > FORK_BYTES_MAX {
        return Err(ErrorBody::new(
            "session.too_large",
            format!(
                "the turn has {bytes} bytes of messages; {FORK_BYTES_MAX} is the most that a retry takes over"
            ),
        )
        .hint(format!("`lodge session regenerate {} {id}` sends its message again", turn.session)));
    }
    let again = TurnContinuation {
        turn: remains.turn,
        steps: remains.steps,
        messages: remains.messages,
        epoch: remains.epoch,
        plan: remains.plan,
    };
    let what = SessionOperation::Retry(Box::new(again));
    Ok(Some(SessionChange { fact, agent_name, agent_removed, what }))
}

fn has_ended_early(turn: &TurnRow) -> Result<(), ErrorBody> {
    let (id, session) = (&turn.id, &turn.session);
    match turn.state {
        TurnState::Failed | TurnState::Interrupted => Ok(()),
        TurnState::Queued | TurnState::Running | TurnState::Waiting => {
            Err(ErrorBody::new("turn.open", format!("turn {id} has not ended: it is {}", turn.state.word()))
                .hint(format!("`lodge turn attach {id}` joins it, `lodge turn interrupt {id}` ends it")))
        }
        TurnState::Done => {
            Err(ErrorBody::new("turn.done", format!("turn {id} is done: there is nothing to continue"))
                .hint(format!("`lodge session regenerate {session} {id}` sends its message again")))
        }
    }
}

fn inactive(turn: &TurnRow) -> ErrorBody {
    let (id, session) = (&turn.id, &turn.session);
    ErrorBody::new("turn.inactive", format!("turn `{id}` is not on the path of session `{session}`"))
        .because("it was replaced or rewound")
        .hint(format!(
            "`lodge turn show --session {session}` shows the newest turn; `lodge session activate {session} {id}` \
             makes this one's branch the path again"
        ))
}

fn not_last(turn: &TurnRow) -> ErrorBody {
    let TurnRow { id, session, number, .. } = turn;
    ErrorBody::new("turn.not_last", format!("turn {id} is not the last turn of session {session}")).hint(
        format!(
            "copy the session up to it with `lodge session fork {session} --at {number}`, \
         then run `lodge turn retry --session NEW` with the id that this prints"
        ),
    )
}

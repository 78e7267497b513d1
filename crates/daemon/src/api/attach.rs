//! A client's view of what happens: the state now, then every event after a cursor, once and in order.

use std::sync::Arc;

use lodge_proto::{AttachParams, AttachState, Attached, ErrorBody};

use super::{methods, scope};
use crate::auth::Who;
use crate::hub::Filter;
use crate::shell::Shell;
use crate::view;

/// Turns that an attach shows at most; the rest can be listed.
const STATE_TURNS_MAX: u32 = 256;

/// Checks an attach and answers it. Everything after `Attached::seq` is for the follower.
pub(super) fn attach(
    shell: &Arc<Shell>,
    who: &Who,
    attachment: u64,
    given: AttachParams,
) -> Result<(Attached, Filter), ErrorBody> {
    let given = scope::attach(shell, who, given)?;
    let targets =
        usize::from(given.agent.is_some()) + usize::from(given.session.is_some()) + usize::from(given.all);
    if targets != 1 {
        return Err(ErrorBody::new("attach.bad_target", "attach names exactly one of agent, session or all"));
    }
    if given.log.as_ref().is_some_and(|log| *log != shell.log) {
        return Err(ErrorBody::new("cursor.other_log", "that cursor is of another log")
            .hint("attach without `since`"));
    }
    // Before the state is read: what happens in between is told again, and never missed.
    let head = shell.hub.head();
    let agent = given.agent.as_deref().map(|agent| methods::one_agent(shell, agent)).transpose()?;
    let session = given.session.as_deref().map(methods::session_id).transpose()?;
    let seq = given.since.unwrap_or(head);
    if seq > head {
        return Err(methods::future(seq, head));
    }
    let id = agent.as_ref().map(|found| found.row.id.clone());
    let turns =
        shell.reader.live_turns(id.as_ref(), session.as_ref(), STATE_TURNS_MAX).map_err(methods::internal)?;
    let agents = match (&agent, given.all) {
        (Some(found), _) => vec![methods::agent_view(shell, found)],
        (None, true) => {
            let all = shell.reader.agents(None, lodge_proto::PAGE_MAX).map_err(methods::internal)?;
            all.iter().map(|found| methods::agent_view(shell, found)).collect()
        }
        (None, false) => Vec::new(),
    };
    let state = AttachState { agents, turns: turns.into_iter().map(view::full_turn).collect() };
    let (stream, session) = (id.map(|id| id.to_string()), session.map(|session| session.to_string()));
    let filter = scope::events(who, Filter { stream, session, kind: None });
    Ok((Attached { attachment, epoch: shell.epoch, log: shell.log.clone(), seq, state }, filter))
}

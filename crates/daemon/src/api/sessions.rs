//! Sessions: listed, read, searched, exported; changed through the engine on what was read of them at one moment.

use std::sync::Arc;
use std::time::Duration;

use lodge_core::summary::SessionSummary;
use lodge_core::{AgentId, SessionId, Timestamp, TurnId};
use lodge_image::agentfile::nearest;
use lodge_proto::*;
use lodge_store::{
    EpochPlacement, Query, SearchError, SearchRequest, SessionBase, SessionCursor, SessionMessage,
    TurnCursor, TurnScope, TurnSelectionError, TurnSelector,
};
use serde_json::Value;

use super::methods::{
    Reply, changed, find_agent_ever, internal, keep, no_method, page, reply, session_id, unique_id,
};
use super::params;
use crate::chain;
use crate::read_view::ReadView;
use crate::room::DiskNeed;
use crate::shell::{AskError, Shell, now};
use crate::view;
use lodge_engine::{
    Answer, Command, Refusal, RequestKey, SessionChange, SessionOperation, SessionRefusal, TurnRegeneration,
};

/// Of the form of exported lines.
const EXPORT_VERSION: u32 = 1;
/// A page of an export ends with the message that reaches this.
const EXPORT_BYTES_MAX: usize = 1 << 20;
/// How often a change is planned at most, while its session changes, and the pause before each repetition.
const TRIES_MAX: u32 = 20;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// How long a search waits for others: they are made one after the other.
const SEARCH_WAIT_MAX: Duration = Duration::from_secs(20);

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        ListSessions::NAME => {
            let given = params::<ListSessions>(given)?;
            shell.read(move |at| reply::<ListSessions>(list(at, &given))).await
        }
        GetSession::NAME => {
            let given = params::<GetSession>(given)?;
            shell.read_few(move |at| reply::<GetSession>(get(at, &given))).await
        }
        ListMessages::NAME => {
            let given = params::<ListMessages>(given)?;
            shell.read(move |at| reply::<ListMessages>(messages(at, &given))).await
        }
        SearchSessions::NAME => {
            reply::<SearchSessions>(search(shell, params::<SearchSessions>(given)?).await)
        }
        ExportSession::NAME => {
            let given = params::<ExportSession>(given)?;
            shell.read(move |at| reply::<ExportSession>(export(at, &given))).await
        }
        ForkSession::NAME => {
            let SessionForkParams { session, turn, to, .. } = params::<ForkSession>(given)?;
            changed::<ForkSession>(&change(shell, key, &session, SessionEdit::Fork { turn, to }).await?)
        }
        RewindSession::NAME => {
            let SessionRewindParams { session, turn, .. } = params::<RewindSession>(given)?;
            changed::<RewindSession>(&change(shell, key, &session, SessionEdit::Rewind { turn }).await?)
        }
        RegenerateTurn::NAME => {
            let SessionRegenerateParams { session, turn, .. } = params::<RegenerateTurn>(given)?;
            changed::<RegenerateTurn>(&change(shell, key, &session, SessionEdit::Regenerate { turn }).await?)
        }
        ActivateBranch::NAME => {
            let SessionActivateParams { session, turn, .. } = params::<ActivateBranch>(given)?;
            changed::<ActivateBranch>(&change(shell, key, &session, SessionEdit::Activate { turn }).await?)
        }
        DeleteSession::NAME => {
            let SessionDeleteParams { session, .. } = params::<DeleteSession>(given)?;
            changed::<DeleteSession>(&change(shell, key, &session, SessionEdit::Delete).await?)
        }
        _other => Err(no_method(method)),
    }
}

fn list(at: &ReadView<'_>, given: &SessionListParams) -> Result<SessionList, ErrorBody> {
    let agent = given.agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
    let limit = page(given.limit);
    let before = given.after.as_deref().map(place).transpose()?;
    let found = at.store.sessions(agent.as_ref(), before.as_ref(), limit).map_err(internal)?;
    let next = found
        .last()
        .filter(|_| found.len() == limit as usize)
        .map(|last| format!("{}:{}", last.last_active.ms(), last.row.id));
    let sessions = found.iter().map(|found| with_usage(at, found)).collect::<Result<_, _>>()?;
    Ok(SessionList { sessions, next })
}

fn with_usage(at: &ReadView<'_>, found: &SessionSummary) -> Result<SessionView, ErrorBody> {
    let usage = at.store.session_usage(&found.row.id).map_err(internal)?;
    Ok(SessionView { usage: Some(view::usage(usage)), ..view::session(found) })
}

/// Where an earlier page ended.
fn place(given: &str) -> Result<SessionCursor, ErrorBody> {
    let (at, id) = given.split_once(':').ok_or_else(bad_cursor)?;
    let at = at.parse().map_err(|_| bad_cursor())?;
    Ok(SessionCursor { last_active: Timestamp::from_ms(at), id: id.to_owned() })
}

pub(super) fn bad_cursor() -> ErrorBody {
    ErrorBody::new("params.invalid", "`after` is the `next` of an earlier page")
}

fn get(at: &ReadView<'_>, given: &SessionRef) -> Result<SessionDetail, ErrorBody> {
    let id = known(at, &given.session, None)?;
    let found = at.store.session(&id).map_err(internal)?.ok_or_else(|| view::no_session(&id))?;
    let inactive_turns = at.store.inactive_turns(&id).map_err(internal)?;
    let open_jobs = at.store.open_jobs_of_session(&id).map_err(internal)?;
    Ok(SessionDetail { session: with_usage(at, &found)?, inactive_turns, open_jobs })
}

fn messages(at: &ReadView<'_>, given: &SessionMessagesParams) -> Result<MessageList, ErrorBody> {
    let id = known(at, &given.session, None)?;
    let limit = page(given.limit);
    let (found, more) = at.store.messages(&id, which(given.all), given.before, limit).map_err(internal)?;
    let next = found.first().filter(|first| first.row.seq > 1 && more).map(|first| first.row.seq);
    let on_path = |told: &&SessionMessage| told.active;
    let numbers = || found.iter().filter(on_path).map(|told| told.row.number);
    let epochs = match (numbers().min(), numbers().max()) {
        (Some(first), Some(last)) => at.store.epochs(&id, first, last).map_err(internal)?,
        (None, _) | (_, None) => Vec::new(),
    };
    // An epoch that began before this page belongs to an earlier page.
    let begun = |epoch: &EpochPlacement| {
        let is_after =
            |first: &SessionMessage| (first.row.number, first.row.seq) <= (epoch.row.turn, epoch.seq);
        found.first().is_some_and(is_after)
    };
    let epochs = epochs.into_iter().filter(begun).map(view::epoch).collect();
    let messages = found.into_iter().map(view::message).collect();
    Ok(MessageList { messages, epochs, next })
}

/// The turns of a session, in the order of its path.
pub(super) fn turns(
    at: &ReadView<'_>,
    id: &SessionId,
    given: &TurnListParams,
) -> Result<TurnList, ErrorBody> {
    let limit = page(given.limit);
    let after = match given.after.as_deref().map(|after| after.split_once(':').unwrap_or((after, "~"))) {
        None => TurnCursor::default(),
        Some((number, turn)) => {
            TurnCursor { number: number.parse().map_err(|_| bad_cursor())?, id: turn.to_owned() }
        }
    };
    let (found, more) = at.store.turns(id, which(given.all), &after, limit).map_err(internal)?;
    let next = found.last().filter(|_| more).map(|last| format!("{}:{}", last.row.number, last.row.id));
    Ok(TurnList { turns: found.into_iter().map(view::full_turn).collect(), next })
}

fn which(all: bool) -> TurnScope {
    if all { TurnScope::All } else { TurnScope::Path }
}

/// The session with this id, or the only one whose id begins with it, of this agent or of any.
pub(super) fn known(at: &ReadView<'_>, given: &str, agent: Option<&AgentId>) -> Result<SessionId, ErrorBody> {
    session_id(given)?;
    let found = at.store.find_sessions(given).map_err(internal)?;
    let id = match (unique_id(found, given, error_code!("session.ambiguous"), "sessions")?, agent) {
        (Some(id), _) => id,
        (None, None) => return Err(no_session_like(at, given)),
        (None, Some(_)) => return Err(view::no_session(&given)),
    };
    let Some(agent) = agent else { return Ok(id) };
    match at.store.session_fact(&id).map_err(internal)? {
        Some(fact) if fact.row.agent == *agent => Ok(id),
        Some(_) | None => Err(view::no_session(&id)),
    }
}

/// The refusal of an unknown session, with the one that was probably meant. The tokens of agents never get here.
fn no_session_like(at: &ReadView<'_>, given: &str) -> ErrorBody {
    let sessions = match at.store.sessions(None, None, PAGE_MAX) {
        Ok(sessions) => sessions,
        Err(error) => return internal(error),
    };
    match nearest(given, sessions.iter().map(|session| session.row.id.as_str())) {
        Some(id) => view::no_session(&given)
            .hint(format!("did you mean `{id}`? `lodge session ls` lists all sessions")),
        None => view::no_session(&given),
    }
}

fn export(at: &ReadView<'_>, given: &SessionExportParams) -> Result<SessionExport, ErrorBody> {
    let id = known(at, &given.session, None)?;
    let found = at.store.session(&id).map_err(internal)?.ok_or_else(|| view::no_session(&id))?;
    let mut lines = Vec::new();
    if given.after.is_none() {
        let session = with_usage(at, &found)?;
        lines.push(ExportLine::Session(Box::new(ExportedSession { version: EXPORT_VERSION, session })));
    }
    let limit = given.limit.unwrap_or(PAGE_MAX).clamp(1, PAGE_MAX);
    let after = given.after.unwrap_or(0);
    let (page, more) = at.store.exported(&id, after, limit, EXPORT_BYTES_MAX).map_err(internal)?;
    let next = page.last().filter(|_| more).map(|last| last.told.row.seq);
    lines.extend(page.into_iter().map(|one| ExportLine::Message(Box::new(view::exported(one)))));
    Ok(SessionExport { lines, next })
}

async fn search(shell: &Arc<Shell>, given: SessionSearchParams) -> Result<SessionHits, ErrorBody> {
    let query = Query::parse(&given.query)
        .map_err(|bad| ErrorBody::new("search.bad_query", bad.to_string()).hint(bad.hint()))?;
    let (agent, session) = (given.agent, given.session);
    let read = move |at: &ReadView<'_>| {
        let agent = agent.as_deref().map(|agent| find_agent_ever(at, agent)).transpose()?;
        Ok::<_, ErrorBody>((agent, session.as_deref().map(|session| known(at, session, None)).transpose()?))
    };
    let (agent, session) = shell.read(read).await?;
    let after = given.after.map(|after| after.parse().map_err(|_| bad_cursor())).transpose()?;
    let limit = page(given.limit);
    // The index takes in what is new first, and that is written.
    shell.room.admit(DiskNeed::Room, now())?;
    let turn = tokio::time::timeout(SEARCH_WAIT_MAX, shell.searching.clone().lock_owned()).await;
    let turn = turn.map_err(|_| {
        ErrorBody::new("daemon.busy", "other searches are under way").hint("try again in a moment")
    })?;
    let worker = shell.clone();
    let found = tokio::task::spawn_blocking(move || {
        let wanted =
            SearchRequest { query: &query, agent: agent.as_ref(), session: session.as_ref(), after, limit };
        let found = turn.search(&worker.reader, wanted);
        drop(turn);
        // Searches are rare, and what one needed is not kept for the next.
        crate::commit::trim_heap();
        found
    });
    let found = found
        .await
        .map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))?
        .map_err(|error| search_failed(&error))?;
    let next = found.last().filter(|_| found.len() == limit as usize).map(|last| last.place.to_string());
    Ok(SessionHits { hits: found.into_iter().map(view::hit).collect(), next })
}

fn search_failed(error: &SearchError) -> ErrorBody {
    let because = std::error::Error::source(error).map(chain).unwrap_or_default();
    match error {
        SearchError::Full { .. } => ErrorBody::new("daemon.disk_full", error.to_string())
            .because(because)
            .hint("free space on the state directory's file system, then try again"),
        SearchError::Read(_) | SearchError::Index { .. } => {
            ErrorBody::new("daemon.internal", error.to_string()).because(because)
        }
    }
}

/// What a change is about.
#[derive(Debug)]
enum SessionEdit {
    Fork { turn: Option<String>, to: Option<String> },
    Rewind { turn: String },
    Regenerate { turn: Option<String> },
    Activate { turn: String },
    Delete,
}

async fn change(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    session: &str,
    change: SessionEdit,
) -> Result<Answer, ErrorBody> {
    let id = session_id(session)?;
    let change = Arc::new(change);
    let (of, what) = (id.clone(), change.clone());
    match ask_planned(shell, key.as_ref(), move |at| planned(at, &of, &what)).await? {
        Some(answer) => {
            if matches!(*change, SessionEdit::Delete) {
                forget(shell, &id).await;
            }
            Ok(answer)
        }
        None => match *change {
            // One that is not there is as deleted as it can be.
            SessionEdit::Delete => {
                let missing = SessionDeleted { session: id.to_string(), deleted: false };
                Ok(Answer::Rendered(keep(shell, key, view::text(&missing)).await?))
            }
            SessionEdit::Fork { .. }
            | SessionEdit::Rewind { .. }
            | SessionEdit::Regenerate { .. }
            | SessionEdit::Activate { .. } => Err(view::no_session(&id)),
        },
    }
}

/// Plans a change on one snapshot, and asks the engine for it. If the session changed since that snapshot, the change is
/// planned again. None: there is no such session.
pub(super) async fn ask_planned(
    shell: &Arc<Shell>,
    key: Option<&RequestKey>,
    plan: impl Fn(&ReadView<'_>) -> Result<Option<SessionChange>, ErrorBody> + Clone + Send + 'static,
) -> Result<Option<Answer>, ErrorBody> {
    let mut tries = 0;
    loop {
        let Some(change) = shell.read(plan.clone()).await? else { return Ok(None) };
        tries += 1;
        match shell.ask(key.cloned(), Command::Session(Box::new(change))).await {
            Err(AskError::Refused(Refusal::Session(SessionRefusal::Changed { .. }))) if tries < TRIES_MAX => {
                tokio::time::sleep(TRY_AGAIN_AFTER).await;
            }
            answer => return Ok(Some(answer?)),
        }
    }
}

/// Removes a deleted session from the index as well. The next search finds leftovers missing and skips them.
async fn forget(shell: &Shell, id: &SessionId) {
    // A running search is not waited for.
    let Ok(turn) = shell.searching.clone().try_lock_owned() else { return };
    let id = id.clone();
    let forgotten = tokio::task::spawn_blocking(move || turn.forget(&id)).await;
    if let Ok(Err(error)) = forgotten {
        tracing::warn!(event = "search.not_forgotten", error = %chain(&error));
    }
}

fn planned(
    at: &ReadView<'_>,
    id: &SessionId,
    change: &SessionEdit,
) -> Result<Option<SessionChange>, ErrorBody> {
    let found = match change {
        SessionEdit::Delete => {
            at.store.session_base(id).map_err(internal)?.map(|standing| (standing, SessionOperation::Delete))
        }
        SessionEdit::Rewind { turn } => {
            let found = at.store.rewind_plan(id, &pick(turn)?).map_err(internal)?;
            found
                .map(|(standing, plan)| {
                    Ok::<_, ErrorBody>((standing, SessionOperation::Rewind(fits(id, turn, plan)?)))
                })
                .transpose()?
        }
        SessionEdit::Activate { turn } => {
            let unknown = || {
                let hint = format!("`lodge session show {id} --all` lists the turns of all branches by id");
                no_turn(id, turn).hint(hint)
            };
            let turn_id: TurnId = turn.parse().map_err(|_| unknown())?;
            let found = at.store.branch_plan(id, &turn_id).map_err(internal)?;
            found
                .map(|(standing, plan)| {
                    let plan = match plan {
                        Err(TurnSelectionError::Unknown) => return Err(unknown()),
                        plan => fits(id, turn, plan)?,
                    };
                    Ok((standing, SessionOperation::Activate { turn: turn_id, plan }))
                })
                .transpose()?
        }
        SessionEdit::Fork { turn, to } => {
            let to = to.as_deref().map(|to| free(at, to)).transpose()?;
            let found = at.store.fork_plan(id, &pick_or_last(turn.as_deref())?).map_err(internal)?;
            let turn = turn.as_deref().unwrap_or("the last");
            found
                .map(|(standing, plan)| {
                    Ok::<_, ErrorBody>((standing, SessionOperation::Fork { to, plan: fits(id, turn, plan)? }))
                })
                .transpose()?
        }
        SessionEdit::Regenerate { turn } => {
            let found = at.store.repeat_plan(id, &pick_or_last(turn.as_deref())?).map_err(internal)?;
            let turn = turn.as_deref().unwrap_or("the last");
            found
                .map(|(standing, repeat)| {
                    let repeat = fits(id, turn, repeat)?;
                    let again = TurnRegeneration {
                        turn: repeat.turn,
                        text: repeat.body.text,
                        schema: repeat.body.schema,
                        note: repeat.body.note,
                        plan: repeat.plan,
                    };
                    Ok::<_, ErrorBody>((standing, SessionOperation::Regenerate(Box::new(again))))
                })
                .transpose()?
        }
    };
    Ok(found.map(|(SessionBase { fact, agent_name, agent_removed }, what)| SessionChange {
        fact,
        agent_name,
        agent_removed,
        what,
    }))
}

/// The id of a session that is not there yet.
fn free(at: &ReadView<'_>, given: &str) -> Result<SessionId, ErrorBody> {
    let id = session_id(given)?;
    match at.store.session(&id).map_err(internal)? {
        None => Ok(id),
        Some(_) => Err(view::session_exists(&id)),
    }
}

/// A turn by its id or by its number in the path.
fn pick(given: &str) -> Result<TurnSelector, ErrorBody> {
    if let Ok(number) = given.parse() {
        return Ok(TurnSelector::Number(number));
    }
    given.parse().map(TurnSelector::Id).map_err(|_| {
        ErrorBody::new("params.invalid", format!("`{given}` is neither a turn's id nor a number"))
            .hint("`lodge session show` has both")
    })
}

fn pick_or_last(given: Option<&str>) -> Result<TurnSelector, ErrorBody> {
    given.map_or(Ok(TurnSelector::Last), pick)
}

fn no_turn(id: &SessionId, turn: &str) -> ErrorBody {
    ErrorBody::new("turn.not_found", format!("session `{id}` has no turn `{turn}`"))
        .hint(format!("`lodge session show {id}` lists its turns"))
}

fn fits<P>(id: &SessionId, turn: &str, plan: Result<P, TurnSelectionError>) -> Result<P, ErrorBody> {
    plan.map_err(|no| match no {
        TurnSelectionError::Unknown => no_turn(id, turn),
        TurnSelectionError::Inactive => {
            ErrorBody::new("turn.inactive", format!("turn `{turn}` is not on the path of session `{id}`"))
                .hint(format!("make its branch the path with `lodge session activate {id} {turn}`"))
        }
        TurnSelectionError::TooMany => {
            ErrorBody::new("session.too_large", "that is about more turns than one change may touch")
                .hint("name an earlier turn")
        }
    })
}

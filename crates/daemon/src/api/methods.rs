//! What each method does: reads go to the store, changes go to the engine.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use lodge_core::{AgentId, SessionId};
use lodge_image::Pins;
use lodge_image::agentfile::nearest;
use lodge_image::registry::TransferWatch;
use lodge_proto::{
    ApiMethod, CancelJob, ErrorBody, IssueToken, KillAgent, KnownCode, PAGE_MAX, RemoveAgent, RevokeToken,
    StopAgent, error_code,
};
use lodge_store::{AgentMatch, AgentSummary, StoreSnapshot};
use serde_json::Value;

use super::{
    Api, agents, bins, daemon, events, execs, images, jobs, lineages, providers, quarantine, request_key,
    sandboxes, scope, sessions, tokens, turns,
};
use crate::auth::{ApiCaller, rights};
use crate::read_view::ReadView;
pub(super) use crate::read_view::unread as internal;
use crate::shell::{AskError, Shell, ShuttingDown};
use crate::suspects::{carry, follow};
use crate::tasks::TaskKind;
use crate::view::{self, EngineReply};
use lodge_engine::{Answer, Command, Refusal, RenderedAnswer, RequestKey};

const PAGE_DEFAULT: u32 = 100;

/// A reply as JSON text. It is rendered once; transports write it as it is.
pub(super) type Reply = Result<RenderedAnswer, ErrorBody>;

/// Renders what a method that reads has found.
pub(super) fn reply<M: ApiMethod>(found: Result<M::Reply, ErrorBody>) -> Reply {
    found.map(|found| view::text(&found))
}

/// Renders what the engine answered to a method that changes something.
pub(super) fn changed<M: ApiMethod<Reply: EngineReply>>(answer: &Answer) -> Reply {
    match view::answer_view(answer) {
        Ok(view) if M::Reply::is(&view) => Ok(view::text(&view)),
        Ok(_) => Err(not_the_reply()),
        Err(recorded) => Ok(recorded.clone()),
    }
}

/// The engine answered a request with the shape of another.
pub(super) fn not_the_reply() -> ErrorBody {
    ErrorBody::new("daemon.internal", "the engine's answer does not fit the request")
}

/// Records a reply with the id of its request, if it has one. Another reply to the same request may be recorded already.
pub(super) async fn keep(
    shell: &Shell,
    key: Option<RequestKey>,
    reply: RenderedAnswer,
) -> Result<RenderedAnswer, AskError> {
    match key {
        Some(_) => Ok(view::rendered(&shell.ask(key, Command::Keep { answer: reply }).await?)),
        None => Ok(reply),
    }
}

/// Calls a method that needs no own connection. `client/…` methods belong to WebSockets. Transfers report their
/// progress to `watch`.
pub(super) async fn call(
    api: &Arc<Api>,
    who: &ApiCaller,
    method: &str,
    given: Value,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    match quarantine::suspect(&api.shell, who, method, &given)? {
        Some(watched) => watched.watch(dispatch(api, who, method, given, watch)).await,
        None => dispatch(api, who, method, given, watch).await,
    }
}

async fn dispatch(
    api: &Arc<Api>,
    who: &ApiCaller,
    method: &str,
    given: Value,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    let shell = &api.shell;
    let key = request_key(who, method, &given)?;
    let (known, given) = admitted(shell, who, method, given).await?;
    if let Some(recorded) = known {
        return match method {
            // What was decided may not have come about yet.
            StopAgent::NAME | KillAgent::NAME | RemoveAgent::NAME | RevokeToken::NAME => {
                Ok(view::rendered(&shell.ask(key, again(recorded)).await?))
            }
            IssueToken::NAME => tokens::issued(api, shell.ask(key, again(recorded)).await?).await,
            CancelJob::NAME => jobs::cancelled(shell, Answer::Rendered(recorded)).await,
            _ => Ok(recorded),
        };
    }
    match method.split_once('/').map_or(method, |(noun, _)| noun) {
        "info" | "rpc" | "daemon" => daemon::call(shell, key, method, given).await,
        "agent" => agents::call(shell, who, key, method, given, watch).await,
        "turn" => turns::call(shell, key, method, given).await,
        "session" => sessions::call(shell, key, method, given).await,
        "job" => jobs::call(shell, who, key, method, given).await,
        "sandbox" => sandboxes::call(shell, key, method, given).await,
        "exec" => execs::call(shell, who, key, method, given).await,
        "image" => images::call(shell, key, method, given, watch).await,
        "bin" => bins::call(shell, key, method, given, watch).await,
        "provider" => providers::call(shell, who, method, given, key).await,
        "lineage" => lineages::call(shell, key, method, given).await,
        "event" => events::call(shell, who, method, given).await,
        "token" => tokens::call(api, key, method, given).await,
        "quarantine" => quarantine::call(shell, key, method, given).await,
        "client" => Err(ErrorBody::new("method.not_found", format!("`{method}` needs a WebSocket"))
            .hint("connect to /v1/rpc with a WebSocket, or read /v1/events")),
        _other => Err(no_method(method)),
    }
}

/// The answer that was given to this request before, if any, and of the parameters what the caller may reach.
async fn admitted(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    method: &str,
    given: Value,
) -> Result<(Option<RenderedAnswer>, Value), ErrorBody> {
    // An operator's request without an id is looked up nowhere.
    if who.agent().is_none() && given.get("request_id").is_none_or(Value::is_null) {
        rights::admit(who, method)?;
        return Ok((None, given));
    }
    let (who, method) = (who.clone(), method.to_owned());
    shell
        .read_few(move |at| {
            let known = known_answer(at, &who, &method, &given)?;
            Ok((known, scope::narrow(at, &who, &method, given)?))
        })
        .await
}

/// A request that was decided before, with its recorded answer.
fn again(answer: RenderedAnswer) -> Command {
    Command::Again { agent: recorded_id(&answer), answer }
}

/// The id in a recorded answer.
pub(super) fn recorded_id<T: FromStr>(answer: &RenderedAnswer) -> Option<T> {
    #[derive(serde::Deserialize)]
    struct RecordedId {
        id: String,
    }
    serde_json::from_str::<RecordedId>(&answer.0).ok()?.id.parse().ok()
}

/// The table of methods has it, but no implementation.
pub(super) fn no_method(method: &str) -> ErrorBody {
    ErrorBody::new("method.not_found", format!("there is no method `{method}`"))
}

/// The answer that was given to this very request before.
pub(super) fn known_answer(
    at: &ReadView<'_>,
    who: &ApiCaller,
    method: &str,
    given: &Value,
) -> Result<Option<RenderedAnswer>, ErrorBody> {
    match request_key(who, method, given)? {
        Some(key) => match recorded_answer(at.store, &key)? {
            Some(known) => Ok(Some(known)),
            // It may have been asked before this release, under another name.
            None => recorded_answer(at.store, &RequestKey { caller: who.caller_before.clone(), ..key }),
        },
        None => Ok(None),
    }
}

/// The answer to a request that only the store may still know.
pub(super) async fn answered(
    shell: &Shell,
    key: Option<&RequestKey>,
) -> Result<Option<RenderedAnswer>, ErrorBody> {
    let Some(key) = key.cloned() else { return Ok(None) };
    shell.reader.read_few(move |store| Ok(recorded_answer(store, &key))).await.map_err(internal)?
}

fn recorded_answer(store: &dyn StoreSnapshot, key: &RequestKey) -> Result<Option<RenderedAnswer>, ErrorBody> {
    let Some(row) = store.request(&key.caller, &key.request_id).map_err(internal)? else {
        return Ok(None);
    };
    if row.digest != key.digest {
        return Err(view::refused(Refusal::RequestReused { request_id: key.request_id.clone() }));
    }
    String::from_utf8(row.answer)
        .map(|text| Some(RenderedAnswer(text.into_boxed_str())))
        .map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))
}

/// A prepared change, ready for the engine.
pub(super) struct PreparedChange {
    pub command: Command,
    /// Its contents, pinned until it is recorded.
    pub pins: Vec<Pins>,
}

impl PreparedChange {
    pub fn of(command: Command) -> PreparedChange {
        PreparedChange { command, pins: Vec::new() }
    }
}

/// Requests a change whose preparation takes time: it reads files and may contact registries. It continues when its
/// caller disconnects.
pub(super) async fn ask_prepared(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    prepare: impl FnOnce(&Shell) -> Result<PreparedChange, ErrorBody> + Send + 'static,
) -> Result<Answer, ErrorBody> {
    let begun = shell.clone();
    detached(shell, async move {
        let slot = begun.preparing.acquire().await.map_err(|_| ShuttingDown)?;
        let preparing = begun.clone();
        let prepared = tokio::task::spawn_blocking(carry(move || prepare(&preparing))).await;
        drop(slot);
        let prepared =
            prepared.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))?;
        record(&begun, key, prepared).await
    })
    .await
}

/// Has a change recorded that took its time.
pub(super) async fn record(
    shell: &Shell,
    key: Option<RequestKey>,
    prepared: PreparedChange,
) -> Result<Answer, ErrorBody> {
    // Meanwhile the same request, sent before, may be so long decided that only the store knows it.
    if let Some(known) = answered(shell, key.as_ref()).await? {
        return Ok(Answer::Rendered(known));
    }
    let answer = shell.ask(key, prepared.command).await;
    let left = answer.is_err() && !prepared.pins.is_empty();
    drop(prepared.pins);
    if left {
        // What was built or pulled for it is unused now, and may be what fills the disk.
        shell.spawn(TaskKind::ImageCollection, shell.images.clone().collect());
    }
    Ok(answer?)
}

/// Runs work to its end, even if the caller leaves.
pub(super) async fn detached<T: Send + 'static>(
    shell: &Shell,
    work: impl Future<Output = Result<T, ErrorBody>> + Send + 'static,
) -> Result<T, ErrorBody> {
    let (done, heard) = tokio::sync::oneshot::channel();
    let work = follow(work);
    shell.spawn(TaskKind::Change, async move {
        // The receiver may be gone.
        drop(done.send(work.await));
    });
    heard.await.unwrap_or_else(|_| Err(ShuttingDown.into()))
}

pub(super) fn find_agent(at: &ReadView<'_>, given: &str) -> Result<AgentId, ErrorBody> {
    match at.store.find_agent(given).map_err(internal)? {
        AgentMatch::None => Err(no_agent_like(at, given)),
        found => the_one(found, given),
    }
}

/// The refusal of an unknown agent, with the name that was probably meant. The tokens of agents never get here: they reach
/// no other agent, and must not learn names.
fn no_agent_like(at: &ReadView<'_>, given: &str) -> ErrorBody {
    let agents = match at.store.agents(None, PAGE_MAX) {
        Ok(agents) => agents,
        Err(error) => return internal(error),
    };
    match nearest(given, agents.iter().map(|agent| agent.row.name.as_str())) {
        Some(name) => no_agent(given).hint(format!("did you mean `{name}`? `lodge ps -a` lists all agents")),
        None => no_agent(given),
    }
}

/// Like `find_agent`, for what outlives agents: one that was removed is found as well, if no other has its name.
pub(super) fn find_agent_ever(at: &ReadView<'_>, given: &str) -> Result<AgentId, ErrorBody> {
    match at.store.find_agent_ever(given).map_err(internal)? {
        AgentMatch::Many(ids) if !given.starts_with(AgentId::PREFIX) => {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            Err(ErrorBody::new(
                "agent.ambiguous",
                format!("several agents that were removed had the name `{given}`"),
            )
            .hint(format!("give the id of one, the newest first: {}", ids.join(", "))))
        }
        found => the_one(found, given),
    }
}

fn the_one(found: AgentMatch, given: &str) -> Result<AgentId, ErrorBody> {
    match found {
        AgentMatch::One(id) => Ok(id),
        AgentMatch::None => Err(no_agent(given)),
        AgentMatch::Many(ids) => Err(several_ids(&ids, given, error_code!("agent.ambiguous"), "agents")),
    }
}

/// Whether a text is an id with this prefix, or begins like one: the prefix alone is not enough.
pub(super) fn is_id_prefix(given: &str, prefix: &str) -> bool {
    given.strip_prefix(prefix).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_'))
}

/// The id that `given` names, of those that start with it: itself, or the only one.
pub(super) fn unique_id<I: Display>(
    mut ids: Vec<I>,
    given: &str,
    ambiguous: KnownCode,
    kind: &str,
) -> Result<Option<I>, ErrorBody> {
    if let Some(exactly) = ids.iter().position(|id| id.to_string() == given) {
        return Ok(Some(ids.swap_remove(exactly)));
    }
    match ids.pop() {
        Some(id) if ids.is_empty() => Ok(Some(id)),
        Some(id) => {
            ids.push(id);
            Err(several_ids(&ids, given, ambiguous, kind))
        }
        None => Ok(None),
    }
}

fn several_ids<I: Display>(ids: &[I], given: &str, ambiguous: KnownCode, kind: &str) -> ErrorBody {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ErrorBody::new(ambiguous.as_str(), format!("several {kind} start with `{given}`"))
        .hint(format!("give more of the id: {}", ids.join(", ")))
}

pub(super) fn one_agent(at: &ReadView<'_>, given: &str) -> Result<AgentSummary, ErrorBody> {
    let id = find_agent(at, given)?;
    at.store.agent(&id).map_err(internal)?.ok_or_else(|| no_agent(given))
}

pub(super) fn no_agent(given: &str) -> ErrorBody {
    ErrorBody::new("agent.not_found", format!("no agent `{given}`")).hint("`lodge ps -a` lists all agents")
}

/// The refusal of a session that belongs to another agent, which is named as people know it.
pub(super) fn other_agent(at: &ReadView<'_>, session: &SessionId, owner: &AgentId) -> ErrorBody {
    match at.store.agent(owner) {
        Ok(Some(found)) => view::other_agent(session, found.row.name),
        Ok(None) => view::other_agent(session, owner.to_string()),
        Err(error) => internal(error),
    }
}

pub(super) fn no_turn(given: &str) -> ErrorBody {
    ErrorBody::new("turn.not_found", format!("no turn `{given}`")).hint("`lodge turn ls` lists turns")
}

pub(super) fn session_id(given: &str) -> Result<SessionId, ErrorBody> {
    given
        .parse()
        .map_err(|error: lodge_core::id::BadSessionId| ErrorBody::new("session.bad_id", error.to_string()))
}

pub(super) fn future(cursor: u64, head: u64) -> ErrorBody {
    let what = format!("sequence {cursor} is ahead of the log: the newest event is {head}");
    ErrorBody::new("cursor.future", what)
        .hint(format!("give a sequence up to {head} as `since`, or leave `since` out"))
}

pub(super) fn page(limit: Option<u32>) -> u32 {
    limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

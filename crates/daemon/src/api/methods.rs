//! What each method does: reads go to the store, changes go to the engine.

use std::sync::Arc;

use lodge_core::{AgentId, SessionId, TurnId};
use lodge_model::schema::Schema;
use lodge_proto::*;
use lodge_store::{AgentFound, AgentSummary, ReadError};
use serde_json::Value;

use super::sessions::Change;
use super::{
    Api, create, events, images, lineages, params, providers, reload, request_key, scope, sessions,
    snapshots, tokens, update,
};
use crate::auth::Who;
use crate::chain;
use crate::engine::{Command, NewTurn, RequestKey, SessionChoice, reused};
use crate::shell::{Shell, now};
use crate::view;

const PAGE_DEFAULT: u32 = 100;
const LOG_LINES_DEFAULT: u32 = 200;
/// The longest piece of a log that one answer carries.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

pub(super) type Answer = Result<Value, ErrorBody>;

/// Calls a method that needs no connection of its own. `client/…` is the business of WebSockets.
pub(super) async fn call(api: &Arc<Api>, who: &Who, method: &str, given: Value) -> Answer {
    let shell = &api.shell;
    let key = request_key(who, method, &given)?;
    let known = known_answer(shell, who, method, &given)?;
    let given = scope::narrow(shell, who, method, given)?;
    if let Some(answer) = known {
        return match method {
            // What was decided may not have come about yet.
            "agent/stop" | "agent/kill" | "agent/remove" | "token/revoke" => {
                shell.ask(key, Command::Again { answer }).await
            }
            "token/issue" => tokens::issued(api, shell.ask(key, Command::Again { answer }).await?),
            _ => Ok(answer),
        };
    }
    match method {
        "info" => {
            let Empty {} = params(method, given)?;
            info(shell).await
        }
        "rpc/discover" => {
            let Empty {} = params(method, given)?;
            Ok(view::json(&discover(env!("CARGO_PKG_VERSION"))))
        }
        "agent/create" => create::create(shell, key, params(method, given)?).await,
        "agent/list" => agent_list(shell, who, &params(method, given)?),
        "agent/get" => agent_get(shell, &params(method, given)?),
        "agent/start" => {
            let given: AgentRef = params(method, given)?;
            let id = find_agent(shell, &given.agent)?;
            shell.ask(key, Command::StartAgent { id }).await
        }
        "agent/restart" => {
            let given: AgentRef = params(method, given)?;
            let id = find_agent(shell, &given.agent)?;
            shell.ask(key, Command::RestartAgent { id }).await
        }
        "agent/update" => update::update(shell, key, params(method, given)?).await,
        "agent/stop" => {
            let given: AgentRef = params(method, given)?;
            let id = find_agent(shell, &given.agent)?;
            shell.ask(key, Command::StopAgent { id }).await
        }
        "agent/kill" => {
            let given: AgentRef = params(method, given)?;
            let id = find_agent(shell, &given.agent)?;
            shell.ask(key, Command::KillAgent { id }).await
        }
        "agent/remove" => {
            let given: AgentRemoveParams = params(method, given)?;
            let id = find_agent(shell, &given.agent)?;
            shell.ask(key, Command::RemoveAgent { id, force: given.force }).await
        }
        "agent/logs" => agent_logs(shell, &params(method, given)?),
        "turn/send" => turn_send(shell, key, params(method, given)?).await,
        "turn/get" => turn_get(shell, &params(method, given)?),
        "turn/list" => sessions::turns(shell, &params(method, given)?),
        "turn/interrupt" => {
            let given: TurnInterruptParams = params(method, given)?;
            let id = turn_id(&given.turn)?;
            if shell.reader.turn(&id).map_err(internal)?.is_none() {
                return Err(no_turn(&id));
            }
            shell.ask(key, Command::InterruptTurn { id }).await
        }
        "session/list" => sessions::list(shell, &params(method, given)?),
        "session/get" => sessions::get(shell, &params(method, given)?),
        "session/messages" => sessions::messages(shell, &params(method, given)?),
        "session/search" => sessions::search(shell, params(method, given)?).await,
        "session/export" => sessions::export(shell, &params(method, given)?),
        "session/fork" => {
            let SessionForkParams { session, turn, to, .. } = params(method, given)?;
            sessions::change(shell, key, &session, Change::Fork { turn, to }).await
        }
        "session/rewind" => {
            let SessionRewindParams { session, turn, .. } = params(method, given)?;
            sessions::change(shell, key, &session, Change::Rewind { turn }).await
        }
        "session/regenerate" => {
            let SessionRegenerateParams { session, turn, .. } = params(method, given)?;
            sessions::change(shell, key, &session, Change::Regenerate { turn }).await
        }
        "session/branches/activate" => {
            let SessionActivateParams { session, turn, .. } = params(method, given)?;
            sessions::change(shell, key, &session, Change::Activate { turn }).await
        }
        "session/delete" => {
            let SessionDeleteParams { session, .. } = params(method, given)?;
            sessions::change(shell, key, &session, Change::Delete).await
        }
        "image/build" => images::build_image(shell, key, params(method, given)?).await,
        "image/list" => images::list(shell, &params(method, given)?),
        "image/inspect" => images::inspect(shell, &params(method, given)?),
        "image/remove" => images::remove(shell, key, params(method, given)?).await,
        "provider/add" | "provider/list" | "provider/remove" | "provider/test" => {
            providers::call(shell, who, method, given, key).await
        }
        "lineage/list" => lineages::list(shell, &params(method, given)?),
        "lineage/get" => lineages::get(shell, &params(method, given)?),
        "lineage/resolve" => lineages::resolve(shell, key, params(method, given)?).await,
        "lineage/snapshot" => snapshots::snapshot(shell, &params(method, given)?),
        "lineage/messages" => snapshots::messages(shell, &params(method, given)?),
        "event/list" => events::list(shell, who, &params(method, given)?),
        "token/issue" => tokens::issue(api, key, params(method, given)?).await,
        "token/list" => tokens::list(shell, &params(method, given)?),
        "token/revoke" => tokens::revoke(shell, key, params(method, given)?).await,
        "daemon/reload" => {
            let ReloadParams { .. } = params(method, given)?;
            reload(shell, key).await
        }
        "daemon/reap" => reap(shell, key, &params(method, given)?).await,
        "daemon/shutdown" => shutdown(shell, key, &params(method, given)?).await,
        "client/attach" | "client/detach" => {
            Err(ErrorBody::new("method.not_found", format!("`{method}` needs a WebSocket"))
                .hint("connect to /v1/rpc with a WebSocket, or read /v1/events"))
        }
        other => Err(ErrorBody::new("method.not_found", format!("there is no method `{other}`"))),
    }
}

/// The answer that was given to this very request before.
pub(super) fn known_answer(
    shell: &Shell,
    who: &Who,
    method: &str,
    given: &Value,
) -> Result<Option<Value>, ErrorBody> {
    match request_key(who, method, given)? {
        Some(key) => recorded_answer(shell, &key),
        None => Ok(None),
    }
}

pub(super) fn recorded_answer(shell: &Shell, key: &RequestKey) -> Result<Option<Value>, ErrorBody> {
    let Some(row) = shell.reader.request(&key.caller, &key.request_id).map_err(internal)? else {
        return Ok(None);
    };
    if row.digest != key.digest {
        return Err(*reused(&key.request_id));
    }
    serde_json::from_slice(&row.answer)
        .map(Some)
        .map_err(|error| ErrorBody::new("daemon.internal", error.to_string()))
}

/// Asks for a change that takes its time to prepare: files are read for it.
pub(super) async fn ask_prepared(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    prepare: impl FnOnce(&Shell) -> Result<Command, ErrorBody> + Send + 'static,
) -> Answer {
    let command = {
        let shell = shell.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&shell)).await;
        prepared.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))?
    };
    // Meanwhile the same request, sent before, may be so long decided that only the store knows it.
    if let Some(key) = &key
        && let Some(known) = recorded_answer(shell, key)?
    {
        return Ok(known);
    }
    shell.ask(key, command).await
}

async fn info(shell: &Shell) -> Answer {
    let (total, running, working) = shell.reader.agent_counts().map_err(internal)?;
    let layers = shell
        .layers
        .get_or_init(|| async {
            let layers = shell.host.probe().await.into_iter();
            layers.map(view::layer).collect()
        })
        .await;
    let mut warnings: Vec<String> = layers
        .iter()
        .filter(|layer| !layer.in_force)
        .map(|layer| {
            format!("isolation: {} is missing: {}", layer.name, layer.why.as_deref().unwrap_or("unknown"))
        })
        .collect();
    let storage = shell.room.view(now());
    warnings.extend(shell.room.warning());
    warnings.extend(shell.config.warnings());
    warnings.extend(lineages::waiting(shell)?);
    warnings.extend(shell.providers.last_error().map(|error| format!("providers.yaml: {error}")));
    Ok(view::json(&Info {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: shell.epoch,
        log: shell.log.clone(),
        executor: shell.config.text("executor"),
        socket: shell.config.path("socket-path").display().to_string(),
        http_addr: shell.http_addr(),
        data_dir: shell.config.data_dir.display().to_string(),
        config_file: shell.config.file().map(|file| file.display().to_string()),
        pid: std::process::id(),
        started_at: shell.started_at.to_string(),
        agents: AgentCounts { total, running, working },
        storage,
        isolation: layers.clone(),
        config: shell.config.shown(),
        warnings,
    }))
}

fn agent_list(shell: &Shell, who: &Who, given: &AgentListParams) -> Answer {
    let limit = page(given.limit);
    let rows = match who.agent() {
        None => shell.reader.agents(given.after.as_deref(), limit).map_err(internal)?,
        Some(own) => {
            let own = shell.reader.agent(own).map_err(internal)?;
            own.into_iter().filter(|own| given.after.as_deref() < Some(own.row.id.as_str())).collect()
        }
    };
    let next =
        (rows.len() == limit as usize).then(|| rows.last().map(|last| last.row.id.to_string())).flatten();
    let agents = rows.iter().filter(|found| {
        let labels = &found.row.spec.labels;
        (given.all
            || found.row.state.takes_turns()
            || found.row.state == lodge_core::agent::AgentState::Removing)
            && given.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    });
    Ok(view::json(&AgentList { agents: agents.map(|found| agent_view(shell, found)).collect(), next }))
}

pub(super) fn agent_view(shell: &Shell, found: &AgentSummary) -> AgentView {
    let living = shell.living(&found.row.id);
    view::agent(&found.row, found.working, living.as_deref())
}

fn agent_get(shell: &Shell, given: &AgentRef) -> Answer {
    let found = one_agent(shell, &given.agent)?;
    let image = shell.reader.image(&found.row.image_digest).map_err(internal)?.unwrap_or_default();
    let mut env_keys: Vec<String> = image.env.iter().map(|var| var.key.clone()).collect();
    env_keys.extend(found.row.spec.env.keys().cloned());
    env_keys.sort();
    env_keys.dedup();
    Ok(view::json(&AgentDetail {
        agent: agent_view(shell, &found),
        root: shell.config.data_dir.join("agents").join(found.row.id.as_str()).display().to_string(),
        incarnation: found.row.incarnation,
        runs: found.row.runs,
        runtime_pid: shell.living(&found.row.id).and_then(|living| living.runtime_pid(&shell.host)),
        revival_policy: found.row.spec.policy(shell.config.policy()).word().to_owned(),
        context_window: context_window(shell, &found.row.spec.model),
        uid: found.row.uid,
        tools: view::tools(&found.row),
        configs: image.configs.into_iter().chain(found.row.spec.configs.clone()).collect(),
        env_keys,
        sessions: shell.reader.session_count(&found.row.id).map_err(internal)?,
        agentfile: String::from_utf8_lossy(&image.agentfile).into_owned(),
    }))
}

fn context_window(shell: &Shell, model: &str) -> Option<u64> {
    let resolved = shell.providers.resolve(model).ok()?;
    resolved.provider.context_window(&resolved.model)
}

fn agent_logs(shell: &Shell, given: &AgentLogsParams) -> Answer {
    use std::io::{Read, Seek, SeekFrom};
    let id = find_agent(shell, &given.agent)?;
    let path = shell.config.data_dir.join("logs").join(format!("{id}.log"));
    let mut bytes = Vec::new();
    let mut end = 0;
    if let Ok(mut file) = std::fs::File::open(&path) {
        let length = file.metadata().map_or(0, |meta| meta.len());
        let from = given.after.unwrap_or(0).max(length.saturating_sub(LOG_BYTES_MAX)).min(length);
        let read =
            file.seek(SeekFrom::Start(from)).and_then(|_| file.take(LOG_BYTES_MAX).read_to_end(&mut bytes));
        let read = read.map_err(|error| {
            ErrorBody::new("daemon.internal", "the log could not be read").because(error.to_string())
        })?;
        end = from + read as u64;
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = match given.after {
        Some(_) => text.into_owned(),
        None => {
            let lines: Vec<&str> = text.lines().collect();
            let keep = given.lines.unwrap_or(LOG_LINES_DEFAULT) as usize;
            lines[lines.len().saturating_sub(keep)..].iter().map(|line| format!("{line}\n")).collect()
        }
    };
    Ok(view::json(&AgentLogs { path: path.display().to_string(), text, end }))
}

async fn turn_send(shell: &Shell, key: Option<RequestKey>, given: TurnSendParams) -> Answer {
    let agent = find_agent(shell, &given.agent)?;
    let session = match (&given.session, &given.sender) {
        (Some(_), Some(_)) => {
            return Err(ErrorBody::new("params.invalid", "name a session or a sender, not both"));
        }
        (Some(session), None) => {
            let id = session_id(session)?;
            let fact = shell.reader.session_fact(&id).map_err(internal)?;
            SessionChoice::Named { id, fact }
        }
        (None, Some(sender)) => {
            // A sender's session has an id of its own, so that two first messages at once are one session.
            let mut fact = shell.reader.session_of(&agent, sender).map_err(internal)?;
            let id = match &fact {
                Some(fact) => fact.row.id.clone(),
                None => sender_session(&shell.state_key.0, &agent, sender)?,
            };
            if fact.is_none() {
                // Somebody may have made a session of that very id by name.
                fact = shell.reader.session_fact(&id).map_err(internal)?;
            }
            SessionChoice::Named { id, fact }
        }
        (None, None) => SessionChoice::Fresh,
    };
    let schema = given.schema.map(checked_schema).transpose()?;
    let new = NewTurn { agent, session, sender: given.sender, text: given.text, schema };
    shell.ask(key, Command::SendTurn(Box::new(new))).await
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

/// The id of the session of an agent with a sender: the same for everybody who asks, and known to nobody before, so that
/// whoever may begin sessions of another agent cannot take it.
fn sender_session(key: &[u8; 32], agent: &AgentId, sender: &str) -> Result<SessionId, ErrorBody> {
    if sender.is_empty() || sender.len() > 256 {
        return Err(ErrorBody::new("params.invalid", "a sender has 1 to 256 bytes"));
    }
    let digest = crate::auth::derive(key, &["sender", agent.as_str(), sender]);
    let short: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    session_id(&format!("ses_{short}"))
}

fn turn_get(shell: &Shell, given: &TurnRef) -> Answer {
    let id = turn_id(&given.turn)?;
    let found = shell.reader.turn(&id).map_err(internal)?;
    let found = found.ok_or_else(|| no_turn(&id))?;
    Ok(view::json(&view::full_turn(found)))
}

async fn reap(shell: &Arc<Shell>, key: Option<RequestKey>, ReapParams { .. }: &ReapParams) -> Answer {
    let answer = view::json(&crate::reap::reap(shell).await.map_err(internal)?);
    if key.is_some() {
        match shell.ask(key, Command::Keep { answer: answer.clone() }).await {
            Ok(_) => {}
            // Sweeping twice harms nobody, and makes room where there is none.
            Err(error) if error.data.code == "daemon.disk_full" => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

async fn shutdown(shell: &Arc<Shell>, key: Option<RequestKey>, given: &ShutdownParams) -> Answer {
    if given.agents {
        let agents = shell.reader.agents(None, u32::MAX).map_err(internal)?;
        let stops = agents.into_iter().filter(|found| found.row.state.takes_turns()).map(|found| {
            let shell = shell.clone();
            async move { shell.ask(None, Command::StopAgent { id: found.row.id }).await }
        });
        for stopped in futures_util::future::join_all(stops).await {
            stopped?;
        }
    }
    let answer = view::json(&Done { done: true });
    if key.is_some() {
        match shell.ask(key, Command::Keep { answer: answer.clone() }).await {
            Ok(_) => {}
            // Asked twice it ends once, so a daemon that can record nothing can still be ended.
            Err(error) if error.data.code == "daemon.disk_full" => {}
            Err(error) => return Err(error),
        }
    }
    // Requests that were taken, this one among them, are still answered.
    shell.stop.cancel();
    Ok(answer)
}

pub(super) fn find_agent(shell: &Shell, given: &str) -> Result<AgentId, ErrorBody> {
    the_one(shell.reader.find_agent(given).map_err(internal)?, given)
}

/// Like `find_agent`, for what outlives agents: one that was removed is found as well, if no other has its name.
pub(super) fn find_agent_ever(shell: &Shell, given: &str) -> Result<AgentId, ErrorBody> {
    match shell.reader.find_agent_ever(given).map_err(internal)? {
        AgentFound::Many(ids) if !given.starts_with(AgentId::PREFIX) => {
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

fn the_one(found: AgentFound, given: &str) -> Result<AgentId, ErrorBody> {
    match found {
        AgentFound::One(id) => Ok(id),
        AgentFound::None => Err(no_agent(given)),
        AgentFound::Many(ids) => {
            let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
            Err(ErrorBody::new("agent.ambiguous", format!("several agents start with `{given}`"))
                .hint(format!("give more of the id: {}", ids.join(", "))))
        }
    }
}

pub(super) fn one_agent(shell: &Shell, given: &str) -> Result<AgentSummary, ErrorBody> {
    let id = find_agent(shell, given)?;
    shell.reader.agent(&id).map_err(internal)?.ok_or_else(|| no_agent(given))
}

pub(super) fn no_agent(given: &str) -> ErrorBody {
    ErrorBody::new("agent.not_found", format!("no agent `{given}`")).hint("`lodge ps -a` lists all agents")
}

pub(super) fn no_turn(id: &TurnId) -> ErrorBody {
    ErrorBody::new("turn.not_found", format!("no turn `{id}`"))
}

fn turn_id(given: &str) -> Result<TurnId, ErrorBody> {
    given.parse().map_err(|_| {
        ErrorBody::new("turn.not_found", format!("no turn `{given}`"))
            .hint("`lodge session show` lists turns")
    })
}

pub(super) fn session_id(given: &str) -> Result<SessionId, ErrorBody> {
    given
        .parse()
        .map_err(|error: lodge_core::id::BadSessionId| ErrorBody::new("session.bad_id", error.to_string()))
}

pub(super) fn future(cursor: u64, head: u64) -> ErrorBody {
    ErrorBody::new("cursor.future", format!("the cursor {cursor} is ahead of the log, which is at {head}"))
        .hint("leave `since` out to start from now")
}

pub(super) fn page(limit: Option<u32>) -> u32 {
    limit.unwrap_or(PAGE_DEFAULT).clamp(1, PAGE_MAX)
}

#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
pub(super) fn internal(error: ReadError) -> ErrorBody {
    ErrorBody::new("daemon.internal", error.to_string())
        .because(std::error::Error::source(&error).map(chain).unwrap_or_default())
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

//! `sandbox/…`: standalone sandboxes, created, listed, stopped, resumed and removed.

use std::sync::Arc;

use lodge_core::SandboxId;
use lodge_core::record::{BinRecord, NetworkRecord, ToolRecord};
use lodge_core::sandbox::{SandboxRecord, SandboxState};
use lodge_engine::{Command, NewSandbox, RequestKey, SandboxCommand, SandboxRefusal};
use lodge_image::agentfile::{SHELL_NAME, is_tool_name, read_network};
use lodge_proto::{
    ApiMethod, CreateSandbox, ErrorBody, GetSandbox, ListSandboxes, RemoveSandbox, ResumeSandbox,
    SandboxChangeParams, SandboxCreateParams, SandboxList, SandboxListParams, SandboxView, StopSandbox,
};
use lodge_store::SandboxFilter;
use serde_json::Value;

use super::create::{check_env, find_tool, mounts};
use super::methods::{PreparedChange, Reply, ask_prepared, changed, internal, no_method, page, reply};
use super::{params, update};
use crate::images::record::network_record;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;

/// The only executor of this release.
const EXECUTOR: &str = "system";

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Reply {
    match method {
        CreateSandbox::NAME => {
            let given = params::<CreateSandbox>(given)?;
            let answer = ask_prepared(shell, key, move |shell| prepare(shell, given)).await?;
            changed::<CreateSandbox>(&answer)
        }
        ListSandboxes::NAME => {
            let given = params::<ListSandboxes>(given)?;
            shell.read(move |at| reply::<ListSandboxes>(list(at, &given))).await
        }
        GetSandbox::NAME => {
            let given = params::<GetSandbox>(given)?;
            shell.read_few(move |at| reply::<GetSandbox>(get(at, &given.sandbox))).await
        }
        StopSandbox::NAME => {
            let id = named(shell, params::<StopSandbox>(given)?).await?;
            let command = Command::Sandbox(SandboxCommand::Stop { id });
            changed::<StopSandbox>(&shell.ask(key, command).await?)
        }
        ResumeSandbox::NAME => {
            let id = named(shell, params::<ResumeSandbox>(given)?).await?;
            let command = Command::Sandbox(SandboxCommand::Resume { id });
            changed::<ResumeSandbox>(&shell.ask(key, command).await?)
        }
        RemoveSandbox::NAME => {
            let id = named(shell, params::<RemoveSandbox>(given)?).await?;
            let command = Command::Sandbox(SandboxCommand::Remove { id });
            changed::<RemoveSandbox>(&shell.ask(key, command).await?)
        }
        _other => Err(no_method(method)),
    }
}

async fn named(shell: &Arc<Shell>, given: SandboxChangeParams) -> Result<SandboxId, ErrorBody> {
    shell.read_few(move |at| find(at, &given.sandbox)).await
}

/// Everything that can be wrong is found before anything is recorded.
fn prepare(shell: &Shell, given: SandboxCreateParams) -> Result<PreparedChange, ErrorBody> {
    if given.image.is_some() {
        return Err(view::refused(SandboxRefusal::Image));
    }
    let id = given.id.as_deref().map(SandboxId::choose).transpose();
    let id = id.map_err(|bad| view::refused(SandboxRefusal::from(bad)))?;
    check_env(given.env.iter())?;
    let mut tools = Vec::new();
    for (name, program) in &given.bins {
        tools.push(tool(shell, name, program)?);
    }
    if given.shell {
        tools.retain(|tool| tool.name != SHELL_NAME);
        let shell_bin = BinRecord {
            name: SHELL_NAME.to_owned(),
            host: SHELL_NAME.to_owned(),
            shell: true,
            ..BinRecord::default()
        };
        tools.push(find_tool(shell, &shell_bin)?);
    }
    let (limits, policy) = update::limits(&given.limits)?;
    if policy.is_some() {
        return Err(ErrorBody::new("params.invalid", "a sandbox has no revival policy")
            .hint("it is failed when it dies; `lodge sandbox resume` starts it again"));
    }
    let record = SandboxRecord {
        env: given.env,
        labels: given.labels,
        mounts: mounts(shell, &given.mounts, &[])?,
        tools,
        limits,
        network: Some(network(&given.network)?),
        executor: EXECUTOR.to_owned(),
    };
    let new = Box::new(NewSandbox { id, record });
    Ok(PreparedChange::of(Command::Sandbox(SandboxCommand::Create(new))))
}

/// A tool of a sandbox: a program of the host.
fn tool(shell: &Shell, name: &str, program: &str) -> Result<ToolRecord, ErrorBody> {
    if !is_tool_name(name) {
        return Err(ErrorBody::new("params.invalid", format!("`{name}` is not the name of a tool"))
            .hint("a name has 1 to 63 of A-Z a-z 0-9 . _ -, and begins with a letter or a digit"));
    }
    let Some(host) = program.strip_prefix("host:").filter(|host| !host.is_empty()) else {
        return Err(view::refused(SandboxRefusal::Tool { given: program.to_owned() }));
    };
    let bin = BinRecord { name: name.to_owned(), host: host.to_owned(), ..BinRecord::default() };
    find_tool(shell, &bin).map_err(|error| {
        let hint = "install that program on this host, or leave the tool out";
        ErrorBody::new(&error.data.code, error.message).hint(hint)
    })
}

fn network(words: &[String]) -> Result<NetworkRecord, ErrorBody> {
    if words.is_empty() {
        return Ok(NetworkRecord::by_default());
    }
    match read_network(words) {
        Ok(network) => Ok(network_record(network)),
        Err(word) => Err(ErrorBody::new("params.invalid", format!("`{word}` is no network")).hint(
            "give `none`, `public`, `lan` or `host`, or a list of `host[:port]`, CIDRs and `loopback:PORT`",
        )),
    }
}

fn get(at: &ReadView<'_>, given: &str) -> Result<SandboxView, ErrorBody> {
    let id = find(at, given)?;
    one(at, &id)
}

/// The current state of a sandbox.
pub(super) fn one(at: &ReadView<'_>, id: &SandboxId) -> Result<SandboxView, ErrorBody> {
    let row = at.store.sandbox(id).map_err(internal)?.ok_or_else(|| no_sandbox(id.as_str()))?;
    Ok(view::sandbox(&row, at.living_standalone(id).as_deref()))
}

fn list(at: &ReadView<'_>, given: &SandboxListParams) -> Result<SandboxList, ErrorBody> {
    let states = match &given.status {
        Some(word) => states(word)?,
        None if given.all => Vec::new(),
        None => SandboxState::ALL.into_iter().filter(|state| state.is_live()).collect(),
    };
    let before = given.before.as_deref().map(|before| find(at, before)).transpose()?;
    let filter = SandboxFilter { states: &states, labels: &given.labels, before: before.as_ref() };
    let limit = page(given.limit);
    let rows = at.store.sandboxes(filter, limit + 1).map_err(internal)?;
    let is_last = rows.len() <= limit as usize;
    let shown = &rows[..rows.len().min(limit as usize)];
    let sandboxes = shown.iter().map(|row| view::sandbox(row, at.living_standalone(&row.id).as_deref()));
    let next = shown.last().filter(|_| !is_last).map(|row| row.id.to_string());
    Ok(SandboxList { sandboxes: sandboxes.collect(), next })
}

/// Sandboxes that are not at rest, the newest first.
pub(super) fn live(at: &ReadView<'_>, limit: u32) -> Result<Vec<SandboxView>, ErrorBody> {
    let given = SandboxListParams { limit: Some(limit), ..SandboxListParams::default() };
    Ok(list(at, &given)?.sandboxes)
}

fn states(word: &str) -> Result<Vec<SandboxState>, ErrorBody> {
    let states = SandboxState::from_word(word);
    if !states.is_empty() {
        return Ok(states);
    }
    Err(ErrorBody::new("params.invalid", format!("`{word}` is not the status of a sandbox"))
        .hint("those are pending, ready, stopped, failed, deleting, deleted"))
}

/// The sandbox that an id or a unique beginning of one means.
pub(super) fn find(at: &ReadView<'_>, given: &str) -> Result<SandboxId, ErrorBody> {
    let found = if given.is_empty() { Vec::new() } else { at.store.find_sandbox(given).map_err(internal)? };
    match found.as_slice() {
        [] => Err(no_sandbox(given)),
        [one] => Ok(one.clone()),
        several => match several.iter().find(|id| id.as_str() == given) {
            Some(exactly) => Ok(exactly.clone()),
            None => {
                let ids = several.iter().map(ToString::to_string).collect();
                Err(view::refused(SandboxRefusal::Ambiguous { given: given.to_owned(), ids }))
            }
        },
    }
}

fn no_sandbox(given: &str) -> ErrorBody {
    view::refused(SandboxRefusal::NotFound { given: given.to_owned() })
}

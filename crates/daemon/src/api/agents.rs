//! Agents: listed, read, started and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use lodge_core::{AgentId, Timestamp};
use lodge_image::registry::TransferWatch;
use lodge_proto::*;
use lodge_store::AgentSummary;
use serde_json::Value;

use super::methods::{Reply, changed, find_agent, internal, no_method, one_agent, page, reply};
use super::{create, params, update};
use crate::auth::ApiCaller;
use crate::host_trees::HostTrees;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::{AgentCommand, Command, RequestKey, RunningJobs, SandboxSettings};

const LOG_LINES_DEFAULT: u32 = 200;
/// The longest piece of a log that one answer carries.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

pub(super) async fn call(
    shell: &Arc<Shell>,
    who: &ApiCaller,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    match method {
        CreateAgent::NAME => {
            changed::<CreateAgent>(&create::create(shell, key, params::<CreateAgent>(given)?, watch).await?)
        }
        ListAgents::NAME => {
            let (who, given) = (who.clone(), params::<ListAgents>(given)?);
            shell.read(move |at| reply::<ListAgents>(agent_list(at, &who, &given))).await
        }
        GetAgent::NAME => {
            let given = params::<GetAgent>(given)?;
            shell.read_few(move |at| reply::<GetAgent>(agent_get(at, &given))).await
        }
        StartAgent::NAME => {
            let given = params::<StartAgent>(given)?;
            let id = agent_id(shell, given.agent).await?;
            changed::<StartAgent>(&shell.ask(key, Command::Agent(AgentCommand::Start { id })).await?)
        }
        RestartAgent::NAME => {
            let given = params::<RestartAgent>(given)?;
            let id = agent_id(shell, given.agent).await?;
            changed::<RestartAgent>(
                &shell
                    .ask(
                        key,
                        Command::Agent(AgentCommand::Restart {
                            id,
                            jobs: running_jobs(given.jobs.as_deref())?,
                        }),
                    )
                    .await?,
            )
        }
        UpdateAgent::NAME => {
            changed::<UpdateAgent>(&update::update(shell, key, params::<UpdateAgent>(given)?, watch).await?)
        }
        StopAgent::NAME => {
            let given = params::<StopAgent>(given)?;
            let id = agent_id(shell, given.agent).await?;
            changed::<StopAgent>(
                &shell
                    .ask(
                        key,
                        Command::Agent(AgentCommand::Stop { id, jobs: running_jobs(given.jobs.as_deref())? }),
                    )
                    .await?,
            )
        }
        KillAgent::NAME => {
            let given = params::<KillAgent>(given)?;
            let id = agent_id(shell, given.agent).await?;
            changed::<KillAgent>(&shell.ask(key, Command::Agent(AgentCommand::Kill { id })).await?)
        }
        RemoveAgent::NAME => {
            let given = params::<RemoveAgent>(given)?;
            let id = agent_id(shell, given.agent).await?;
            changed::<RemoveAgent>(
                &shell.ask(key, Command::Agent(AgentCommand::Remove { id, force: given.force })).await?,
            )
        }
        ReadAgentLogs::NAME => {
            let given = params::<ReadAgentLogs>(given)?;
            shell.read(move |at| reply::<ReadAgentLogs>(agent_logs(at, &given))).await
        }
        _other => Err(no_method(method)),
    }
}

async fn agent_id(shell: &Arc<Shell>, given: String) -> Result<AgentId, ErrorBody> {
    shell.read_few(move |at| find_agent(at, &given)).await
}

fn running_jobs(given: Option<&str>) -> Result<RunningJobs, ErrorBody> {
    match given {
        None | Some("cancel") => Ok(RunningJobs::Cancel),
        Some("refuse") => Ok(RunningJobs::Refuse),
        Some(other) => {
            Err(ErrorBody::new("params.invalid", format!("`{other}` cannot be done with running jobs"))
                .hint("`jobs` is `cancel` or `refuse`"))
        }
    }
}

fn agent_list(at: &ReadView<'_>, who: &ApiCaller, given: &AgentListParams) -> Result<AgentList, ErrorBody> {
    let limit = page(given.limit);
    let rows = match who.agent() {
        None => at.store.agents(given.after.as_deref(), limit).map_err(internal)?,
        Some(own) => {
            let own = at.store.agent(own).map_err(internal)?;
            own.into_iter().filter(|own| given.after.as_deref() < Some(own.row.id.as_str())).collect()
        }
    };
    let next =
        (rows.len() == limit as usize).then(|| rows.last().map(|last| last.row.id.to_string())).flatten();
    let agents = rows.iter().filter(|found| {
        let labels = &found.row.spec.labels;
        (given.all
            || found.row.state.takes_turns()
            // It is failing, and works on it.
            || found.row.retry.at.is_some()
            || found.row.state == lodge_core::agent::AgentState::Removing)
            && given.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    });
    let used = if given.usage { at.store.usage_of_agents().map_err(internal)? } else { BTreeMap::new() };
    let agents = agents.map(|found| AgentView {
        usage: given.usage.then(|| view::usage(used.get(&found.row.id).copied().unwrap_or_default())),
        ..agent_view(at, found)
    });
    Ok(AgentList { agents: agents.collect(), next })
}

pub(super) fn agent_view(shell: &Shell, found: &AgentSummary) -> AgentView {
    let living = shell.living(&found.row.id);
    AgentView {
        quarantine: found.quarantine.iter().map(|row| view::quarantined(row, "quarantined")).collect(),
        waiting: view::agent_waits(&found.parked),
        ..view::agent(&found.row, found.working, living.as_deref())
    }
}

fn agent_get(at: &ReadView<'_>, given: &AgentRef) -> Result<AgentDetail, ErrorBody> {
    let found = one_agent(at, &given.agent)?;
    let image = at.store.image(&found.row.image_digest).map_err(internal)?.unwrap_or_default();
    let jobs = at.store.open_jobs(&found.row.id).map_err(internal)?;
    let mut env_keys: Vec<String> = image.env.iter().map(|var| var.key.clone()).collect();
    env_keys.extend(found.row.spec.env.keys().cloned());
    env_keys.sort();
    env_keys.dedup();
    let agentfile = view::agentfile(&image.agentfile, &image.env);
    Ok(AgentDetail {
        agent: AgentView {
            usage: Some(view::usage(at.store.agent_usage(&found.row.id).map_err(internal)?)),
            ..agent_view(at, &found)
        },
        root: at.config.data_dir.join("agents").join(found.row.id.as_str()).display().to_string(),
        incarnation: found.row.incarnation,
        runs: found.row.runs,
        runtime_pid: at.living(&found.row.id).and_then(|living| living.runtime_pid(&*at.executor)),
        revival_policy: found.row.spec.policy(at.config.settings().revival_policy).word().to_owned(),
        context_window: context_window(at, &found.row.spec.model),
        uid: found.row.uid,
        host_dirs: HostTrees::of(&SandboxSettings::from(&found.row.spec), &at.config.data_dir)
            .trees
            .iter()
            .map(|dir| dir.display().to_string())
            .collect(),
        tools: view::tools(&found.row),
        configs: image.configs.into_iter().chain(found.row.spec.configs.clone()).collect(),
        env_keys,
        sessions: at.store.session_count(&found.row.id).map_err(internal)?,
        jobs: JobCounts { pending: jobs.pending, running: jobs.running },
        agentfile,
    })
}

fn context_window(shell: &Shell, model: &str) -> Option<u64> {
    let resolved = shell.providers().resolve(model).ok()?;
    resolved.provider.context_window(&resolved.model)
}

/// The smallest number at the begin of a line that is a time: in 2001.
const LOG_MS_MIN: i64 = 1_000_000_000_000;

/// A line of a log as people read it. Lines of Lodge begin with milliseconds; those of other programs are shown as they are.
fn log_line(line: &str, debug: bool) -> Option<String> {
    let parsed = line.split_once(' ').and_then(|(ms, rest)| Some((ms.parse::<i64>().ok()?, rest)));
    let Some((ms, rest)) = parsed.filter(|(ms, _)| *ms >= LOG_MS_MIN) else {
        // The stock runtime of earlier releases wrote its level first.
        return (debug || !line.starts_with("level=debug ")).then(|| line.to_owned());
    };
    let is_debug = rest.split_once(": ").is_some_and(|(_, what)| what.starts_with("debug "));
    (debug || !is_debug).then(|| format!("{} {rest}", Timestamp::from_ms(ms)))
}

fn agent_logs(at: &ReadView<'_>, given: &AgentLogsParams) -> Result<AgentLogs, ErrorBody> {
    use std::io::{Read, Seek, SeekFrom};
    let id = find_agent(at, &given.agent)?;
    let path = at.config.data_dir.join("logs").join(format!("{id}.log"));
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
    if given.after.is_some()
        && let Some(whole) = bytes.iter().rposition(|byte| *byte == b'\n')
    {
        // The rest of a line comes with the next request.
        end -= (bytes.len() - whole - 1) as u64;
        bytes.truncate(whole + 1);
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<String> = text.lines().filter_map(|line| log_line(line, given.debug)).collect();
    if given.after.is_none() {
        let keep = given.lines.unwrap_or(LOG_LINES_DEFAULT) as usize;
        lines.drain(..lines.len().saturating_sub(keep));
    }
    let text = lines.iter().map(|line| format!("{line}\n")).collect();
    Ok(AgentLogs { path: path.display().to_string(), text, end })
}

#[cfg(test)]
mod tests {
    use super::log_line;

    #[test]
    fn lines_of_a_log_have_readable_times_and_those_for_debugging_are_left_out() {
        let cases = [
            ("1795031284723 keeper: ends", Some("2026-11-18T19:48:04.723Z keeper: ends")),
            ("1795031284723 runtime: debug turn.started turn=trn_1", None),
            (
                "1795031284723 runtime: turn.finished turn=trn_1",
                Some("2026-11-18T19:48:04.723Z runtime: turn.finished turn=trn_1"),
            ),
            ("level=debug event=turn.started", None),
            ("200 requests: debug is off", Some("200 requests: debug is off")),
            ("Traceback (most recent call last):", Some("Traceback (most recent call last):")),
        ];
        for (line, expected) in cases {
            assert_eq!(log_line(line, false).as_deref(), expected, "{line}");
            assert!(log_line(line, true).is_some(), "{line}");
        }
    }
}

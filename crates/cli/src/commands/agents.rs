//! `ps`, `inspect`, `start`, `stop`, `restart`, `kill`, `rm`.

use lodge_proto::{
    AgentDetail, AgentListParams, AgentRef, AgentRemoveParams, AgentView, GetAgent, GetLineage, KillAgent,
    LimitView, LineageRef, LineageView, ListAgents, Mount, PAGE_MAX, QuarantineView, RemoveAgent, StartAgent,
    UsageView, error_code,
};

use super::jobs_stop::{AgentStopKind, StopWithJobs};
use super::results::ResultList;
use super::{CommandContext, agent_waits, lineages, map, request_id};
use crate::args::{AgentRefs, JobsFate, ListArgs};
use crate::failure::{CommandExit, CommandFailure};
use crate::follow::{DaemonClient, FollowScope, FollowedItem};
use crate::render::{self, ago, now_s, or_dash, until};
use crate::words::{Words, put};

/// Most entries of quarantine that are printed one by one. Beyond these, the hint is `lodge quarantine ls`.
const QUARANTINE_PRINTED_MAX: usize = 5;

pub(super) async fn list(context: &CommandContext, args: ListArgs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let labels = map(args.label);
    let mut agents: Vec<AgentView> = Vec::new();
    let mut after = None;
    loop {
        let limit = Some(PAGE_MAX);
        let params =
            AgentListParams { all: args.all, labels: labels.clone(), usage: args.wide, after, limit };
        let page = daemon.call::<ListAgents>(params).await?;
        agents.extend(page.agents);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if context.words.json {
        return context.words.json(&agents);
    }
    if context.words.quiet {
        return put(&agents.iter().map(|agent| format!("{}\n", agent.id)).collect::<String>());
    }
    let now = now_s();
    let orphaned = lineages::orphaned(&mut daemon).await?;
    let waiting = lineages::waiting(&mut daemon).await?;
    let stuck: Vec<&LineageView> = orphaned.iter().chain(&waiting).collect();
    let mut header = vec!["ID", "NAME", "IMAGE", "MODEL", "STATUS", "CONTEXT", "CREATED"];
    let mut rows: Vec<Vec<String>> = agents.iter().map(|agent| row(agent, &stuck, now)).collect();
    if args.wide {
        header.extend(["TOKENS", "COST"]);
        for (row, agent) in rows.iter_mut().zip(&agents) {
            row.extend(usage_cells(agent.usage.as_ref()));
        }
    }
    context.put_table(&header, &rows)?;
    lineages::print_waiting(context, &waiting);
    print_quarantine(context, &agents);
    Ok(())
}

/// Says which of these agents have work in quarantine, and how a decision is made.
fn print_quarantine(context: &CommandContext, agents: &[AgentView]) {
    let all: Vec<(&str, &QuarantineView)> = agents
        .iter()
        .flat_map(|agent| agent.quarantine.iter().map(|work| (agent.name.as_str(), work)))
        .collect();
    for (name, work) in all.iter().take(QUARANTINE_PRINTED_MAX) {
        context.words.print_note(&format!("{name}: in quarantine: {}", render::quarantined(work)));
    }
    match all.as_slice() {
        [] => {}
        [(_, only)] => context.words.print_note(&format!("hint: {}", render::quarantine_step(&only.id))),
        _ => context
            .words
            .print_note(&format!("hint: `lodge quarantine ls` lists all; {}", render::quarantine_step("ID"))),
    }
}

/// The state, and in brackets what a person should know of it.
fn status(agent: &AgentView, stuck: &[&LineageView], now: i64) -> String {
    let mut asides: Vec<String> = match agent.status.as_str() {
        "failed" => agent.failure_reason.clone().into_iter().collect(),
        "pulling" | "starting" => {
            agent.attempt.map(|failures| format!("try {}", failures + 1)).into_iter().collect()
        }
        _ => agent.liveness.clone().filter(|level| *level != "active").into_iter().collect(),
    };
    asides.extend(agent.retry_at.as_ref().map(|at| format!("next try {}", until(at, now))));
    asides.extend(
        stuck.iter().find(|lineage| lineage.id == agent.lineage).map(|lineage| lineages::standing(lineage)),
    );
    asides.extend(agent.waiting.iter().map(|wait| agent_waits::status_note(wait, now)));
    asides
        .extend((!agent.quarantine.is_empty()).then(|| format!("{} in quarantine", agent.quarantine.len())));
    if asides.is_empty() { agent.status.clone() } else { format!("{} ({})", agent.status, asides.join(", ")) }
}

fn row(agent: &AgentView, stuck: &[&LineageView], now: i64) -> Vec<String> {
    let status = status(agent, stuck, now);
    vec![
        agent.id.clone(),
        agent.name.clone(),
        or_dash(Some(&agent.image)),
        or_dash(Some(&agent.model)),
        status,
        or_dash(agent.context_state.as_deref()),
        ago(&agent.created_at, now),
    ]
}

/// Tokens and cost, as columns.
pub(super) fn usage_cells(usage: Option<&UsageView>) -> [String; 2] {
    match usage {
        Some(used) => [
            render::tokens(used.input_tokens.saturating_add(used.output_tokens)),
            render::dollars(used.cost_usd),
        ],
        None => ["-".to_owned(), "-".to_owned()],
    }
}

pub(super) async fn inspect(context: &CommandContext, refs: AgentRefs) -> Result<(), CommandFailure> {
    let mut daemon = context.daemon().await?;
    let mut batch = ResultList::new(&context.words, refs.agents.len());
    for agent in refs.agents {
        let params = AgentRef { agent, request_id: None };
        match daemon.call::<GetAgent>(params).await {
            Ok(detail) => {
                let asked = find_pending_lineage(&mut daemon, &detail.agent).await?;
                batch.done(&detail, || detail_text(&detail, asked.as_ref()))?;
            }
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

/// The agent's lineage, if it waits for a decision.
async fn find_pending_lineage(
    daemon: &mut DaemonClient<'_>,
    agent: &AgentView,
) -> Result<Option<LineageView>, CommandFailure> {
    let waiting = lineages::waiting(daemon).await?;
    Ok(waiting.into_iter().find(|lineage| lineage.id == agent.lineage))
}

fn detail_text(detail: &AgentDetail, asked: Option<&LineageView>) -> String {
    let agent = &detail.agent;
    let decision = asked.map(|lineage| format!("waits for yours: {}", render::next_step(&lineage.id)));
    let usage = agent.usage.as_ref();
    let usage = usage.and_then(|used| render::usage(used.input_tokens, used.output_tokens, used.cost_usd));
    let labels: Vec<String> = agent.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let mut rows = vec![
        ("id", agent.id.clone()),
        ("name", agent.name.clone()),
        ("status", agent.status.clone()),
        (
            "failure",
            [&agent.failure_reason, &agent.failure_detail]
                .into_iter()
                .flatten()
                .cloned()
                .collect::<Vec<_>>()
                .join(": "),
        ),
        ("next try", agent.retry_at.clone().map(|at| next_try(&at, agent.attempt)).unwrap_or_default()),
        ("decision", decision.unwrap_or_default()),
        (
            "model",
            match detail.context_window {
                Some(tokens) => format!("{} (a context of {tokens} tokens)", agent.model),
                None => agent.model.clone(),
            },
        ),
        ("image", agent.image.clone()),
        ("digest", agent.image_digest.clone()),
        ("created", agent.created_at.clone()),
        ("started", agent.started_at.clone().unwrap_or_default()),
        ("liveness", agent.liveness.clone().unwrap_or_default()),
        ("heartbeat", agent.last_heartbeat_at.clone().unwrap_or_default()),
        ("keeper pid", agent.pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ("runtime pid", detail.runtime_pid.map(|pid| pid.to_string()).unwrap_or_default()),
        ("context", agent.context_state.clone().unwrap_or_default()),
        ("usage", usage.unwrap_or_default()),
        ("sessions", detail.sessions.to_string()),
        ("lineage", agent.lineage.clone()),
        ("policy", detail.revival_policy.clone()),
        ("sandbox", agent.sandbox.clone()),
        ("network", format!("{} {}", agent.network.mode, agent.network.allow.join(" ")).trim().to_owned()),
        ("root", detail.root.clone()),
        ("labels", labels.join(" ")),
        ("environment", detail.env_keys.join(" ")),
    ];
    rows.retain(|(_, value)| !value.is_empty());
    let now = now_s();
    let behind_status = rows.iter().position(|(key, _)| *key == "model").unwrap_or(rows.len());
    rows.splice(
        behind_status..behind_status,
        agent.quarantine.iter().map(|work| {
            ("quarantine", format!("{}; {}", render::quarantined(work), render::quarantine_step(&work.id)))
        }),
    );
    rows.splice(
        behind_status..behind_status,
        agent.waiting.iter().map(|wait| ("waiting", agent_waits::detail(wait, now))),
    );
    rows.extend(agent.mounts.iter().map(|mount| {
        let what = mount.description.as_ref().map(|what| format!(": {what}")).unwrap_or_default();
        ("mount", format!("{} at {}{}{what}", mount.host, mount.target, mount_mode(mount, detail.uid)))
    }));
    rows.extend(detail.host_dirs.iter().map(|dir| ("host", format!("{dir} (read-only, for host programs)"))));
    rows.extend(detail.configs.iter().map(|(key, value)| ("config", format!("{key}={value}"))));
    rows.extend(detail.tools.iter().map(|tool| {
        let safe = if tool.safe { ", safe to repeat" } else { "" };
        let path = tool.path.as_ref().map(|path| format!(": {path}")).unwrap_or_default();
        let digest = tool.digest.as_ref().map(|digest| format!(", {digest}")).unwrap_or_default();
        ("tool", format!("{} from {}{path}{safe}{digest}", tool.name, tool.source))
    }));
    let shells = detail.tools.iter().filter_map(|tool| tool.opens.as_ref().map(|opens| (tool, opens)));
    rows.extend(shells.map(|(tool, opens)| ("shell", format!("{} runs {opens}", tool.name))));
    if let Some(note) = detail.tools.iter().find_map(|tool| tool.note.as_ref()) {
        rows.push(("", format!("host tools are {}", note.trim_start_matches("a host program: "))));
    }
    rows.extend(agent.limits.iter().map(|limit| ("limit", limit_text(limit))));
    rows.extend(agent.isolation.iter().map(|layer| {
        let why = layer.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        (
            "isolation",
            format!("{} {}{why}", layer.name, if layer.in_force { "holds" } else { "does not hold" }),
        )
    }));
    render::pairs(&rows)
}

/// How a mount is mounted: whether it can be written, and whose rights the agent has in it.
fn mount_mode(mount: &Mount, own_uid: Option<u32>) -> String {
    let access = match (&mount.owner, own_uid) {
        (Some(owner), _) => Some(format!("owner {owner} → agent")),
        (None, Some(_)) => Some("plain, rights of others".to_owned()),
        // The agents of an ordinary user are that user.
        (None, None) => None,
    };
    let parts: Vec<String> =
        mount.read_only.then(|| "read-only".to_owned()).into_iter().chain(access).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn limit_text(limit: &LimitView) -> String {
    let amount = match (limit.name.as_str(), limit.limit) {
        (_, None) => "half of what is free at the start".to_owned(),
        ("pids", Some(pids)) => pids.to_string(),
        ("cpu_time", Some(ms)) => format!("{} s for each tool call", ms as f64 / 1000.0),
        ("output", Some(bytes)) => format!("{} for each tool call", render::size(bytes)),
        (_, Some(bytes)) => render::size(bytes),
    };
    let source = if limit.source == "default" { " (default)" } else { "" };
    let by = limit.by.as_ref().map(|by| format!(", by {by}")).unwrap_or_default();
    format!("{} {amount}{source}{by}", limit.name)
}

fn next_try(at: &str, failures: Option<u32>) -> String {
    let failures = failures.unwrap_or(1);
    let times = if failures == 1 { "once".to_owned() } else { format!("{failures} times") };
    format!("{at} (failed {times} in a row)")
}

/// What to do with each of several agents.
#[derive(Debug, Clone, Copy)]
pub(super) enum AgentAction {
    Start,
    /// Stop, with the choice for its jobs; open if the user made none.
    Stop {
        jobs: Option<JobsFate>,
    },
    Restart {
        jobs: Option<JobsFate>,
    },
    Kill,
    Remove {
        force: bool,
    },
}

/// Does it to each agent; one that fails does not keep the others from it.
pub(super) async fn each(
    context: &CommandContext,
    refs: AgentRefs,
    verb: AgentAction,
) -> Result<(), CommandFailure> {
    let mut batch = ResultList::new(&context.words, refs.agents.len());
    for agent in refs.agents {
        match one(context, &agent, verb).await {
            Ok((view, work)) => {
                batch.done(&view, || format!("{}\n", view.name))?;
                print_end(context, &view, verb, work);
            }
            Err(failure) if failure.exit() == CommandExit::NoDaemon => return Err(failure),
            Err(failure) => batch.failed(failure)?,
        }
    }
    batch.finish()
}

/// The work of an agent before something was done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenWork {
    Open,
    Over,
}

/// A kill is stronger than a stop, and its message says that.
fn print_end(context: &CommandContext, view: &AgentView, verb: AgentAction, before: OpenWork) {
    match verb {
        AgentAction::Kill if !context.words.json => {
            let name = &view.name;
            let ended = match before {
                OpenWork::Open => "ended permanently",
                OpenWork::Over => "had already ended",
            };
            context
                .words
                .print_note(&format!("the work of {name} {ended}; `lodge start {name}` starts new work"));
        }
        AgentAction::Start
        | AgentAction::Stop { .. }
        | AgentAction::Restart { .. }
        | AgentAction::Kill
        | AgentAction::Remove { .. } => {}
    }
}

async fn one(
    context: &CommandContext,
    agent: &str,
    verb: AgentAction,
) -> Result<(AgentView, OpenWork), CommandFailure> {
    let mut daemon = context.daemon().await?;
    // Attached before the change, so that its events cannot be missed. By id, for a name may go to another.
    let state = daemon.watch(FollowScope::Agent(agent.to_owned()), None).await?;
    let id = state.agents.first().map_or_else(|| agent.to_owned(), |view| view.id.clone());
    let work = match (verb, state.agents.first()) {
        (AgentAction::Kill, Some(view)) => work_of(&mut daemon, view).await?,
        (
            AgentAction::Kill
            | AgentAction::Start
            | AgentAction::Stop { .. }
            | AgentAction::Restart { .. }
            | AgentAction::Remove { .. },
            _,
        ) => OpenWork::Open,
    };
    let request_id = Some(request_id()?);
    let (view, goal): (AgentView, AgentGoal) = match verb {
        AgentAction::Start => {
            (daemon.call::<StartAgent>(AgentRef { agent: id, request_id }).await?, AgentGoal::Ready)
        }
        AgentAction::Restart { jobs } => (
            StopWithJobs::new(context, AgentStopKind::Restart, id, state).run(&mut daemon, jobs).await?,
            AgentGoal::Ready,
        ),
        AgentAction::Stop { jobs } => (
            StopWithJobs::new(context, AgentStopKind::Stop, id, state).run(&mut daemon, jobs).await?,
            AgentGoal::Stopped,
        ),
        AgentAction::Kill => {
            (daemon.call::<KillAgent>(AgentRef { agent: id, request_id }).await?, AgentGoal::Stopped)
        }
        AgentAction::Remove { force } => {
            let params = AgentRemoveParams { agent: id, force, request_id };
            (daemon.call::<RemoveAgent>(params).await?, AgentGoal::Removed)
        }
    };
    Ok((settle(&mut daemon, view, goal, &context.words).await?, work))
}

async fn work_of(daemon: &mut DaemonClient<'_>, agent: &AgentView) -> Result<OpenWork, CommandFailure> {
    let given = LineageRef { lineage: agent.lineage.clone() };
    let lineage = daemon.call::<GetLineage>(given).await?.lineage;
    Ok(if matches!(lineage.status.as_str(), "ended" | "reaped") { OpenWork::Over } else { OpenWork::Open })
}

/// The state to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AgentGoal {
    Ready,
    /// On what is new, if it is to run at all.
    Updated,
    Stopped,
    Removed,
}

#[derive(Debug, PartialEq, Eq)]
enum GoalVerdict {
    Reached,
    Wait,
    Missed,
    /// A state that this version does not know, so it is unclear whether waiting helps.
    Unknown,
}

impl AgentGoal {
    fn judge(self, status: &str) -> GoalVerdict {
        match (self, status) {
            (AgentGoal::Ready | AgentGoal::Updated, "ready" | "working") => GoalVerdict::Reached,
            (AgentGoal::Ready | AgentGoal::Updated, "pulling" | "starting") => GoalVerdict::Wait,
            (AgentGoal::Updated, "stopped") => GoalVerdict::Reached,
            (AgentGoal::Updated, "failed" | "removing" | "removed") => GoalVerdict::Missed,
            (AgentGoal::Ready, "failed" | "stopped" | "removing" | "removed") => GoalVerdict::Missed,
            (AgentGoal::Stopped, "stopped" | "failed" | "removed") => GoalVerdict::Reached,
            (AgentGoal::Stopped, "pulling" | "starting" | "ready" | "working" | "removing") => {
                GoalVerdict::Wait
            }
            (AgentGoal::Removed, "removed") => GoalVerdict::Reached,
            (
                AgentGoal::Removed,
                "pulling" | "starting" | "ready" | "working" | "stopped" | "failed" | "removing",
            ) => GoalVerdict::Wait,
            (AgentGoal::Ready | AgentGoal::Updated | AgentGoal::Stopped | AgentGoal::Removed, _) => {
                GoalVerdict::Unknown
            }
        }
    }
}

/// Waits for events until the agent reaches its goal. `view` is its state after the change was accepted.
pub(super) async fn settle(
    daemon: &mut DaemonClient<'_>,
    mut view: AgentView,
    goal: AgentGoal,
    words: &Words,
) -> Result<AgentView, CommandFailure> {
    loop {
        match goal.judge(&view.status) {
            GoalVerdict::Reached => return Ok(view),
            GoalVerdict::Missed => return Err(missed(&view)),
            GoalVerdict::Unknown => return Err(unknown(&view)),
            GoalVerdict::Wait => words.progress(&format!("{}: {}", view.name, view.status)),
        }
        view.status = loop {
            let event = match daemon.next().await {
                Ok(FollowedItem::Event(event)) => event,
                Ok(FollowedItem::Preview(_)) => continue,
                // A restarted daemon that completed the removal no longer knows the agent.
                Err(failure) if goal == AgentGoal::Removed && failure.is(error_code!("agent.not_found")) => {
                    break "removed".to_owned();
                }
                Err(failure) => return Err(failure),
            };
            let Some(status) = event.kind.strip_prefix("agent.") else { continue };
            if event.stream != view.id || status == view.status || !STATUSES.contains(&status) {
                continue;
            }
            let text =
                |field: &str| event.data.get(field).and_then(|value| value.as_str()).map(str::to_owned);
            view.failure_reason = text("reason");
            view.failure_detail = text("detail");
            view.retry_at = text("retry_at");
            break status.to_owned();
        };
    }
}

/// The kinds of agent events that are states. Other kinds are only information.
const STATUSES: [&str; 8] =
    ["pulling", "starting", "ready", "working", "stopped", "failed", "removing", "removed"];

fn missed(view: &AgentView) -> CommandFailure {
    let what = match view.status.as_str() {
        "failed" => format!("{} did not become ready", view.name),
        status => format!("{} did not become ready: its status is {status}", view.name),
    };
    let failure = CommandFailure::refused(what);
    let failure = match render::why_failed(view.failure_reason.as_deref(), view.failure_detail.as_deref()) {
        Some(why) => failure.because(why),
        None => failure,
    };
    match view.status.as_str() {
        "removing" | "removed" => failure,
        _ if view.retry_at.is_some() => failure.hint(start_hint(view)),
        "failed" if view.failure_reason.as_deref() == Some("pull") => failure.hint(format!(
            "it is not retried automatically: give it another image with `lodge update {0} --image …`, then `lodge start {0}`",
            view.name
        )),
        "failed" => failure.hint(format!(
            "it is not retried automatically: fix the cause, then run `lodge start {0}`; `lodge logs {0}` shows its log",
            view.name
        )),
        _ => failure.hint(format!("run `lodge logs {}` to see its log", view.name)),
    }
}

/// One that starts itself again needs nothing but what it lacks.
fn start_hint(view: &AgentView) -> String {
    let (name, at) = (&view.name, view.retry_at.as_deref().unwrap_or_default());
    let fix = match view.failure_reason.as_deref() {
        Some("model") => "add the provider with `lodge provider add`, and the agent starts",
        _ => "fix that, and the agent starts",
    };
    format!(
        "{fix} automatically (next try {at}); `lodge start {name}` tries now, `lodge stop {name}` stops trying"
    )
}

fn unknown(view: &AgentView) -> CommandFailure {
    CommandFailure::refused(format!("{} is `{}`, which this `lodge` does not know", view.name, view.status))
        .hint("`lodge` and `lodged` may be of different versions: compare `lodge --version` and `lodge info`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_missed_or_still_ahead() {
        assert_eq!(AgentGoal::Ready.judge("working"), GoalVerdict::Reached);
        assert_eq!(AgentGoal::Ready.judge("failed"), GoalVerdict::Missed);
        assert_eq!(AgentGoal::Ready.judge("starting"), GoalVerdict::Wait);
        assert_eq!(AgentGoal::Stopped.judge("working"), GoalVerdict::Wait);
        assert_eq!(AgentGoal::Stopped.judge("stopped"), GoalVerdict::Reached);
        assert_eq!(AgentGoal::Removed.judge("stopped"), GoalVerdict::Wait);
        assert_eq!(AgentGoal::Removed.judge("removed"), GoalVerdict::Reached);
    }

    #[test]
    fn every_known_state_is_placed_and_an_unknown_one_is_not_waited_for() {
        for goal in [AgentGoal::Ready, AgentGoal::Updated, AgentGoal::Stopped, AgentGoal::Removed] {
            for status in STATUSES {
                assert_ne!(goal.judge(status), GoalVerdict::Unknown, "{goal:?} {status}");
            }
            assert_eq!(goal.judge("hibernating"), GoalVerdict::Unknown);
        }
    }
}

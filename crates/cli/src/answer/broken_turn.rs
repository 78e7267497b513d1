//! A turn that does not end normally: the state of the turn and its agent, and the error that is printed.

use lodge_proto::{
    AgentRef, AgentView, Event, EventBody, GetAgent, GetLineage, GetTurn, KnownCode, LineageRef, LineageView,
    QuarantineView, TurnRef, TurnView, error_code,
};

use super::{PromptedAgent, WayToContinue, shut_down};
use crate::failure::CommandFailure;
use crate::follow::DaemonClient;
use crate::render;

/// The end of an agent that takes no more turns.
const REMOVED: &str = "was removed";
/// The code of an end because of work in quarantine, which an operator has to decide about.
const QUARANTINED: KnownCode = error_code!("work.quarantined");

/// The end of an agent, and its causes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AgentEnd {
    how: &'static str,
    causes: Vec<String>,
}

impl AgentEnd {
    fn plain(how: &'static str) -> Self {
        AgentEnd { how, causes: Vec::new() }
    }
}

pub(super) fn agent_end(event: &Event) -> Option<AgentEnd> {
    match event.body()? {
        EventBody::AgentFailed(failed) => {
            let cause = render::why_failed(Some(&failed.reason), failed.detail.as_deref());
            Some(AgentEnd { how: "failed", causes: cause.into_iter().collect() })
        }
        EventBody::AgentStopped(_) => Some(AgentEnd::plain("was stopped")),
        EventBody::AgentRemoved(_) => Some(AgentEnd::plain(REMOVED)),
        _ => None,
    }
}

/// The state of a turn whose agent ended.
#[derive(Debug)]
pub(super) enum TurnAfterAgent {
    /// The turn ended as well: its own event has the outcome.
    Over,
    /// Another process has taken over by now.
    GoesOn,
    /// It waits, and nothing would come of waiting for it.
    Left(AbandonedTurn),
}

#[derive(Debug)]
pub(super) enum AbandonedTurn {
    /// For a decision about this lineage.
    Asked(String),
    /// For a start of its agent.
    Stopped,
    /// It cannot be looked up: it may have gone with its agent.
    Gone,
}

/// Checks the turn, the agent and its lineage: the agent's policy has been applied before its end is reported.
pub(super) async fn check_turn(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
) -> TurnAfterAgent {
    let Ok(now) = daemon.call_without_start::<GetTurn>(TurnRef { turn: turn.id.clone() }).await else {
        return TurnAfterAgent::Left(AbandonedTurn::Gone);
    };
    if matches!(now.status.as_str(), "done" | "failed" | "interrupted") {
        return TurnAfterAgent::Over;
    }
    let Ok((agent, lineage)) = agent_now(daemon, agent).await else {
        return TurnAfterAgent::Left(AbandonedTurn::Gone);
    };
    match (lineage.status.as_str(), agent.status.as_str()) {
        ("ask_pending", _) => TurnAfterAgent::Left(AbandonedTurn::Asked(lineage.id)),
        (_, "failed" | "stopped") => TurnAfterAgent::Left(AbandonedTurn::Stopped),
        (_, "removing" | "removed") => TurnAfterAgent::Left(AbandonedTurn::Gone),
        (_, _) => TurnAfterAgent::GoesOn,
    }
}

/// The end of an agent that does not run now.
pub(super) async fn agent_stands_still(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
) -> Option<AgentEnd> {
    let (view, _) = agent_now(daemon, agent).await.ok()?;
    match view.status.as_str() {
        "failed" => {
            let cause = render::why_failed(view.failure_reason.as_deref(), view.failure_detail.as_deref());
            Some(AgentEnd { how: "failed", causes: cause.into_iter().collect() })
        }
        "stopped" => Some(AgentEnd::plain("was stopped")),
        "removing" | "removed" => Some(AgentEnd::plain(REMOVED)),
        _ => None,
    }
}

/// Why a turn was interrupted, when no event of its agent came before.
pub(super) async fn find_agent_end(daemon: &mut DaemonClient<'_>, agent: &PromptedAgent) -> Option<AgentEnd> {
    let (agent, lineage) = match agent_now(daemon, agent).await {
        Ok(now) => now,
        Err(failure) if failure.is(error_code!("agent.not_found")) => return Some(AgentEnd::plain(REMOVED)),
        Err(_) => return None,
    };
    match (agent.status.as_str(), lineage.ended_reason.as_deref(), lineage.status.as_str()) {
        ("removing" | "removed", _, _) => Some(AgentEnd::plain(REMOVED)),
        (_, Some("killed"), _) => Some(AgentEnd::plain("was killed")),
        (_, _, "reaped") => Some(AgentEnd::plain("died, and its work was dropped")),
        ("stopped", _, _) => Some(AgentEnd::plain("was stopped")),
        (_, _, _) => None,
    }
}

async fn agent_now(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
) -> Result<(AgentView, LineageView), CommandFailure> {
    let given = AgentRef { agent: agent.id.clone(), request_id: None };
    let view = daemon.call_without_start::<GetAgent>(given).await?.agent;
    let given = LineageRef { lineage: view.lineage.clone() };
    let lineage = daemon.call_without_start::<GetLineage>(given).await?;
    Ok((view, lineage.lineage))
}

/// The work in quarantine that a turn waits for. A turn that cannot be looked up waits for none.
pub(super) async fn find_quarantine(
    daemon: &mut DaemonClient<'_>,
    turn: &TurnView,
) -> Result<Option<QuarantineView>, CommandFailure> {
    match daemon.call_without_start::<GetTurn>(TurnRef { turn: turn.id.clone() }).await {
        Ok(now) => Ok(now.quarantine),
        Err(failure) if failure.is(error_code!("turn.not_found")) => Ok(None),
        Err(failure) => Err(shut_down(failure)),
    }
}

/// What to say of a turn that cannot go on before an operator has decided.
pub(super) fn quarantined(work: &QuarantineView, agent: &PromptedAgent, turn: &TurnView) -> CommandFailure {
    let kind = render::work_kind(&work.kind);
    let failure = match work.turn.as_deref() {
        Some(other) if other != turn.id => {
            let other = render::one_line(other);
            CommandFailure::refused(format!("the turn waits behind {other}, which is in quarantine"))
        }
        Some(_) | None => CommandFailure::refused("the turn is in quarantine"),
    };
    let failure = failure
        .because(format!("its {kind} killed the daemon {}", render::in_a_row(work.deaths)))
        .with_code(QUARANTINED.as_str());
    if !agent.stays {
        return failure;
    }
    failure.hint(format!(
        "the turn stays: {}; `lodge session show {}` shows it",
        render::quarantine_step(&work.id),
        turn.session
    ))
}

/// What to say of a turn that is not over and whose agent ended.
pub(super) fn abandoned(
    end: &AgentEnd,
    left: AbandonedTurn,
    agent: &PromptedAgent,
    turn: &TurnView,
) -> CommandFailure {
    let name = &agent.name;
    let failure = CommandFailure::refused(format!("{name} {} before the turn was over", end.how));
    let failure = end.causes.iter().fold(failure, CommandFailure::because);
    let session = &turn.session;
    match left {
        _ if !agent.stays => failure,
        AbandonedTurn::Asked(lineage) => {
            failure.hint(format!("the turn waits for your decision: {}", render::next_step(&lineage)))
        }
        AbandonedTurn::Stopped => failure.hint(format!(
            "the turn waits: run `lodge start {name}` and it continues; `lodge session show {session}` shows it"
        )),
        AbandonedTurn::Gone => failure,
    }
}

pub(super) fn interrupted(
    end: Option<AgentEnd>,
    agent: &PromptedAgent,
    turn: &TurnView,
    way: WayToContinue,
) -> CommandFailure {
    let failure = CommandFailure::refused("the turn was interrupted");
    let gone = end.as_ref().is_some_and(|end| end.how == REMOVED);
    let start = end.as_ref().map(|_| format!("run `lodge start {}`, then", agent.name));
    let run = start.unwrap_or_else(|| "run".to_owned());
    let failure = match end {
        Some(AgentEnd { how, causes }) => {
            let failure = failure.because(format!("{} {how}", agent.name));
            causes.iter().fold(failure, CommandFailure::because)
        }
        None => failure.because("`turn/interrupt` was called, or its agent was stopped and started again"),
    };
    if !agent.stays || gone {
        return failure;
    }
    let (steps, session) = (way.steps(turn), &turn.session);
    failure.hint(format!("{run} {steps}; `lodge session show {session}` shows its progress"))
}

/// The next step after a failure: its own hint, and how to continue the turn.
pub(super) fn with_next_step(
    failure: CommandFailure,
    agent: &PromptedAgent,
    turn: &TurnView,
    way: WayToContinue,
) -> CommandFailure {
    let session = &turn.session;
    if !agent.stays {
        return failure;
    }
    let retry = format!("run {}", way.steps(turn));
    if failure.is(error_code!("turn.schema_mismatch")) {
        return failure
            .hint(format!("`lodge session show {session}` has the answers; a simpler schema may help"))
            .and_hint(&retry);
    }
    if failure.is(error_code!("turn.max_iterations")) {
        let raise = format!("`lodge update {} --config max-iterations=N` raises the limit", agent.name);
        return failure.hint(raise).and_hint(&format!("then {retry}"));
    }
    if failure.has_hint() {
        return failure.and_hint(&format!("then {retry}"));
    }
    failure.hint(format!("{retry}; `lodge session show {session}` shows its progress"))
}

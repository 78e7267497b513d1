//! Showing one turn while it happens: the answer on stdout, tools on stderr.
//!
//! Owns: what of a turn is shown and when it is over. Never: reconnecting (see `follow`).

use lodge_proto::{
    AgentRef, AgentView, Event, GetAgent, GetLineage, GetTurn, LineageRef, LineageView, QuarantineView,
    TurnRef, TurnView,
};
use serde_json::{Map, Value};

use crate::failure::{CommandExit, CommandFailure};
use crate::fold::{FoldAction, StepText, TextFold};
use crate::follow::{DaemonClient, FollowedItem, SHUTTING_DOWN};
use crate::render;
use crate::words::Words;

/// The code of an end because an operator has to decide about work in quarantine.
const QUARANTINED: &str = "work.quarantined";

/// What of a turn is shown while it happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShownSteps {
    All,
    /// Not the text: of several answers only the last one counts.
    Steps,
}

/// How a turn ended.
#[derive(Debug)]
pub(crate) enum TurnEnding {
    Done,
    Broken(CommandFailure),
}

/// The agent that is asked.
#[derive(Debug, Clone)]
pub(crate) struct PromptedAgent {
    pub id: String,
    pub name: String,
    /// Whether it is still there after the command, for a turn to go on with.
    pub stays: bool,
}

/// How a turn ended, as its events tell it.
#[derive(Debug)]
enum TurnVerdict {
    Done,
    Interrupted,
    Failed(CommandFailure),
}

/// Follows a turn to its end, or to that of its agent. With `--json` nothing is shown meanwhile.
pub(crate) async fn follow(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    words: &Words,
    show: ShownSteps,
) -> Result<TurnEnding, CommandFailure> {
    let mut is_accepted = false;
    let mut screen = TurnScreen { words, fold: TextFold::default(), show };
    let mut befell = None;
    // The answer to a turn that was sent twice is as old as the first of them.
    if turn.quarantine.is_some()
        && let Some(work) = quarantine_now(daemon, turn).await?
    {
        return Ok(TurnEnding::Broken(quarantined(&work, agent, turn)));
    }
    loop {
        match daemon.next().await.map_err(shut_down)? {
            FollowedItem::Preview(delta) if delta.turn == turn.id => {
                let piece = StepText {
                    step: delta.step,
                    attempt: delta.attempt,
                    offset: delta.offset,
                    text: &delta.text,
                };
                let actions = screen.fold.preview(piece);
                screen.show(actions)?;
            }
            // Of this turn, or of one before it. By now an operator may have decided.
            FollowedItem::Event(event)
                if event.kind == "work.quarantined"
                    && text_of(&event.data, "session") == Some(turn.session.as_str()) =>
            {
                if let Some(work) = quarantine_now(daemon, turn).await? {
                    words.end_line()?;
                    return Ok(TurnEnding::Broken(quarantined(&work, agent, turn)));
                }
            }
            FollowedItem::Event(event) if text_of(&event.data, "turn") == Some(turn.id.as_str()) => {
                is_accepted = true;
                let Some(over) = screen.event(&event)? else { continue };
                words.end_line()?;
                return Ok(match over {
                    TurnVerdict::Done => TurnEnding::Done,
                    TurnVerdict::Interrupted => {
                        let befell = match befell {
                            Some(befell) => Some(befell),
                            None => what_befell(daemon, agent).await,
                        };
                        TurnEnding::Broken(interrupted(befell, agent, turn))
                    }
                    TurnVerdict::Failed(failure) => TurnEnding::Broken(way_out(failure, agent, turn)),
                });
            }
            // What befell the agent before it had the turn does not touch the turn.
            FollowedItem::Event(event) if is_accepted && event.stream == turn.agent => {
                let Some(end) = agent_end(&event) else { continue };
                match rest(daemon, agent, turn).await {
                    TurnAfterAgent::Over => befell = Some(end),
                    TurnAfterAgent::GoesOn => {}
                    TurnAfterAgent::Left(left) => {
                        words.end_line()?;
                        return Ok(TurnEnding::Broken(left_alone(&end, left, agent, turn)));
                    }
                }
            }
            FollowedItem::Event(_) | FollowedItem::Preview(_) => {}
        }
    }
}

/// What the person at a prompt wants to know of a shutdown.
fn shut_down(failure: CommandFailure) -> CommandFailure {
    if failure.is(SHUTTING_DOWN) {
        let what = "the daemon was shut down; the turn continues when a daemon is running again";
        return CommandFailure::new(CommandExit::NoDaemon, what).with_code(SHUTTING_DOWN);
    }
    failure
}

/// The end of an agent, and its causes.
#[derive(Debug, PartialEq, Eq)]
struct AgentEnd {
    how: &'static str,
    causes: Vec<String>,
}

impl AgentEnd {
    fn plain(how: &'static str) -> Self {
        AgentEnd { how, causes: Vec::new() }
    }
}

fn agent_end(event: &Event) -> Option<AgentEnd> {
    let how = match event.kind.as_str() {
        "agent.failed" => "failed",
        "agent.stopped" => "was stopped",
        "agent.removed" => "was removed",
        _ => return None,
    };
    let cause = render::why_failed(text_of(&event.data, "reason"), text_of(&event.data, "detail"));
    Some(AgentEnd { how, causes: cause.into_iter().collect() })
}

/// What became of a turn whose agent ended.
#[derive(Debug)]
enum TurnAfterAgent {
    /// It ended, too: its own event tells how.
    Over,
    /// Another process has taken over by now.
    GoesOn,
    /// It waits, and nothing would come of waiting for it.
    Left(AbandonedTurn),
}

#[derive(Debug)]
enum AbandonedTurn {
    /// For a decision about this lineage.
    Asked(String),
    /// For a start of its agent.
    Stopped,
    /// It cannot be looked up: it may have gone with its agent.
    Gone,
}

/// Looks at the turn, the agent and its lineage: the agent's policy has decided by the time its end is told.
async fn rest(daemon: &mut DaemonClient<'_>, agent: &PromptedAgent, turn: &TurnView) -> TurnAfterAgent {
    let Ok(now) = daemon.look::<GetTurn>(TurnRef { turn: turn.id.clone() }).await else {
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

/// Why a turn was interrupted, when no event of its agent came before.
async fn what_befell(daemon: &mut DaemonClient<'_>, agent: &PromptedAgent) -> Option<AgentEnd> {
    let (agent, lineage) = match agent_now(daemon, agent).await {
        Ok(now) => now,
        Err(failure) if failure.is("agent.not_found") => return Some(AgentEnd::plain("was removed")),
        Err(_) => return None,
    };
    match (agent.status.as_str(), lineage.ended_reason.as_deref(), lineage.status.as_str()) {
        ("removing" | "removed", _, _) => Some(AgentEnd::plain("was removed")),
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
    let view = daemon.look::<GetAgent>(given).await?.agent;
    let given = LineageRef { lineage: view.lineage.clone() };
    let lineage = daemon.look::<GetLineage>(given).await?.lineage;
    Ok((view, lineage))
}

/// The work in quarantine that a turn waits for. A turn that cannot be looked up waits for none.
async fn quarantine_now(
    daemon: &mut DaemonClient<'_>,
    turn: &TurnView,
) -> Result<Option<QuarantineView>, CommandFailure> {
    match daemon.look::<GetTurn>(TurnRef { turn: turn.id.clone() }).await {
        Ok(now) => Ok(now.quarantine),
        Err(failure) if failure.is("turn.not_found") => Ok(None),
        Err(failure) => Err(shut_down(failure)),
    }
}

/// What to say of a turn that cannot go on before an operator has decided.
fn quarantined(work: &QuarantineView, agent: &PromptedAgent, turn: &TurnView) -> CommandFailure {
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
        .with_code(QUARANTINED);
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
fn left_alone(end: &AgentEnd, left: AbandonedTurn, agent: &PromptedAgent, turn: &TurnView) -> CommandFailure {
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

fn interrupted(befell: Option<AgentEnd>, agent: &PromptedAgent, turn: &TurnView) -> CommandFailure {
    let failure = CommandFailure::refused("the turn was interrupted");
    let failure = match befell {
        Some(AgentEnd { how, causes }) => {
            let failure = failure.because(format!("{} {how}", agent.name));
            causes.iter().fold(failure, CommandFailure::because)
        }
        None => failure.because("`turn/interrupt` was called, or its agent was stopped and started again"),
    };
    if !agent.stays {
        return failure;
    }
    failure
        .hint(format!("the turn will not continue; `lodge session show {}` shows its progress", turn.session))
}

/// The next step after a failure that names none.
fn way_out(failure: CommandFailure, agent: &PromptedAgent, turn: &TurnView) -> CommandFailure {
    let session = &turn.session;
    if !agent.stays {
        return failure;
    }
    if failure.is("turn.schema_mismatch") {
        return failure
            .hint(format!("`lodge session show {session}` has the answers; a simpler schema may help"));
    }
    if failure.has_hint() {
        return failure;
    }
    failure.hint(format!(
        "`lodge session show {session}` shows its progress, `lodge session regenerate {session}` asks again"
    ))
}

/// The job that a model was told of: what one wants to know of it is what it is called.
fn submitted(tool: &str, result: Option<&str>) -> Option<String> {
    let told: Value = serde_json::from_str(result.filter(|_| tool == "job_submit")?).ok()?;
    Some(told.get("job_id")?.as_str()?.to_owned())
}

struct TurnScreen<'a> {
    words: &'a Words,
    fold: TextFold,
    show: ShownSteps,
}

impl TurnScreen<'_> {
    fn event(&mut self, event: &Event) -> Result<Option<TurnVerdict>, CommandFailure> {
        let data = &event.data;
        let step = number_of(data, "step").unwrap_or(0);
        let attempt = number_of(data, "attempt");
        let actions = match event.kind.as_str() {
            "turn.step_started" => self.fold.step_started(step, attempt),
            "turn.step_restarted" => {
                attempt.map(|attempt| self.fold.step_restarted(step, attempt)).unwrap_or_default()
            }
            "turn.text" => self.fold.durable(StepText {
                step,
                attempt: attempt.unwrap_or(0),
                offset: data.get("offset").and_then(Value::as_u64).unwrap_or(0),
                text: text_of(data, "text").unwrap_or(""),
            }),
            "turn.tool_call" => {
                self.tool(&format!(
                    "⚙ {}",
                    render::tool_call(
                        text_of(data, "name").unwrap_or("?"),
                        data.get("arguments").unwrap_or(&Value::Null)
                    )
                ))?;
                Vec::new()
            }
            "turn.tool_result" => {
                let exit_code = data.get("exit_code").and_then(Value::as_i64);
                let bytes = data.get("bytes").and_then(Value::as_u64);
                let status = text_of(data, "cause").or_else(|| text_of(data, "status"));
                // Of several that run at once the first to end is told first.
                let name = render::one_line(text_of(data, "name").unwrap_or("?"));
                let ended = match submitted(&name, text_of(data, "preview")) {
                    Some(job) => render::one_line(&job),
                    None => render::tool_result(status, exit_code, bytes),
                };
                self.tool(&format!("  → {name}: {ended}"))?;
                Vec::new()
            }
            "turn.finished" | "turn.interrupted" | "turn.failed" => {
                let actions = self.fold.settle();
                self.show(actions)?;
                return Ok(Some(match event.kind.as_str() {
                    "turn.finished" => TurnVerdict::Done,
                    "turn.interrupted" => TurnVerdict::Interrupted,
                    _failed => TurnVerdict::Failed(failed(data)),
                }));
            }
            _ => Vec::new(),
        };
        self.show(actions)?;
        Ok(None)
    }

    fn show(&mut self, actions: Vec<FoldAction>) -> Result<(), CommandFailure> {
        if self.words.json || self.show == ShownSteps::Steps {
            return Ok(());
        }
        for action in actions {
            match action {
                FoldAction::Print(bytes) => self.words.part(&bytes)?,
                FoldAction::Restart => {
                    self.words.end_line()?;
                    self.words.murmur("[answer restarted]");
                }
                FoldAction::NewStep => self.words.end_line()?,
            }
        }
        Ok(())
    }

    fn tool(&self, line: &str) -> Result<(), CommandFailure> {
        if self.words.watched() && !self.words.json {
            if self.words.stdout_is_terminal() {
                self.words.end_line()?;
            }
            self.words.progress(line);
        }
        Ok(())
    }
}

fn failed(data: &Map<String, Value>) -> CommandFailure {
    let failure = CommandFailure::refused("the turn failed");
    let failure = match (text_of(data, "message"), text_of(data, "code")) {
        (Some(message), Some(code)) => failure.because(format!("{message} ({code})")),
        (Some(cause), None) | (None, Some(cause)) => failure.because(cause),
        (None, None) => failure,
    };
    let failure = match text_of(data, "code") {
        Some(code) => failure.with_code(code),
        None => failure,
    };
    match text_of(data, "hint") {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn text_of<'a>(data: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    data.get(field).and_then(Value::as_str)
}

fn number_of(data: &Map<String, Value>, field: &str) -> Option<u32> {
    data.get(field).and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn turn() -> TurnView {
        let turn = json!({"id": "trn_1", "session": "ses_1", "agent": "agt_1", "status": "running", "text": "",
            "partial": true, "steps": [], "usage": {"input_tokens": 0, "output_tokens": 0}, "created_at": ""});
        serde_json::from_value(turn).unwrap()
    }

    fn ada(stays: bool) -> PromptedAgent {
        PromptedAgent { id: "agt_1".to_owned(), name: "ada".to_owned(), stays }
    }

    fn end(kind: &str, data: &Value) -> Option<AgentEnd> {
        let event =
            json!({"seq": 9, "stream": "agt_1", "stream_seq": 3, "at": "", "kind": kind, "data": data});
        agent_end(&serde_json::from_value(event).unwrap())
    }

    fn parts(failure: CommandFailure) -> (String, Vec<String>, Option<String>) {
        let CommandFailure::Told(report) = failure else { panic!("not told") };
        assert_eq!(report.exit, CommandExit::Refused);
        (report.what, report.because, report.hint)
    }

    #[test]
    fn a_job_that_was_submitted_is_told_by_its_id_and_a_refusal_as_it_is() {
        let told = r#"{"job_id":"job_1"}"#;
        assert_eq!(submitted("job_submit", Some(told)).as_deref(), Some("job_1"));
        assert_eq!(submitted("job_status", Some(told)), None);
        assert_eq!(submitted("job_submit", Some("`make` is not one of your tools")), None);
        assert_eq!(submitted("job_submit", None), None);
    }

    #[test]
    fn a_turn_that_its_agent_left_is_told_with_what_it_waits_for() {
        let crash = json!({"reason": "crashed", "detail": "ended by signal 9"});
        let told = |kind: &str, left, stays| {
            parts(left_alone(&end(kind, &crash).unwrap(), left, &ada(stays), &turn()))
        };
        let (what, because, hint) = told("agent.failed", AbandonedTurn::Stopped, true);
        assert_eq!(what, "ada failed before the turn was over");
        assert_eq!(because, ["it crashed: ended by signal 9"]);
        assert!(hint.unwrap().starts_with("the turn waits: run `lodge start ada` and it continues"));
        let hint = told("agent.failed", AbandonedTurn::Asked("lin_1".to_owned()), true).2.unwrap();
        assert!(hint.contains("`lodge lineage resolve lin_1 --revive`") && !hint.contains("start"), "{hint}");
        assert_eq!(
            told("agent.stopped", AbandonedTurn::Stopped, true).0,
            "ada was stopped before the turn was over"
        );
        // Nobody can start what is gone, or is about to be.
        assert_eq!(told("agent.removed", AbandonedTurn::Gone, true).2, None);
        assert_eq!(told("agent.failed", AbandonedTurn::Stopped, false).2, None);
    }

    #[test]
    fn a_turn_in_quarantine_names_the_decisions_unless_its_agent_goes() {
        let work = |turn: &str| -> QuarantineView {
            let work = json!({"id": "wrk_1", "kind": "schema_check", "status": "quarantined", "turn": turn,
                "deaths": 3, "since": ""});
            serde_json::from_value(work).unwrap()
        };
        let (what, because, hint) = parts(quarantined(&work("trn_1"), &ada(true), &turn()));
        assert_eq!(what, "the turn is in quarantine");
        assert_eq!(because, ["its schema check killed the daemon 3 times in a row"]);
        let hint = hint.unwrap();
        assert!(hint.contains("`lodge quarantine retry wrk_1`"), "{hint}");
        assert!(hint.contains("`lodge quarantine drop wrk_1`"), "{hint}");
        let (what, _, hint) = parts(quarantined(&work("trn_0"), &ada(false), &turn()));
        assert_eq!((what.as_str(), hint), ("the turn waits behind trn_0, which is in quarantine", None));
    }

    #[test]
    fn an_interrupted_turn_does_not_claim_to_wait() {
        let befell = end("agent.failed", &json!({"reason": "crashed"}));
        let (what, because, hint) = parts(interrupted(befell, &ada(true), &turn()));
        assert_eq!(
            (what.as_str(), because),
            ("the turn was interrupted", vec!["ada failed".to_owned(), "it crashed".to_owned()])
        );
        assert_eq!(
            hint.as_deref(),
            Some("the turn will not continue; `lodge session show ses_1` shows its progress")
        );
        assert_eq!(parts(interrupted(None, &ada(true), &turn())).1.len(), 1);
        // Whatever names no next step gets one, unless its agent is gone with the answer.
        let data = json!({"code": "model.status", "message": "the provider answered with status 500"});
        let told = |stays| parts(way_out(failed(data.as_object().unwrap()), &ada(stays), &turn())).2;
        assert!(told(true).unwrap().ends_with("`lodge session regenerate ses_1` asks again"));
        assert_eq!(told(false), None);
    }

    #[test]
    fn whatever_else_an_agent_does_is_waited_through() {
        for kind in
            ["agent.pulling", "agent.starting", "agent.ready", "agent.working", "agent.removing", "agent.new"]
        {
            assert_eq!(end(kind, &json!({})), None, "{kind}");
        }
    }
}

//! Shows one turn while it runs: the answer on stdout, tools on stderr.
//!
//! Owns: what is shown of a turn, and when it has ended. Never: reconnecting (see `follow`).

mod broken_turn;
mod continuing;
mod parked;
mod replay;

use lodge_proto::event::{TurnFailed, TurnText, TurnToolResult, TurnWaiting};
use lodge_proto::{Event, EventBody, EventKind, TurnView};
use serde_json::{Map, Value};

use self::broken_turn::{
    AgentEnd, TurnAfterAgent, abandoned, agent_end, check_turn, find_agent_end, find_quarantine, interrupted,
    quarantined, with_next_step,
};
pub(crate) use self::continuing::WayToContinue;
use crate::failure::{CommandExit, CommandFailure};
use crate::fold::{FoldAction, StepText, TextFold};
use crate::follow::{DaemonClient, FollowedItem, SHUTTING_DOWN};
use crate::render;
use crate::words::Words;

use self::replay::ReplayedText;
pub(crate) use self::replay::rejoin;

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

/// The agent that answers the prompt.
#[derive(Debug, Clone)]
pub(crate) struct PromptedAgent {
    pub id: String,
    pub name: String,
    /// Whether it is still there after the command, for a turn to go on with.
    pub stays: bool,
}

/// How a turn ended, according to its events.
#[derive(Debug)]
enum TurnVerdict {
    Done,
    Interrupted,
    Failed(CommandFailure),
}

/// Follows a turn to its end, or to that of its agent. With `--json` nothing is shown until then.
pub(crate) async fn follow(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    words: &Words,
    show: ShownSteps,
) -> Result<TurnEnding, CommandFailure> {
    // The answer to a turn that was sent twice is as old as the first of them.
    if turn.quarantine.is_some()
        && let Some(work) = find_quarantine(daemon, turn).await?
    {
        return Ok(TurnEnding::Broken(quarantined(&work, agent, turn)));
    }
    follow_on(daemon, agent, turn, TurnScreen::new(words, show), TurnSeen::NotYet).await
}

/// Whether an event of the turn was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TurnSeen {
    NotYet,
    Accepted,
}

/// Follows a turn on a screen that may show a part of it already.
async fn follow_on(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    mut screen: TurnScreen<'_>,
    seen: TurnSeen,
) -> Result<TurnEnding, CommandFailure> {
    let words = screen.words;
    let mut is_accepted = seen == TurnSeen::Accepted;
    let mut seen_end = None;
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
                if event.is(EventKind::WorkQuarantined)
                    && text_of(&event.data, "session") == Some(turn.session.as_str()) =>
            {
                if let Some(work) = find_quarantine(daemon, turn).await? {
                    words.end_line()?;
                    return Ok(TurnEnding::Broken(quarantined(&work, agent, turn)));
                }
            }
            FollowedItem::Event(event) if text_of(&event.data, "turn") == Some(turn.id.as_str()) => {
                is_accepted = true;
                let Some(over) = screen.event(&event)? else { continue };
                words.end_line()?;
                screen.print_usage(&event);
                return Ok(conclude(daemon, agent, turn, over, seen_end).await);
            }
            // The turn is not affected by an end of the agent before it had the turn.
            FollowedItem::Event(event) if is_accepted && event.stream == turn.agent => {
                let Some(end) = agent_end(&event) else { continue };
                match check_turn(daemon, agent, turn).await {
                    TurnAfterAgent::Over => seen_end = Some(end),
                    TurnAfterAgent::GoesOn => {}
                    TurnAfterAgent::Left(left) => {
                        words.end_line()?;
                        return Ok(TurnEnding::Broken(abandoned(&end, left, agent, turn)));
                    }
                }
            }
            FollowedItem::Event(_) | FollowedItem::Preview(_) => {}
        }
    }
}

/// The end of a turn for its reader.
async fn conclude(
    daemon: &mut DaemonClient<'_>,
    agent: &PromptedAgent,
    turn: &TurnView,
    over: TurnVerdict,
    seen_end: Option<AgentEnd>,
) -> TurnEnding {
    match over {
        TurnVerdict::Done => TurnEnding::Done,
        TurnVerdict::Interrupted => {
            let end = match seen_end {
                Some(end) => Some(end),
                None => find_agent_end(daemon, agent).await,
            };
            let (way, turn) = WayToContinue::look_up(daemon, turn).await;
            TurnEnding::Broken(interrupted(end, agent, &turn, way))
        }
        TurnVerdict::Failed(failure) => {
            let (way, turn) = WayToContinue::look_up(daemon, turn).await;
            TurnEnding::Broken(with_next_step(failure, agent, &turn, way))
        }
    }
}

/// What the person at a prompt wants to know of a shutdown.
fn shut_down(failure: CommandFailure) -> CommandFailure {
    if failure.is(SHUTTING_DOWN) {
        let what = "the daemon was shut down; the turn continues when a daemon is running again";
        return CommandFailure::new(CommandExit::NoDaemon, what).with_code(SHUTTING_DOWN.as_str());
    }
    failure
}

/// The job that a model submitted, by its id.
fn submitted(tool: &str, result: Option<&str>) -> Option<String> {
    let told: Value = serde_json::from_str(result.filter(|_| tool == "job_submit")?).ok()?;
    Some(told.get("job_id")?.as_str()?.to_owned())
}

struct TurnScreen<'a> {
    words: &'a Words,
    fold: TextFold,
    show: ShownSteps,
    /// What happened before the reader joined, while it is read.
    replayed: Option<ReplayedText>,
    /// The failure for which it waits, which was shown.
    waits: Option<String>,
}

impl<'a> TurnScreen<'a> {
    fn new(words: &'a Words, show: ShownSteps) -> Self {
        TurnScreen { words, fold: TextFold::default(), show, replayed: None, waits: None }
    }
}

impl TurnScreen<'_> {
    fn event(&mut self, event: &Event) -> Result<Option<TurnVerdict>, CommandFailure> {
        if !event.is(EventKind::TurnWaiting) {
            self.continues();
        }
        let (actions, verdict) = match event.body() {
            Some(EventBody::TurnStepStarted(step)) => (self.fold.step_started(step.step, step.attempt), None),
            Some(EventBody::TurnStepRestarted(step)) => {
                (self.fold.step_restarted(step.step, step.attempt), None)
            }
            Some(EventBody::TurnText(TurnText { step, attempt, offset, text, .. })) => {
                (self.fold.durable(StepText { step, attempt, offset, text: &text }), None)
            }
            Some(EventBody::TurnToolCall(call)) => {
                let arguments = Value::from(call.arguments);
                self.tool(format!("⚙ {}", render::tool_call(&call.name, &arguments)))?;
                return Ok(None);
            }
            Some(EventBody::TurnToolResult(result)) => {
                self.tool_result(&result)?;
                return Ok(None);
            }
            Some(EventBody::TurnWaiting(wait)) => {
                self.waits_for(&wait, &event.at)?;
                return Ok(None);
            }
            Some(EventBody::TurnStepFinished(_)) => {
                self.waits = None;
                return Ok(None);
            }
            Some(EventBody::TurnFinished(_)) => (self.fold.settle(), Some(TurnVerdict::Done)),
            Some(EventBody::TurnInterrupted(_)) => (self.fold.settle(), Some(TurnVerdict::Interrupted)),
            Some(EventBody::TurnFailed(turn)) => {
                (self.fold.settle(), Some(TurnVerdict::Failed(failed(turn))))
            }
            Some(_) | None => return Ok(None),
        };
        self.show(actions)?;
        Ok(verdict)
    }

    /// One line for each failure, not for each attempt.
    fn waits_for(&mut self, wait: &TurnWaiting, at: &str) -> Result<(), CommandFailure> {
        if self.words.json || self.waits.as_ref() == Some(&wait.message) {
            return Ok(());
        }
        self.waits = Some(wait.message.clone());
        let line = parked::waiting_line(wait, at);
        match &mut self.replayed {
            Some(replayed) => {
                replayed.wait(Some(line));
                Ok(())
            }
            None => self.print_wait(&line),
        }
    }

    fn print_wait(&self, line: &str) -> Result<(), CommandFailure> {
        if self.words.stdout_is_terminal() {
            self.words.end_line()?;
        }
        self.words.print_dimmed_note(line);
        Ok(())
    }

    /// The turn goes on. A wait before the reader joined is over, and is not shown.
    fn continues(&mut self) {
        if let Some(replayed) = &mut self.replayed {
            replayed.wait(None);
            self.waits = None;
        }
    }

    fn tool_result(&mut self, result: &TurnToolResult) -> Result<(), CommandFailure> {
        let status = result.cause.as_deref().unwrap_or(&result.status);
        // Of several that run at once the first to end is shown first.
        let name = render::one_line(&result.name);
        let ended = match submitted(&name, Some(&result.preview)) {
            Some(job) => render::one_line(&job),
            None => {
                let exit_code = result.exit_code.map(i64::from);
                render::tool_result(Some(status), exit_code, Some(result.bytes))
            }
        };
        self.tool(format!("  → {name}: {ended}"))
    }

    fn show(&mut self, actions: Vec<FoldAction>) -> Result<(), CommandFailure> {
        if self.words.json || self.show == ShownSteps::Steps {
            return Ok(());
        }
        if let Some(replayed) = &mut self.replayed {
            replayed.apply(actions);
            return Ok(());
        }
        for action in actions {
            match action {
                FoldAction::Print(bytes) => self.words.part(&bytes)?,
                FoldAction::Restart => {
                    self.words.end_line()?;
                    self.words.print_dimmed_note("[answer restarted]");
                }
                FoldAction::NewStep => self.words.end_line()?,
            }
        }
        Ok(())
    }

    /// One line for a user who watches, after the answer.
    fn print_usage(&self, event: &Event) {
        let used = match event.body() {
            Some(EventBody::TurnFinished(turn)) if !self.words.json => {
                let cost_usd = turn.micro_usd.map(|micro_usd| micro_usd as f64 / 1e6);
                render::usage(turn.input_tokens, turn.output_tokens, cost_usd)
            }
            Some(_) | None => None,
        };
        if let Some(used) = used {
            self.words.progress(&used);
        }
    }

    fn tool(&mut self, line: String) -> Result<(), CommandFailure> {
        if let Some(replayed) = &mut self.replayed {
            replayed.tool(line);
            return Ok(());
        }
        if self.words.watched() && !self.words.json {
            if self.words.stdout_is_terminal() {
                self.words.end_line()?;
            }
            self.words.progress(&line);
        }
        Ok(())
    }
}

fn failed(turn: TurnFailed) -> CommandFailure {
    failed_turn(&turn.code, &turn.message, turn.hint)
}

fn failed_turn(code: &str, message: &str, hint: Option<String>) -> CommandFailure {
    let failure =
        CommandFailure::refused("the turn failed").because(format!("{message} ({code})")).with_code(code);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn text_of<'a>(data: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    data.get(field).and_then(Value::as_str)
}

#[cfg(test)]
mod tests;

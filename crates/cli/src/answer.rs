//! Showing one turn while it happens: the answer on stdout, tools on stderr.
//!
//! Owns: what of a turn is shown and when it is over. Never: reconnecting (see `follow`).

use lodge_proto::{Event, TurnView};
use serde_json::{Map, Value};

use crate::failure::Failure;
use crate::fold::{Action, Piece, TextFold};
use crate::follow::{Daemon, Seen};
use crate::render;
use crate::words::Words;

/// How a turn ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Done,
    Broken(Failure),
}

/// The agent that is asked.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub id: String,
    pub name: String,
    /// Whether it is still there after the command, for a turn to go on with.
    pub stays: bool,
}

/// Follows a turn to its end, or to that of its agent. With `--json` nothing is shown meanwhile.
pub(crate) async fn follow(
    daemon: &mut Daemon<'_>,
    agent: &Asked,
    turn: &TurnView,
    words: &Words,
) -> Result<Ending, Failure> {
    let mut is_accepted = false;
    let mut screen = Screen { words, fold: TextFold::default() };
    loop {
        match daemon.next().await? {
            Seen::Preview(delta) if delta.turn == turn.id => {
                let piece = Piece {
                    step: delta.step,
                    attempt: delta.attempt,
                    offset: delta.offset,
                    text: &delta.text,
                };
                let actions = screen.fold.preview(piece);
                screen.show(actions)?;
            }
            Seen::Event(event) if text_of(&event.data, "turn") == Some(turn.id.as_str()) => {
                is_accepted = true;
                if let Some(ending) = screen.event(&event)? {
                    words.end_line()?;
                    return Ok(ending);
                }
            }
            // What befell the agent before it had the turn does not touch the turn.
            Seen::Event(event) if is_accepted && event.stream == turn.agent => {
                if let Some(failure) = left_alone(&event, agent, turn) {
                    words.end_line()?;
                    return Ok(Ending::Broken(failure));
                }
            }
            Seen::Event(_) | Seen::Preview(_) => {}
        }
    }
}

/// What to say of a turn that is not over and whose agent ended. Nothing would come of waiting for it.
fn left_alone(event: &Event, agent: &Asked, turn: &TurnView) -> Option<Failure> {
    let name = &agent.name;
    let failure = match event.kind.as_str() {
        "agent.failed" => Failure::refused(format!("{name} failed before the turn was over")),
        "agent.stopped" => Failure::refused(format!("{name} was stopped before the turn was over")),
        "agent.removed" => {
            return Some(Failure::refused(format!("{name} was removed before the turn was over")));
        }
        _ => return None,
    };
    let causes = ["reason", "detail"].into_iter().filter_map(|field| text_of(&event.data, field));
    let failure = causes.fold(failure, |failure, cause| failure.because(cause));
    if !agent.stays {
        return Some(failure);
    }
    let session = &turn.session;
    Some(failure.hint(format!(
        "the turn waits: run `lodge start {name}` and it continues; `lodge session show {session}` shows it"
    )))
}

struct Screen<'a> {
    words: &'a Words,
    fold: TextFold,
}

impl Screen<'_> {
    fn event(&mut self, event: &Event) -> Result<Option<Ending>, Failure> {
        let data = &event.data;
        let step = number_of(data, "step").unwrap_or(0);
        let attempt = number_of(data, "attempt");
        let actions = match event.kind.as_str() {
            "turn.step_started" => self.fold.step_started(step, attempt),
            "turn.step_restarted" => {
                attempt.map(|attempt| self.fold.step_restarted(step, attempt)).unwrap_or_default()
            }
            "turn.text" => self.fold.durable(Piece {
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
                let ended = render::tool_result(text_of(data, "status"), exit_code, bytes);
                self.tool(&format!("  → {ended}"))?;
                Vec::new()
            }
            "turn.finished" => return Ok(Some(Ending::Done)),
            "turn.interrupted" => return Ok(Some(Ending::Broken(interrupted(data)))),
            "turn.failed" => return Ok(Some(Ending::Broken(failed(data)))),
            _ => Vec::new(),
        };
        self.show(actions)?;
        Ok(None)
    }

    fn show(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        if self.words.json {
            return Ok(());
        }
        for action in actions {
            match action {
                Action::Print(bytes) => self.words.part(&bytes)?,
                Action::Restart => {
                    self.words.end_line()?;
                    self.words.murmur("[answer restarted]");
                }
                Action::NewStep => self.words.end_line()?,
            }
        }
        Ok(())
    }

    fn tool(&self, line: &str) -> Result<(), Failure> {
        if self.words.watched() && !self.words.json {
            if self.words.stdout_is_terminal() {
                self.words.end_line()?;
            }
            self.words.progress(line);
        }
        Ok(())
    }
}

fn interrupted(data: &Map<String, Value>) -> Failure {
    let failure = Failure::refused("the turn was interrupted");
    match text_of(data, "reason") {
        Some(reason) => failure.because(reason),
        None => failure,
    }
}

fn failed(data: &Map<String, Value>) -> Failure {
    let failure = Failure::refused("the turn failed");
    let failure = match (text_of(data, "message"), text_of(data, "code")) {
        (Some(message), Some(code)) => failure.because(format!("{message} ({code})")),
        (Some(cause), None) | (None, Some(cause)) => failure.because(cause),
        (None, None) => failure,
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
    use crate::failure::Exit;
    use serde_json::json;

    fn told(kind: &str, data: Value, stays: bool) -> Option<(String, Vec<String>, Option<String>)> {
        let event =
            json!({"seq": 9, "stream": "agt_1", "stream_seq": 3, "at": "", "kind": kind, "data": data});
        let turn = json!({"id": "trn_1", "session": "ses_1", "agent": "agt_1", "status": "running", "text": "",
            "partial": true, "steps": [], "usage": {"input_tokens": 0, "output_tokens": 0}, "created_at": ""});
        let agent = Asked { id: "agt_1".to_owned(), name: "ada".to_owned(), stays };
        let (event, turn) = (serde_json::from_value(event).unwrap(), serde_json::from_value(turn).unwrap());
        left_alone(&event, &agent, &turn).map(|failure| {
            let Failure::Told(report) = failure else { panic!("not told") };
            assert_eq!(report.exit, Exit::Refused);
            (report.what, report.because, report.hint)
        })
    }

    #[test]
    fn a_turn_whose_agent_ends_is_not_waited_for() {
        let crash = json!({"reason": "crashed", "detail": "ended by signal 9"});
        let (what, because, hint) = told("agent.failed", crash.clone(), true).unwrap();
        assert_eq!(what, "ada failed before the turn was over");
        assert_eq!(because, ["crashed", "ended by signal 9"]);
        let waits =
            "the turn waits: run `lodge start ada` and it continues; `lodge session show ses_1` shows it";
        assert_eq!(hint.as_deref(), Some(waits));
        let (what, because, hint) = told("agent.stopped", json!({}), true).unwrap();
        assert_eq!((what.as_str(), because.len()), ("ada was stopped before the turn was over", 0));
        assert_eq!(hint.as_deref(), Some(waits));
        // Nobody can start what is gone, or is about to be.
        assert_eq!(told("agent.removed", json!({}), true).unwrap().2, None);
        assert_eq!(told("agent.failed", crash, false).unwrap().2, None);
    }

    #[test]
    fn whatever_else_an_agent_does_is_waited_through() {
        for kind in
            ["agent.pulling", "agent.starting", "agent.ready", "agent.working", "agent.removing", "agent.new"]
        {
            assert_eq!(told(kind, json!({}), true), None, "{kind}");
        }
    }
}

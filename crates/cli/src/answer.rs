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

/// Follows a turn to its end. With `--json` nothing is shown meanwhile.
pub(crate) async fn follow(
    daemon: &mut Daemon<'_>,
    turn: &TurnView,
    words: &Words,
) -> Result<Ending, Failure> {
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
                if let Some(ending) = screen.event(&event)? {
                    words.end_line()?;
                    return Ok(ending);
                }
            }
            Seen::Event(_) | Seen::Preview(_) => {}
        }
    }
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

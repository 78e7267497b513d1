//! Everything the runtime says on stderr, one event per line: `MILLISECONDS runtime: [LEVEL ]EVENT field=…`. Without a level it is
//! information.
//!
//! Owns: the list of events. Never: prompts, answers, tool arguments or values of configs.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Longer values are cut, so that a line stays a line.
const VALUE_CHARS_MAX: usize = 200;

pub(crate) enum RuntimeLogEvent<'a> {
    Initialized { agent: &'a str, epoch: u64, context: &'a str, tools: usize, turns: usize, resent: usize },
    InitializeRefused { code: &'a str, cause: &'a dyn Display },
    ConfigKept { key: &'a str },
    ContextSkipped { file: &'a str },
    TurnStarted { turn: &'a str, step: u32 },
    TurnFinished { turn: &'a str },
    TurnDropped { turn: &'a str, code: &'a str },
    TurnFailed { turn: &'a str, code: &'a str },
    TurnInterrupted { turn: &'a str },
    AnswerIgnored { id: &'a str },
    LineRefused { code: &'a str },
    InputClosed { turns: usize },
    PipeFailed { cause: &'a dyn Display },
}

impl RuntimeLogEvent<'_> {
    /// Writes the line; a log that cannot be written is no reason to stop working.
    pub(crate) fn emit(&self) {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let line = format!("{now_ms} runtime: {}\n", self.line());
        let _unwritable = io::stderr().write_all(line.as_bytes());
    }

    fn line(&self) -> String {
        match self {
            RuntimeLogEvent::Initialized { agent, epoch, context, tools, turns, resent } => {
                event("info", "runtime.initialized")
                    .with("agent", agent)
                    .with("epoch", epoch)
                    .with("context", context)
                    .with("tools", tools)
                    .with("turns", turns)
                    .with("resent", resent)
            }
            RuntimeLogEvent::InitializeRefused { code, cause } => {
                event("error", "runtime.initialize_refused").with("code", code).with("cause", cause)
            }
            RuntimeLogEvent::ConfigKept { key } => event("debug", "config.kept").with("key", key),
            RuntimeLogEvent::ContextSkipped { file } => event("debug", "context.skipped").with("file", file),
            RuntimeLogEvent::TurnStarted { turn, step } => {
                event("debug", "turn.started").with("turn", turn).with("step", step)
            }
            RuntimeLogEvent::TurnFinished { turn } => event("info", "turn.finished").with("turn", turn),
            RuntimeLogEvent::TurnDropped { turn, code } => {
                event("info", "turn.dropped").with("turn", turn).with("code", code)
            }
            RuntimeLogEvent::TurnFailed { turn, code } => {
                event("warn", "turn.failed").with("turn", turn).with("code", code)
            }
            RuntimeLogEvent::TurnInterrupted { turn } => event("info", "turn.interrupted").with("turn", turn),
            RuntimeLogEvent::AnswerIgnored { id } => event("debug", "answer.ignored").with("id", id),
            RuntimeLogEvent::LineRefused { code } => event("warn", "line.refused").with("code", code),
            RuntimeLogEvent::InputClosed { turns } => event("info", "input.closed").with("turns", turns),
            RuntimeLogEvent::PipeFailed { cause } => event("error", "pipe.failed").with("cause", cause),
        }
        .0
    }
}

struct LogLine(String);

fn event(level: &str, name: &str) -> LogLine {
    match level {
        "info" => LogLine(name.to_owned()),
        level => LogLine(format!("{level} {name}")),
    }
}

impl LogLine {
    fn with(mut self, key: &str, value: &dyn Display) -> Self {
        let value: String = value.to_string().chars().take(VALUE_CHARS_MAX).collect();
        let plain = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && c != '"' && c != '=');
        self.0.push_str(&if plain { format!(" {key}={value}") } else { format!(" {key}={value:?}") });
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_forge_a_line_or_a_field() {
        let line = RuntimeLogEvent::ConfigKept { key: "a\nlevel=error" }.line();
        assert_eq!(line, r#"debug config.kept key="a\nlevel=error""#);
        assert_eq!(
            RuntimeLogEvent::TurnStarted { turn: "trn_1", step: 2 }.line(),
            "debug turn.started turn=trn_1 step=2"
        );
    }
}

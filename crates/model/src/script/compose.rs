//! Finds the step of a script that answers a request and fills in its placeholders, within the limits of an answer.

use super::ScriptError;
use super::file::{Script, Step};
use super::template::{Allowance, Overflow, Template};
use crate::context::Limits;
use crate::error::Oversize;
use crate::request::{Message, ToolCall};

/// Bytes of the user's message that are compared with the `when` of turns, all turns together.
pub(crate) const COMPARED_BYTES_MAX: usize = 256 << 20;

/// Where in the conversation, and so in the script, a request stands.
#[derive(Debug)]
pub(crate) struct Moment {
    /// The latest.
    user_text: String,
    user_messages: usize,
    /// Assistant messages since the user's latest.
    step: usize,
    /// Texts since the user's latest.
    tool_results: Vec<String>,
}

/// A step of a script, and its reply unless that is too large.
#[derive(Debug)]
pub(crate) struct Composed {
    pub(crate) step: Step,
    pub(crate) reply: Result<Reply, Oversize>,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
}

impl Moment {
    pub(crate) fn of(script: &Script, messages: &[Message]) -> Result<Self, ScriptError> {
        let is_user = |message: &Message| matches!(message, Message::User { .. });
        let latest = messages.iter().rposition(is_user);
        let Some((Message::User { text }, since)) = latest.and_then(|at| messages[at..].split_first()) else {
            return Err(ScriptError::NoUserMessage { path: script.path.clone() });
        };
        let result = |message: &Message| match message {
            Message::ToolResult { text, .. } => Some(text.clone()),
            Message::User { .. } | Message::Assistant { .. } => None,
        };
        Ok(Self {
            user_text: text.clone(),
            user_messages: messages.iter().filter(|message| is_user(message)).count(),
            step: since.iter().filter(|message| matches!(message, Message::Assistant { .. })).count(),
            tool_results: since.iter().filter_map(result).collect(),
        })
    }

    /// The step that answers, with its placeholders filled in.
    pub(crate) fn compose(&self, mut script: Script, limits: &Limits) -> Result<Composed, ScriptError> {
        let mut turn = script.turns.swap_remove(self.find_turn(&script)?);
        if self.step >= turn.steps.len() {
            return Err(ScriptError::PastEnd {
                path: script.path,
                line: turn.line,
                steps: turn.steps.len(),
                asked: self.step + 1,
            });
        }
        let step = turn.steps.swap_remove(self.step);
        let reply = self.reply(&step, limits);
        Ok(Composed { step, reply })
    }

    fn find_turn(&self, script: &Script) -> Result<usize, ScriptError> {
        let mut compared = 0_usize;
        for (at, turn) in script.turns.iter().enumerate() {
            let Some(when) = &turn.when else { return Ok(at) };
            compared = compared.saturating_add(self.user_text.len());
            if compared > COMPARED_BYTES_MAX {
                return Err(ScriptError::TooMuchToCompare { path: script.path.clone() });
            }
            if self.user_text.contains(when.as_str()) {
                return Ok(at);
            }
        }
        Err(ScriptError::NoTurn { path: script.path.clone() })
    }

    fn reply(&self, step: &Step, limits: &Limits) -> Result<Reply, Oversize> {
        if step.calls.len() > limits.calls_max {
            return Err(Oversize::Calls);
        }
        let template = Template::new(&self.user_text, self.user_messages, &self.tool_results);
        let mut allowance = Allowance::new(limits.answer_bytes_max);
        let too_large = |Overflow| Oversize::Answer;
        let text = template.fill(&step.text, &mut allowance).map_err(too_large)?;
        let mut calls = Vec::with_capacity(step.calls.len());
        let mut size = text.len();
        for (place, call) in step.calls.iter().enumerate() {
            let arguments = call.arguments(&template, &mut allowance).map_err(too_large)?;
            // Braces, names and escapes count as well.
            size += arguments.len();
            if size > limits.answer_bytes_max {
                return Err(Oversize::Answer);
            }
            let id = format!("call_{}_{}_{place}", self.user_messages, self.step);
            calls.push(ToolCall { id, name: call.name.clone(), arguments });
        }
        Ok(Reply { text, calls })
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::Turn;
    use super::*;

    #[test]
    fn a_long_message_is_not_compared_with_turns_without_end() {
        let turn = |at: u64| Turn { when: Some(format!("{at}!")), steps: Vec::new(), line: at };
        let script = |turns: u64| Script { path: "x.yaml".into(), turns: (0..turns).map(turn).collect() };
        let moment = Moment::of(&script(1), &[Message::user("a".repeat(1 << 20))]).unwrap();
        let code = |turns| moment.compose(script(turns), &Limits::default()).unwrap_err().code();
        assert_eq!(code(3), "script.no_turn");
        assert_eq!(code(257), "script.too_much_to_compare");
    }
}

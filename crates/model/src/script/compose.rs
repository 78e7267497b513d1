//! Finds the step of a script that answers a request and fills in its placeholders, within the limits of an answer.

use super::ScriptError;
use super::file::{Script, ScriptStep};
use super::template::{Template, TemplateBudget, TemplateOverflow};
use crate::context::CallLimits;
use crate::error::AnswerLimit;
use crate::request::{ModelMessage, ToolCall};

/// Bytes of the user's message that are compared with the `when` of turns, all turns together.
pub(crate) const COMPARED_BYTES_MAX: usize = 256 << 20;

/// The position of a request in the conversation, and so in the script.
#[derive(Debug)]
pub(crate) struct ScriptPosition {
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
pub(crate) struct ComposedStep {
    pub(crate) step: ScriptStep,
    pub(crate) reply: Result<ScriptReply, AnswerLimit>,
}

#[derive(Debug)]
pub(crate) struct ScriptReply {
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
}

impl ScriptPosition {
    pub(crate) fn of(script: &Script, messages: &[ModelMessage]) -> Result<Self, ScriptError> {
        let is_user = |message: &ModelMessage| matches!(message, ModelMessage::User { .. });
        let latest = messages.iter().rposition(is_user);
        let Some((ModelMessage::User { text }, since)) = latest.and_then(|at| messages[at..].split_first())
        else {
            return Err(ScriptError::NoUserMessage { path: script.path.clone() });
        };
        let result = |message: &ModelMessage| match message {
            ModelMessage::ToolResult { text, .. } => Some(text.clone()),
            ModelMessage::User { .. } | ModelMessage::Assistant { .. } => None,
        };
        Ok(Self {
            user_text: text.clone(),
            user_messages: messages.iter().filter(|message| is_user(message)).count(),
            step: since.iter().filter(|message| matches!(message, ModelMessage::Assistant { .. })).count(),
            tool_results: since.iter().filter_map(result).collect(),
        })
    }

    /// The step that answers, with its placeholders filled in.
    pub(crate) fn compose(
        &self,
        mut script: Script,
        limits: &CallLimits,
    ) -> Result<ComposedStep, ScriptError> {
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
        Ok(ComposedStep { step, reply })
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

    fn reply(&self, step: &ScriptStep, limits: &CallLimits) -> Result<ScriptReply, AnswerLimit> {
        if step.calls.len() > limits.calls_max {
            return Err(AnswerLimit::Calls);
        }
        let template = Template::new(&self.user_text, self.user_messages, &self.tool_results);
        let mut allowance = TemplateBudget::new(limits.answer_bytes_max);
        let too_large = |TemplateOverflow| AnswerLimit::Answer;
        let text = template.fill(&step.text, &mut allowance).map_err(too_large)?;
        let mut calls = Vec::with_capacity(step.calls.len());
        let mut size = text.len();
        for (place, call) in step.calls.iter().enumerate() {
            let arguments = call.arguments(&template, &mut allowance).map_err(too_large)?;
            // Braces, names and escapes count as well.
            size += arguments.len();
            if size > limits.answer_bytes_max {
                return Err(AnswerLimit::Answer);
            }
            let id = format!("call_{}_{}_{place}", self.user_messages, self.step);
            calls.push(ToolCall { id, name: call.name.clone(), arguments });
        }
        Ok(ScriptReply { text, calls })
    }
}

#[cfg(test)]
mod tests {
    use super::super::file::ScriptTurn;
    use super::*;

    #[test]
    fn a_long_message_is_not_compared_with_turns_without_end() {
        let turn = |at: u64| ScriptTurn { when: Some(format!("{at}!")), steps: Vec::new(), line: at };
        let script = |turns: u64| Script { path: "x.yaml".into(), turns: (0..turns).map(turn).collect() };
        let moment = ScriptPosition::of(&script(1), &[ModelMessage::user("a".repeat(1 << 20))]).unwrap();
        let code = |turns| moment.compose(script(turns), &CallLimits::default()).unwrap_err().code();
        assert_eq!(code(3), "script.no_turn");
        assert_eq!(code(257), "script.too_much_to_compare");
    }
}

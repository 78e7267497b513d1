//! Assembles an answer from the lines of a stream.

use serde::Deserialize;
use serde_json::Value;

use crate::context::CallLimits;
use crate::count::count;
use crate::dialect::{AnswerProgress, AnswerReader, ProviderReport};
use crate::draft::{AnswerDraft, FinishedDraft, OnText};
use crate::error::{AnswerFault, UnreadableAnswer};
use crate::request::StopReason;

#[derive(Debug)]
pub(crate) struct OllamaReader {
    draft: AnswerDraft,
    thinking: String,
    done: bool,
}

#[derive(Debug, Deserialize)]
struct OllamaLine {
    message: Option<OllamaAnswer>,
    #[serde(default)]
    done: bool,
    done_reason: Option<String>,
    #[serde(default, deserialize_with = "count")]
    prompt_eval_count: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    eval_count: Option<u64>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct OllamaAnswer {
    #[serde(default)]
    content: String,
    thinking: Option<String>,
    tool_calls: Option<Vec<OllamaAnswerCall>>,
}

#[derive(Debug, Deserialize)]
struct OllamaAnswerCall {
    id: Option<String>,
    function: OllamaAnswerFunction,
}

#[derive(Debug, Deserialize)]
struct OllamaAnswerFunction {
    #[serde(default)]
    name: String,
    /// An object by the book.
    arguments: Option<Value>,
}

impl OllamaReader {
    pub(crate) fn new(limits: CallLimits, messages: usize) -> Self {
        Self { draft: AnswerDraft::new(limits, messages), thinking: String::new(), done: false }
    }

    fn message(&mut self, message: OllamaAnswer, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        if let Some(thought) = message.thinking {
            self.draft.grow(thought.len())?;
            self.thinking.push_str(&thought);
        }
        self.draft.append_text(&message.content, on_text)?;
        for call in message.tool_calls.into_iter().flatten() {
            let place = self.draft.begin_call()?;
            let arguments = match call.function.arguments {
                None | Some(Value::Null) => String::new(),
                Some(Value::String(text)) => text,
                Some(object) => object.to_string(),
            };
            self.draft.add_to_call(place, call.id.unwrap_or_default(), &call.function.name, &arguments)?;
        }
        Ok(())
    }
}

impl AnswerReader for OllamaReader {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let line: OllamaLine = serde_json::from_str(data)
            .map_err(|_| AnswerFault::Nonsense { what: UnreadableAnswer::NotJson, text: data.to_owned() })?;
        if let Some(message) = line.error {
            return Err(AnswerFault::Reported(ProviderReport { message, ..ProviderReport::default() }));
        }
        if let Some(message) = line.message {
            self.message(message, on_text)?;
        }
        let counted = &mut self.draft.usage;
        counted.input_tokens = line.prompt_eval_count.unwrap_or(counted.input_tokens);
        counted.output_tokens = line.eval_count.unwrap_or(counted.output_tokens);
        if line.done {
            self.done = true;
            self.draft.stop = Some(match line.done_reason.as_deref() {
                None | Some("stop") => StopReason::End,
                Some("length") => StopReason::Length,
                Some(_) => StopReason::Unrecognised,
            });
        }
        Ok(())
    }

    fn complete(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        self.event(body, on_text)
    }

    fn progress(&self) -> AnswerProgress {
        if self.done { AnswerProgress::Done } else { AnswerProgress::Open }
    }

    fn finish(self: Box<Self>) -> Result<FinishedDraft, AnswerFault> {
        let Some(stop) = self.draft.stop else { return Err(AnswerFault::Incomplete) };
        let blocks = if self.thinking.is_empty() { vec![] } else { vec![self.thinking.into_bytes()] };
        self.draft.finish(stop, blocks)
    }
}

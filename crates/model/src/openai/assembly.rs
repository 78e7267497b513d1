//! Assembles an answer from the chunks of a stream.

use serde_json::Value;

use super::thoughts::Thoughts;
use super::wire::{CallDelta, OpenaiChoice, OpenaiChunk, OpenaiDelta};
use crate::context::CallLimits;
use crate::dialect::{AnswerProgress, AnswerReader};
use crate::draft::{AnswerDraft, FinishedDraft, OnText, not_json};
use crate::error::{AnswerFault, UnreadableAnswer};
use crate::request::StopReason;

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct OpenaiReader {
    draft: AnswerDraft,
    /// Of each call, the index it was begun under.
    indices: Vec<Option<usize>>,
    thoughts: Thoughts,
    has_choice: bool,
    done: bool,
}

impl OpenaiReader {
    pub(crate) fn new(limits: CallLimits, messages: usize) -> Self {
        let (draft, thoughts) = (AnswerDraft::new(limits, messages), Thoughts::default());
        Self { draft, indices: Vec::new(), thoughts, has_choice: false, done: false }
    }

    fn chunk(
        &mut self,
        chunk: OpenaiChunk,
        content_of: impl Fn(OpenaiChoice) -> OpenaiDelta,
        on_text: OnText<'_>,
    ) -> Result<(), AnswerFault> {
        if let Some(error) = chunk.error {
            return Err(AnswerFault::Reported(error.reported()));
        }
        if let Some(usage) = chunk.usage {
            let counted = &mut self.draft.usage;
            let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            counted.input_tokens = usage.prompt_tokens.unwrap_or(counted.input_tokens);
            counted.output_tokens = usage.completion_tokens.unwrap_or(counted.output_tokens);
            counted.cached_tokens = cached.or(usage.prompt_cache_hit_tokens).unwrap_or(counted.cached_tokens);
        }
        for mut choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.has_choice = true;
            let finish_reason = choice.finish_reason.take();
            self.delta(content_of(choice), on_text)?;
            if let Some(reason) = finish_reason.filter(|reason| !reason.is_empty()) {
                self.draft.stop = Some(stop_of(&reason));
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: OpenaiDelta, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        if let Some(thought) = delta.reasoning_content {
            self.draft.grow(thought.len())?;
            self.thoughts.reasoning_content.push_str(&thought);
        }
        for detail in delta.reasoning_details.into_iter().flatten() {
            self.draft.grow(weight(&detail))?;
            self.thoughts.detail(detail);
        }
        let content = delta.content.map(|content| content.into_text());
        for piece in [content, delta.refusal].into_iter().flatten() {
            self.draft.append_text(&piece, on_text)?;
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call)?;
        }
        Ok(())
    }

    fn call(&mut self, delta: CallDelta) -> Result<(), AnswerFault> {
        let name = delta.function.name.unwrap_or_default();
        let arguments = match delta.function.arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(object) => object.to_string(),
        };
        let id = delta.id.unwrap_or_default();
        let place = match self.place_of(delta.index, &id, &name) {
            Some(place) => place,
            None => {
                self.indices.push(delta.index);
                self.draft.begin_call()?
            }
        };
        if let Some(extra) = delta.extra_content.filter(|extra| !extra.is_null()) {
            self.draft.grow(weight(&extra))?;
            self.thoughts.extra(place, extra);
        }
        self.draft.add_to_call(place, id, &name, &arguments)
    }

    /// The call that a piece continues, or none when it begins a new one.
    fn place_of(&self, index: Option<usize>, id: &str, name: &str) -> Option<usize> {
        let calls = &self.draft.calls;
        match index {
            // Some servers send every call with index 0, but with ids of their own.
            Some(_) => (0..calls.len()).rev().find(|place| {
                let known = &calls[*place].id;
                self.indices[*place] == index && (id.is_empty() || known.is_empty() || known == id)
            }),
            None if id.is_empty() && name.is_empty() => calls.len().checked_sub(1),
            None if id.is_empty() => None,
            None => calls.iter().rposition(|call| call.id == id),
        }
    }
}

impl AnswerReader for OpenaiReader {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        match data.trim() {
            "" => Ok(()),
            "[DONE]" => {
                self.done = true;
                Ok(())
            }
            json => {
                let chunk = serde_json::from_str(json).map_err(|_| AnswerFault::Nonsense {
                    what: UnreadableAnswer::NotJson,
                    text: json.to_owned(),
                })?;
                self.chunk(chunk, |choice| choice.delta.unwrap_or_default(), on_text)
            }
        }
    }

    fn complete(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let chunk = serde_json::from_str(body).map_err(|error| not_json(&error, body))?;
        self.chunk(chunk, |choice| numbered(choice.message.unwrap_or_default()), on_text)?;
        self.done = true;
        Ok(())
    }

    fn progress(&self) -> AnswerProgress {
        match (self.done, self.draft.stop) {
            (true, _) => AnswerProgress::Done,
            (false, Some(_)) => AnswerProgress::Settled,
            (false, None) => AnswerProgress::Open,
        }
    }

    fn finish(self: Box<Self>) -> Result<FinishedDraft, AnswerFault> {
        if !self.has_choice {
            return match self.done {
                true => Err(AnswerFault::Nonsense { what: UnreadableAnswer::NoAnswer, text: String::new() }),
                false => Err(AnswerFault::Incomplete),
            };
        }
        let stop = match (self.draft.stop, self.done) {
            (Some(stop), _) => stop,
            (None, true) => StopReason::End,
            (None, false) => return Err(AnswerFault::Incomplete),
        };
        self.draft.finish(stop, self.thoughts.write())
    }
}

/// About how many bytes a value takes; its text is not needed.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + weight(value)).sum::<usize>() + 2,
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

/// In a complete answer each entry is a separate call, regardless of its index and id.
fn numbered(mut message: OpenaiDelta) -> OpenaiDelta {
    for (index, call) in message.tool_calls.iter_mut().flatten().enumerate() {
        call.index = Some(index);
    }
    message
}

fn stop_of(reason: &str) -> StopReason {
    match reason {
        "stop" => StopReason::End,
        "tool_calls" | "function_call" => StopReason::ToolCalls,
        "length" => StopReason::Length,
        "content_filter" => StopReason::Filtered,
        _ => StopReason::Unrecognised,
    }
}

#[cfg(test)]
#[path = "assembly_tests.rs"]
mod tests;

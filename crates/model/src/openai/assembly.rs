//! Puts an answer together from the pieces of a stream.

use super::wire::{CallDelta, Choice, Chunk, Delta};
use crate::context::Limits;
use crate::error::{Fault, Nonsense, Oversize};
use crate::request::{Answer, Stop, ToolCall, Usage};

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Assembly {
    limits: Limits,
    /// Number of messages in the request: part of the ids made up for calls that came without.
    messages: usize,
    text: String,
    calls: Vec<Partial>,
    /// Bytes of text, names and arguments.
    size: usize,
    usage: Usage,
    finish_reason: Option<Stop>,
    has_choice: bool,
    done: bool,
}

#[derive(Debug)]
struct Partial {
    index: Option<usize>,
    call: ToolCall,
}

impl Assembly {
    pub(crate) fn new(limits: Limits, messages: usize) -> Self {
        Self {
            limits,
            messages,
            text: String::new(),
            calls: Vec::new(),
            size: 0,
            usage: Usage::default(),
            finish_reason: None,
            has_choice: false,
            done: false,
        }
    }

    /// The provider said that nothing more comes.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    pub(crate) fn has_finish_reason(&self) -> bool {
        self.finish_reason.is_some()
    }

    /// Takes the data of one event of a stream.
    pub(crate) fn event(&mut self, data: &str, on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        match data.trim() {
            "" => Ok(()),
            "[DONE]" => {
                self.done = true;
                Ok(())
            }
            json => {
                let chunk = serde_json::from_str(json)
                    .map_err(|_| Fault::Nonsense { what: Nonsense::NotJson, text: json.to_owned() })?;
                self.chunk(chunk, |choice| choice.delta.unwrap_or_default(), on_text)
            }
        }
    }

    /// Takes the one JSON object of a server that does not stream.
    pub(crate) fn whole(&mut self, body: &[u8], on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        let chunk = serde_json::from_slice(body).map_err(|error| {
            if error.is_eof() {
                return Fault::Incomplete;
            }
            let text = String::from_utf8_lossy(&body[..body.len().min(4096)]).into_owned();
            Fault::Nonsense { what: Nonsense::NotJson, text }
        })?;
        self.chunk(chunk, |choice| numbered(choice.message.unwrap_or_default()), on_text)?;
        self.done = true;
        Ok(())
    }

    /// The answer, if it is all there.
    pub(crate) fn into_answer(self) -> Result<Answer, Fault> {
        if !self.has_choice {
            return match self.done {
                true => Err(Fault::Nonsense { what: Nonsense::NoAnswer, text: String::new() }),
                false => Err(Fault::Incomplete),
            };
        }
        let stop = match (self.finish_reason, self.calls.is_empty()) {
            (None, _) if !self.done => return Err(Fault::Incomplete),
            // Some servers call it a plain stop although there are calls to make.
            (None | Some(Stop::End), false) => Stop::ToolCalls,
            (None, true) => Stop::End,
            (Some(stop), _) => stop,
        };
        let mut calls = Vec::with_capacity(self.calls.len());
        for (place, partial) in self.calls.into_iter().enumerate() {
            let mut call = partial.call;
            if call.name.is_empty() {
                return Err(Fault::Nonsense { what: Nonsense::NamelessCall, text: call.arguments });
            }
            if call.id.is_empty() {
                call.id = format!("call_{}_{place}", self.messages);
            }
            call.id = unlike_the_others(call.id, &calls);
            calls.push(call);
        }
        Ok(Answer { text: self.text, calls, usage: self.usage, stop })
    }

    fn chunk(
        &mut self,
        chunk: Chunk,
        content_of: impl Fn(Choice) -> Delta,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), Fault> {
        if let Some(error) = chunk.error {
            let (error_code, message) = error.into_parts();
            return Err(Fault::Reported { error_code, message });
        }
        if let Some(usage) = chunk.usage {
            self.usage.input_tokens = usage.prompt_tokens.unwrap_or(self.usage.input_tokens);
            self.usage.output_tokens = usage.completion_tokens.unwrap_or(self.usage.output_tokens);
        }
        for mut choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            self.has_choice = true;
            let finish_reason = choice.finish_reason.take();
            self.delta(content_of(choice), on_text)?;
            if let Some(reason) = finish_reason.filter(|reason| !reason.is_empty()) {
                self.finish_reason = Some(stop_of(&reason));
            }
        }
        Ok(())
    }

    fn delta(&mut self, delta: Delta, on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        let content = delta.content.map(|content| content.into_text());
        for piece in [content, delta.refusal].into_iter().flatten().filter(|piece| !piece.is_empty()) {
            self.grow(piece.len())?;
            self.text.push_str(&piece);
            on_text(&piece);
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.call(call)?;
        }
        Ok(())
    }

    fn call(&mut self, delta: CallDelta) -> Result<(), Fault> {
        let name = delta.function.name.unwrap_or_default();
        let arguments = match delta.function.arguments {
            None | Some(serde_json::Value::Null) => String::new(),
            Some(serde_json::Value::String(text)) => text,
            Some(object) => object.to_string(),
        };
        let id = delta.id.unwrap_or_default();
        self.grow(id.len() + name.len() + arguments.len())?;
        let place = match self.place_of(delta.index, &id, &name) {
            Some(place) => place,
            None => {
                if self.calls.len() >= self.limits.calls_max {
                    return Err(Fault::Oversize { what: Oversize::Calls, limit: self.limits.calls_max });
                }
                let call = ToolCall { id: String::new(), name: String::new(), arguments: String::new() };
                self.calls.push(Partial { index: delta.index, call });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[place].call;
        if call.id.is_empty() {
            call.id = id;
        }
        // By the book a name comes whole, once; a repetition adds nothing, a continuation does.
        if call.name != name {
            call.name.push_str(&name);
        }
        call.arguments.push_str(&arguments);
        if call.name.len() + call.arguments.len() > self.limits.call_bytes_max {
            return Err(Fault::Oversize { what: Oversize::Call, limit: self.limits.call_bytes_max });
        }
        Ok(())
    }

    /// The call that a piece continues, or none when it begins a new one.
    fn place_of(&self, index: Option<usize>, id: &str, name: &str) -> Option<usize> {
        match index {
            // Some servers send every call with index 0, but with ids of their own.
            Some(_) => self.calls.iter().rposition(|partial| {
                partial.index == index
                    && (id.is_empty() || partial.call.id.is_empty() || partial.call.id == id)
            }),
            None if id.is_empty() && name.is_empty() => self.calls.len().checked_sub(1),
            None if id.is_empty() => None,
            None => self.calls.iter().rposition(|partial| partial.call.id == id),
        }
    }

    fn grow(&mut self, by: usize) -> Result<(), Fault> {
        self.size += by;
        if self.size > self.limits.answer_bytes_max {
            return Err(Fault::Oversize { what: Oversize::Answer, limit: self.limits.answer_bytes_max });
        }
        Ok(())
    }
}

/// In a whole answer each entry is a call of its own, whatever index or id it has.
fn numbered(mut message: Delta) -> Delta {
    for (index, call) in message.tool_calls.iter_mut().flatten().enumerate() {
        call.index = Some(index);
    }
    message
}

/// A result is stored by the id of its call, so no two calls of an answer may share one.
fn unlike_the_others(id: String, calls: &[ToolCall]) -> String {
    let is_taken = |id: &str| calls.iter().any(|call| call.id == id);
    if !is_taken(&id) {
        return id;
    }
    let mut numbered = (2..).map(|number: u64| format!("{id}-{number}"));
    numbered.find(|other| !is_taken(other)).unwrap_or(id)
}

fn stop_of(reason: &str) -> Stop {
    match reason {
        "stop" => Stop::End,
        "tool_calls" | "function_call" => Stop::ToolCalls,
        "length" => Stop::Length,
        "content_filter" => Stop::Filtered,
        _ => Stop::Unrecognised,
    }
}

#[cfg(test)]
#[path = "assembly_tests.rs"]
mod tests;

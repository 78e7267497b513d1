//! Puts an answer together from the lines of a stream.

use serde::Deserialize;
use serde_json::Value;

use crate::context::Limits;
use crate::count::count;
use crate::dialect::{Progress, Reads, Reported};
use crate::draft::{Draft, OnText, Written};
use crate::error::{Fault, Nonsense};
use crate::request::Stop;

#[derive(Debug)]
pub(crate) struct Stream {
    draft: Draft,
    thinking: String,
    done: bool,
}

#[derive(Debug, Deserialize)]
struct Line {
    message: Option<WireMessage>,
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
struct WireMessage {
    #[serde(default)]
    content: String,
    thinking: Option<String>,
    tool_calls: Option<Vec<WireCall>>,
}

#[derive(Debug, Deserialize)]
struct WireCall {
    id: Option<String>,
    function: Function,
}

#[derive(Debug, Deserialize)]
struct Function {
    #[serde(default)]
    name: String,
    /// An object by the book.
    arguments: Option<Value>,
}

impl Stream {
    pub(crate) fn new(limits: Limits, messages: usize) -> Self {
        Self { draft: Draft::new(limits, messages), thinking: String::new(), done: false }
    }

    fn message(&mut self, message: WireMessage, on_text: OnText<'_>) -> Result<(), Fault> {
        if let Some(thought) = message.thinking {
            self.draft.grow(thought.len())?;
            self.thinking.push_str(&thought);
        }
        self.draft.say(&message.content, on_text)?;
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

impl Reads for Stream {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        let line: Line = serde_json::from_str(data)
            .map_err(|_| Fault::Nonsense { what: Nonsense::NotJson, text: data.to_owned() })?;
        if let Some(message) = line.error {
            return Err(Fault::Reported(Reported { message, ..Reported::default() }));
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
                None | Some("stop") => Stop::End,
                Some("length") => Stop::Length,
                Some(_) => Stop::Unrecognised,
            });
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        self.event(body, on_text)
    }

    fn progress(&self) -> Progress {
        if self.done { Progress::Done } else { Progress::Open }
    }

    fn finish(self: Box<Self>) -> Result<Written, Fault> {
        let Some(stop) = self.draft.stop else { return Err(Fault::Incomplete) };
        let blocks = if self.thinking.is_empty() { vec![] } else { vec![self.thinking.into_bytes()] };
        self.draft.finish(stop, blocks)
    }
}

//! An answer that is being assembled, within its limits, for all protocols.

use crate::context::CallLimits;
use crate::error::{AnswerFault, AnswerLimit, UnreadableAnswer};
use crate::request::{CallUsage, StopReason, ToolCall};

/// Where text goes as it arrives.
pub(crate) type OnText<'a> = &'a mut (dyn FnMut(&str) + Send);

#[derive(Debug)]
pub(crate) struct AnswerDraft {
    pub(crate) limits: CallLimits,
    /// Number of messages in the request: part of the ids made up for calls that came without.
    messages: usize,
    text: String,
    pub(crate) calls: Vec<ToolCall>,
    /// Bytes of text, calls and thoughts.
    size: usize,
    pub(crate) usage: CallUsage,
    pub(crate) stop: Option<StopReason>,
}

/// An answer that is all there, but for whose it is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FinishedDraft {
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) usage: CallUsage,
    pub(crate) stop: StopReason,
    pub(crate) blocks: Vec<Vec<u8>>,
}

impl AnswerDraft {
    pub(crate) fn new(limits: CallLimits, messages: usize) -> Self {
        let (text, calls, usage) = (String::new(), Vec::new(), CallUsage::default());
        Self { limits, messages, text, calls, size: 0, usage, stop: None }
    }

    pub(crate) fn append_text(&mut self, piece: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        if !piece.is_empty() {
            self.grow(piece.len())?;
            self.text.push_str(piece);
            on_text(piece);
        }
        Ok(())
    }

    /// Begins a call and returns its index.
    pub(crate) fn begin_call(&mut self) -> Result<usize, AnswerFault> {
        if self.calls.len() >= self.limits.calls_max {
            return Err(AnswerFault::Oversize { what: AnswerLimit::Calls, limit: self.limits.calls_max });
        }
        let (id, name, arguments) = (String::new(), String::new(), String::new());
        self.calls.push(ToolCall { id, name, arguments });
        Ok(self.calls.len() - 1)
    }

    /// Adds a piece to a call that was begun.
    pub(crate) fn add_to_call(
        &mut self,
        place: usize,
        id: String,
        name: &str,
        arguments: &str,
    ) -> Result<(), AnswerFault> {
        self.grow(id.len() + name.len() + arguments.len())?;
        let Some(call) = self.calls.get_mut(place) else { return Ok(()) };
        if call.id.is_empty() {
            call.id = id;
        }
        // By the book a name comes whole, once; a repetition adds nothing, a continuation does.
        if call.name != name {
            call.name.push_str(name);
        }
        call.arguments.push_str(arguments);
        if call.name.len() + call.arguments.len() > self.limits.call_bytes_max {
            return Err(AnswerFault::Oversize { what: AnswerLimit::Call, limit: self.limits.call_bytes_max });
        }
        Ok(())
    }

    pub(crate) fn grow(&mut self, by: usize) -> Result<(), AnswerFault> {
        self.size += by;
        if self.size > self.limits.answer_bytes_max {
            return Err(AnswerFault::Oversize {
                what: AnswerLimit::Answer,
                limit: self.limits.answer_bytes_max,
            });
        }
        Ok(())
    }

    /// The answer. `stop` is what it ended with, as the protocol says.
    pub(crate) fn finish(self, stop: StopReason, blocks: Vec<Vec<u8>>) -> Result<FinishedDraft, AnswerFault> {
        // Some servers call it a plain stop although there are calls to make.
        let stop = match stop {
            StopReason::End if !self.calls.is_empty() => StopReason::ToolCalls,
            other => other,
        };
        let mut calls: Vec<ToolCall> = Vec::with_capacity(self.calls.len());
        for (place, mut call) in self.calls.into_iter().enumerate() {
            if call.name.is_empty() {
                return Err(AnswerFault::Nonsense {
                    what: UnreadableAnswer::NamelessCall,
                    text: call.arguments,
                });
            }
            if call.id.is_empty() {
                call.id = format!("call_{}_{place}", self.messages);
            }
            call.id = make_unique(call.id, &calls);
            calls.push(call);
        }
        Ok(FinishedDraft { text: self.text, calls, usage: self.usage, stop, blocks })
    }
}

/// A result is stored by the id of its call, so no two calls of an answer may share one.
fn make_unique(id: String, calls: &[ToolCall]) -> String {
    let is_taken = |id: &str| calls.iter().any(|call| call.id == id);
    if !is_taken(&id) {
        return id;
    }
    let mut numbered = (2..).map(|number: u64| format!("{id}-{number}"));
    numbered.find(|other| !is_taken(other)).unwrap_or(id)
}

/// A response that should be a stream and is not: a whole document, or an incomplete error.
pub(crate) fn not_json(error: &serde_json::Error, text: &str) -> AnswerFault {
    if error.is_eof() {
        return AnswerFault::Incomplete;
    }
    const SHOWN_MAX: usize = 4096;
    let text = text.chars().take(SHOWN_MAX).collect();
    AnswerFault::Nonsense { what: UnreadableAnswer::NotJson, text }
}

/// Arguments as the object that a protocol wants; text that is none is passed on inside one.
pub(crate) fn as_object(arguments: &str) -> serde_json::Value {
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(object @ serde_json::Value::Object(_)) => object,
        // A call without arguments, as some models write it.
        Ok(serde_json::Value::Null) => serde_json::json!({}),
        Ok(_) | Err(_) if arguments.trim().is_empty() => serde_json::json!({}),
        Ok(_) | Err(_) => serde_json::json!({ "invalid_arguments": arguments }),
    }
}

//! Puts an answer together from the events of a stream.

use serde::Deserialize;
use serde_json::Value;

use super::WireError;
use super::layout::{self, Place};
use crate::context::Limits;
use crate::count::count;
use crate::dialect::{Progress, Reads};
use crate::draft::{Draft, OnText, Written, not_json};
use crate::error::{Fault, Nonsense};
use crate::request::Stop;

#[derive(Debug)]
pub(crate) struct Stream {
    draft: Draft,
    places: Vec<Place>,
    /// In words, when there will be no answer.
    refusal: Option<String>,
    /// The model wrote something that is no call.
    broken: Option<String>,
    heard: bool,
    /// All of it came at once.
    whole: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    #[serde(default)]
    candidates: Vec<Candidate>,
    prompt_feedback: Option<Feedback>,
    usage_metadata: Option<WireUsage>,
    error: Option<WireError>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate {
    content: Option<Content>,
    finish_reason: Option<String>,
    finish_message: Option<String>,
    #[serde(default)]
    index: u32,
}

#[derive(Debug, Deserialize)]
struct Content {
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    function_call: Option<FunctionCall>,
    thought_signature: Option<String>,
}

#[derive(Debug, Deserialize)]
struct FunctionCall {
    id: Option<String>,
    #[serde(default)]
    name: String,
    args: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback {
    block_reason: Option<String>,
    block_reason_message: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireUsage {
    #[serde(default, deserialize_with = "count")]
    prompt_token_count: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    tool_use_prompt_token_count: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    cached_content_token_count: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    candidates_token_count: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    thoughts_token_count: Option<u64>,
}

impl Stream {
    pub(crate) fn new(limits: Limits, messages: usize) -> Self {
        Self {
            draft: Draft::new(limits, messages),
            places: Vec::new(),
            refusal: None,
            broken: None,
            heard: false,
            whole: false,
        }
    }

    fn chunk(&mut self, chunk: Chunk, on_text: OnText<'_>) -> Result<(), Fault> {
        if let Some(error) = chunk.error {
            return Err(Fault::Reported(error.reported()));
        }
        if let Some(usage) = chunk.usage_metadata {
            self.count(&usage);
        }
        if let Some(Feedback { block_reason: Some(reason), block_reason_message }) = chunk.prompt_feedback {
            self.heard = true;
            self.refusal = Some(words("the prompt was blocked", &reason, block_reason_message));
        }
        for candidate in chunk.candidates.into_iter().filter(|candidate| candidate.index == 0) {
            self.heard = true;
            for part in candidate.content.into_iter().flat_map(|content| content.parts) {
                self.part(part, on_text)?;
            }
            if let Some(reason) = candidate.finish_reason {
                self.stopped(&reason, candidate.finish_message);
            }
        }
        Ok(())
    }

    /// Counts are of the whole so far, thoughts apart.
    fn count(&mut self, usage: &WireUsage) {
        let counted = &mut self.draft.usage;
        if let Some(prompt) = usage.prompt_token_count {
            counted.input_tokens = prompt.saturating_add(usage.tool_use_prompt_token_count.unwrap_or(0));
        }
        counted.cached_tokens = usage.cached_content_token_count.unwrap_or(counted.cached_tokens);
        if usage.candidates_token_count.is_some() || usage.thoughts_token_count.is_some() {
            let written = usage.candidates_token_count.unwrap_or(0);
            counted.output_tokens = written.saturating_add(usage.thoughts_token_count.unwrap_or(0));
        }
    }

    fn part(&mut self, part: Part, on_text: OnText<'_>) -> Result<(), Fault> {
        let signature = part.thought_signature.filter(|signature| !signature.is_empty());
        self.draft.grow(signature.as_ref().map_or(0, String::len))?;
        if let Some(call) = part.function_call {
            let place = self.draft.begin_call()?;
            let arguments = call.args.map(|args| args.to_string()).unwrap_or_default();
            self.draft.add_to_call(place, call.id.unwrap_or_default(), &call.name, &arguments)?;
            self.places.push(Place::Call { signature });
            return Ok(());
        }
        let text = match part.text {
            // A summary for people; what the model needs back is in the signature.
            Some(_) if part.thought => String::new(),
            Some(text) => text,
            None => String::new(),
        };
        self.draft.say(&text, on_text)?;
        match (self.places.last_mut(), signature) {
            (_, None) if text.is_empty() => {}
            (Some(Place::Text { bytes, signature: None }), None) => *bytes += text.len(),
            // A signed part is not joined with any other.
            (_, signature) => {
                self.draft.grow(std::mem::size_of::<Place>())?;
                self.places.push(Place::Text { bytes: text.len(), signature });
            }
        }
        Ok(())
    }

    fn stopped(&mut self, reason: &str, message: Option<String>) {
        self.draft.stop = Some(match reason {
            "STOP" => Stop::End,
            "MAX_TOKENS" => Stop::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => {
                self.refusal = Some(words("the answer was withheld", reason, message));
                Stop::Filtered
            }
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MALFORMED_RESPONSE" => {
                self.broken = Some(words("it wrote no call", reason, message));
                Stop::Unrecognised
            }
            _ => Stop::Unrecognised,
        });
    }
}

fn words(what: &str, reason: &str, message: Option<String>) -> String {
    match message {
        Some(message) => format!("{what} ({reason}): {message}"),
        None => format!("{what} ({reason})"),
    }
}

impl Reads for Stream {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        let chunk = serde_json::from_str(data)
            .map_err(|_| Fault::Nonsense { what: Nonsense::NotJson, text: data.to_owned() })?;
        self.chunk(chunk, on_text)
    }

    fn whole(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        let chunk = serde_json::from_str(body).map_err(|error| not_json(&error, body))?;
        self.whole = true;
        self.chunk(chunk, on_text)
    }

    fn progress(&self) -> Progress {
        // There is no last word: a stream ends with its connection.
        match (self.draft.stop, &self.refusal) {
            (None, None) => Progress::Open,
            (Some(_), _) | (None, Some(_)) => Progress::Settled,
        }
    }

    fn finish(self: Box<Self>) -> Result<Written, Fault> {
        if let Some(reason) = self.refusal {
            return Err(Fault::Blocked { reason });
        }
        if let Some(text) = self.broken {
            return Err(Fault::Nonsense { what: Nonsense::BrokenCall, text });
        }
        match (self.draft.stop, self.whole && !self.heard) {
            (Some(stop), _) => {
                let blocks = layout::blocks(&self.places);
                self.draft.finish(stop, blocks)
            }
            (None, true) => Err(Fault::Nonsense { what: Nonsense::NoAnswer, text: String::new() }),
            (None, false) => Err(Fault::Incomplete),
        }
    }
}

//! Assembles an answer from the events of a stream.

use serde::Deserialize;
use serde_json::Value;

use super::GeminiError;
use super::layout::{self, StoredPart};
use crate::context::CallLimits;
use crate::count::count;
use crate::dialect::{AnswerProgress, AnswerReader};
use crate::draft::{AnswerDraft, FinishedDraft, OnText, not_json};
use crate::error::{AnswerFault, UnreadableAnswer};
use crate::request::StopReason;

#[derive(Debug)]
pub(crate) struct GeminiReader {
    draft: AnswerDraft,
    places: Vec<StoredPart>,
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
struct GeminiChunk {
    #[serde(default)]
    candidates: Vec<GeminiCandidate>,
    prompt_feedback: Option<GeminiFeedback>,
    usage_metadata: Option<GeminiUsage>,
    error: Option<GeminiError>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiCandidate {
    content: Option<GeminiAnswer>,
    finish_reason: Option<String>,
    finish_message: Option<String>,
    #[serde(default)]
    index: u32,
}

#[derive(Debug, Deserialize)]
struct GeminiAnswer {
    #[serde(default)]
    parts: Vec<GeminiAnswerPart>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiAnswerPart {
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    function_call: Option<GeminiFunctionCall>,
    thought_signature: Option<String>,
}

#[derive(Debug, Deserialize)]
struct GeminiFunctionCall {
    id: Option<String>,
    #[serde(default)]
    name: String,
    args: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiFeedback {
    block_reason: Option<String>,
    block_reason_message: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiUsage {
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

impl GeminiReader {
    pub(crate) fn new(limits: CallLimits, messages: usize) -> Self {
        Self {
            draft: AnswerDraft::new(limits, messages),
            places: Vec::new(),
            refusal: None,
            broken: None,
            heard: false,
            whole: false,
        }
    }

    fn chunk(&mut self, chunk: GeminiChunk, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        if let Some(error) = chunk.error {
            return Err(AnswerFault::Reported(error.reported()));
        }
        if let Some(usage) = chunk.usage_metadata {
            self.count(&usage);
        }
        if let Some(GeminiFeedback { block_reason: Some(reason), block_reason_message }) =
            chunk.prompt_feedback
        {
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
    fn count(&mut self, usage: &GeminiUsage) {
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

    fn part(&mut self, part: GeminiAnswerPart, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let signature = part.thought_signature.filter(|signature| !signature.is_empty());
        self.draft.grow(signature.as_ref().map_or(0, String::len))?;
        if let Some(call) = part.function_call {
            let place = self.draft.begin_call()?;
            let arguments = call.args.map(|args| args.to_string()).unwrap_or_default();
            self.draft.add_to_call(place, call.id.unwrap_or_default(), &call.name, &arguments)?;
            self.places.push(StoredPart::Call { signature });
            return Ok(());
        }
        let text = match part.text {
            // A summary for people; what the model needs back is in the signature.
            Some(_) if part.thought => String::new(),
            Some(text) => text,
            None => String::new(),
        };
        self.draft.append_text(&text, on_text)?;
        match (self.places.last_mut(), signature) {
            (_, None) if text.is_empty() => {}
            (Some(StoredPart::Text { bytes, signature: None }), None) => *bytes += text.len(),
            // A signed part is not joined with any other.
            (_, signature) => {
                self.draft.grow(std::mem::size_of::<StoredPart>())?;
                self.places.push(StoredPart::Text { bytes: text.len(), signature });
            }
        }
        Ok(())
    }

    fn stopped(&mut self, reason: &str, message: Option<String>) {
        self.draft.stop = Some(match reason {
            "STOP" => StopReason::End,
            "MAX_TOKENS" => StopReason::Length,
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
                StopReason::Filtered
            }
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MALFORMED_RESPONSE" => {
                self.broken = Some(words("it wrote no call", reason, message));
                StopReason::Unrecognised
            }
            _ => StopReason::Unrecognised,
        });
    }
}

fn words(what: &str, reason: &str, message: Option<String>) -> String {
    match message {
        Some(message) => format!("{what} ({reason}): {message}"),
        None => format!("{what} ({reason})"),
    }
}

impl AnswerReader for GeminiReader {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let chunk = serde_json::from_str(data)
            .map_err(|_| AnswerFault::Nonsense { what: UnreadableAnswer::NotJson, text: data.to_owned() })?;
        self.chunk(chunk, on_text)
    }

    fn complete(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let chunk = serde_json::from_str(body).map_err(|error| not_json(&error, body))?;
        self.whole = true;
        self.chunk(chunk, on_text)
    }

    fn progress(&self) -> AnswerProgress {
        // There is no last word: a stream ends with its connection.
        match (self.draft.stop, &self.refusal) {
            (None, None) => AnswerProgress::Open,
            (Some(_), _) | (None, Some(_)) => AnswerProgress::Settled,
        }
    }

    fn finish(self: Box<Self>) -> Result<FinishedDraft, AnswerFault> {
        if let Some(reason) = self.refusal {
            return Err(AnswerFault::Blocked { reason });
        }
        if let Some(text) = self.broken {
            return Err(AnswerFault::Nonsense { what: UnreadableAnswer::BrokenCall, text });
        }
        match (self.draft.stop, self.whole && !self.heard) {
            (Some(stop), _) => {
                let blocks = layout::blocks(&self.places);
                self.draft.finish(stop, blocks)
            }
            (None, true) => {
                Err(AnswerFault::Nonsense { what: UnreadableAnswer::NoAnswer, text: String::new() })
            }
            (None, false) => Err(AnswerFault::Incomplete),
        }
    }
}

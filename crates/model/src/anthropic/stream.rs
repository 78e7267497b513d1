//! Assembles an answer from the events of a stream.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::AnthropicError;
use super::layout::{self, StoredBlock};
use crate::context::CallLimits;
use crate::count::count;
use crate::dialect::{AnswerProgress, AnswerReader};
use crate::draft::{AnswerDraft, FinishedDraft, OnText, not_json};
use crate::error::{AnswerFault, UnreadableAnswer};
use crate::request::StopReason;

#[derive(Debug)]
pub(crate) struct AnthropicReader {
    draft: AnswerDraft,
    /// By the index that their events name.
    blocks: Vec<(usize, StreamedBlock)>,
    began: bool,
    /// In words, when the model would not answer.
    refusal: Option<String>,
    done: bool,
}

#[derive(Debug)]
enum StreamedBlock {
    Text {
        bytes: usize,
    },
    Call {
        place: usize,
    },
    Thought(Map<String, Value>),
    /// A kind that was not requested.
    Foreign,
}

/// Any event; what an event does not have is absent.
#[derive(Debug, Deserialize)]
struct AnthropicEvent {
    r#type: String,
    index: Option<usize>,
    message: Option<AnthropicAnswer>,
    content_block: Option<Value>,
    delta: Option<AnthropicDelta>,
    usage: Option<AnthropicUsage>,
    error: Option<AnthropicError>,
}

/// The beginning of a streamed answer, or all of one that is not.
#[derive(Debug, Deserialize)]
struct AnthropicAnswer {
    #[serde(default)]
    content: Vec<Value>,
    stop_reason: Option<String>,
    stop_details: Option<AnthropicStopDetails>,
    usage: Option<AnthropicUsage>,
    error: Option<AnthropicError>,
}

#[derive(Debug, Deserialize)]
struct AnthropicDelta {
    r#type: Option<String>,
    text: Option<String>,
    partial_json: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    stop_reason: Option<String>,
    stop_details: Option<AnthropicStopDetails>,
}

#[derive(Debug, Deserialize)]
struct AnthropicStopDetails {
    explanation: Option<String>,
}

#[derive(Debug, Deserialize)]
struct AnthropicUsage {
    #[serde(default, deserialize_with = "count")]
    input_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    output_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
}

impl AnthropicReader {
    pub(crate) fn new(limits: CallLimits, messages: usize) -> Self {
        let draft = AnswerDraft::new(limits, messages);
        Self { draft, blocks: Vec::new(), began: false, refusal: None, done: false }
    }

    /// Counts are totals so far. The input count excludes tokens that were read from or written to the cache.
    fn count(&mut self, usage: &AnthropicUsage) {
        let counted = &mut self.draft.usage;
        let kept = counted.cached_tokens.saturating_add(counted.cache_write_tokens);
        let fresh = counted.input_tokens.saturating_sub(kept);
        let fresh = usage.input_tokens.unwrap_or(fresh);
        counted.cached_tokens = usage.cache_read_input_tokens.unwrap_or(counted.cached_tokens);
        counted.cache_write_tokens = usage.cache_creation_input_tokens.unwrap_or(counted.cache_write_tokens);
        counted.input_tokens =
            fresh.saturating_add(counted.cached_tokens).saturating_add(counted.cache_write_tokens);
        counted.output_tokens = usage.output_tokens.unwrap_or(counted.output_tokens);
    }

    fn begin_block(&mut self, index: usize, block: Value, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let word = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        let block = match word("type") {
            "text" => {
                let text = word("text");
                self.draft.append_text(text, on_text)?;
                StreamedBlock::Text { bytes: text.len() }
            }
            "tool_use" => {
                let place = self.draft.begin_call()?;
                // By the book the input comes later; a server that does not stream it sends it here.
                let input = match block.get("input") {
                    Some(Value::Object(input)) if !input.is_empty() => block["input"].to_string(),
                    Some(_) | None => String::new(),
                };
                self.draft.add_to_call(place, word("id").to_owned(), word("name"), &input)?;
                StreamedBlock::Call { place }
            }
            "thinking" | "redacted_thinking" => {
                self.draft.grow(word("data").len() + word("thinking").len() + word("signature").len())?;
                match block {
                    Value::Object(thought) => StreamedBlock::Thought(thought),
                    _ => StreamedBlock::Foreign,
                }
            }
            _ => StreamedBlock::Foreign,
        };
        // Blocks cost memory although they say nothing.
        self.draft.grow(std::mem::size_of::<StreamedBlock>())?;
        self.blocks.push((index, block));
        Ok(())
    }

    fn continue_block(
        &mut self,
        index: usize,
        delta: AnthropicDelta,
        on_text: OnText<'_>,
    ) -> Result<(), AnswerFault> {
        let Some((_, block)) = self.blocks.iter_mut().rfind(|(begun, _)| *begun == index) else {
            return Err(AnswerFault::Nonsense {
                what: UnreadableAnswer::Disorder,
                text: delta.r#type.unwrap_or_default(),
            });
        };
        match block {
            StreamedBlock::Text { bytes } => {
                let text = delta.text.unwrap_or_default();
                *bytes += text.len();
                self.draft.append_text(&text, on_text)
            }
            StreamedBlock::Call { place } => {
                let (place, input) = (*place, delta.partial_json.unwrap_or_default());
                self.draft.add_to_call(place, String::new(), "", &input)
            }
            StreamedBlock::Thought(thought) => {
                for (key, piece) in [("thinking", delta.thinking), ("signature", delta.signature)] {
                    let Some(piece) = piece else { continue };
                    self.draft.grow(piece.len())?;
                    match thought.get_mut(key) {
                        Some(Value::String(before)) => before.push_str(&piece),
                        Some(_) | None => {
                            thought.insert(key.to_owned(), Value::String(piece));
                        }
                    }
                }
                Ok(())
            }
            StreamedBlock::Foreign => Ok(()),
        }
    }

    fn stopped(&mut self, reason: &str, details: Option<AnthropicStopDetails>) {
        self.draft.stop = Some(match reason {
            "end_turn" | "stop_sequence" => StopReason::End,
            "tool_use" => StopReason::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => StopReason::Length,
            "refusal" => {
                let words = details.and_then(|details| details.explanation);
                self.refusal = Some(words.unwrap_or_else(|| "it refused".to_owned()));
                StopReason::Filtered
            }
            _ => StopReason::Unrecognised,
        });
    }
}

impl AnswerReader for AnthropicReader {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let event: AnthropicEvent = serde_json::from_str(data)
            .map_err(|_| AnswerFault::Nonsense { what: UnreadableAnswer::NotJson, text: data.to_owned() })?;
        if let Some(error) = event.error {
            return Err(AnswerFault::Reported(error.reported()));
        }
        if let Some(usage) = &event.usage {
            self.count(usage);
        }
        match event.r#type.as_str() {
            "message_start" => {
                self.began = true;
                if let Some(usage) = event.message.and_then(|message| message.usage) {
                    self.count(&usage);
                }
                Ok(())
            }
            "content_block_start" => {
                let index = event.index.unwrap_or(self.blocks.len());
                self.begin_block(index, event.content_block.unwrap_or_default(), on_text)
            }
            "content_block_delta" => match (event.index, event.delta) {
                (Some(index), Some(delta)) => self.continue_block(index, delta, on_text),
                (Some(_) | None, _) => Ok(()),
            },
            "message_delta" => {
                if let Some(AnthropicDelta { stop_reason: Some(reason), stop_details, .. }) = event.delta {
                    self.stopped(&reason, stop_details);
                }
                Ok(())
            }
            "message_stop" => {
                self.done = true;
                Ok(())
            }
            // There are pings, and there will be events that this release does not know.
            _ => Ok(()),
        }
    }

    fn complete(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), AnswerFault> {
        let message: AnthropicAnswer = serde_json::from_str(body).map_err(|error| not_json(&error, body))?;
        if let Some(error) = message.error {
            return Err(AnswerFault::Reported(error.reported()));
        }
        self.began = message.stop_reason.is_some();
        if let Some(usage) = &message.usage {
            self.count(usage);
        }
        for (index, block) in message.content.into_iter().enumerate() {
            self.begin_block(index, block, on_text)?;
        }
        if let Some(reason) = &message.stop_reason {
            self.stopped(reason, message.stop_details);
        }
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
        if let Some(reason) = self.refusal {
            return Err(AnswerFault::Blocked { reason });
        }
        let stop = match (self.draft.stop, self.done, self.began) {
            (Some(stop), _, true) => stop,
            (_, true, _) => {
                return Err(AnswerFault::Nonsense { what: UnreadableAnswer::NoAnswer, text: String::new() });
            }
            (_, false, _) => return Err(AnswerFault::Incomplete),
        };
        let places: Vec<StoredBlock> = self
            .blocks
            .into_iter()
            .filter_map(|(_, block)| match block {
                StreamedBlock::Text { bytes } => Some(StoredBlock::Text(bytes)),
                StreamedBlock::Call { .. } => Some(StoredBlock::Call),
                StreamedBlock::Thought(thought) => Some(StoredBlock::Thought(Value::Object(thought))),
                StreamedBlock::Foreign => None,
            })
            .collect();
        self.draft.finish(stop, layout::blocks(&places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_beyond_all_measure_stay_at_the_measure() {
        let mut stream = AnthropicReader::new(CallLimits::default(), 1);
        let most = u64::MAX;
        let usage =
            format!(r#"{{"cache_read_input_tokens": {most}, "cache_creation_input_tokens": {most}}}"#);
        for _ in 0..2 {
            let event = format!(r#"{{"type": "message_delta", "usage": {usage}}}"#);
            stream.event(&event, &mut |_| ()).unwrap();
        }
        assert_eq!(stream.draft.usage.input_tokens, most);
    }
}

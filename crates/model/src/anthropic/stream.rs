//! Puts an answer together from the events of a stream.

use serde::Deserialize;
use serde_json::{Map, Value};

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
    /// By the index that their events name.
    blocks: Vec<(usize, Block)>,
    began: bool,
    /// In words, when the model would not answer.
    refusal: Option<String>,
    done: bool,
}

#[derive(Debug)]
enum Block {
    Text {
        bytes: usize,
    },
    Call {
        place: usize,
    },
    Thought(Map<String, Value>),
    /// Of a sort that nobody asked for.
    Foreign,
}

/// Any event; what an event does not have is absent.
#[derive(Debug, Deserialize)]
struct Event {
    r#type: String,
    index: Option<usize>,
    message: Option<WireMessage>,
    content_block: Option<Value>,
    delta: Option<Delta>,
    usage: Option<WireUsage>,
    error: Option<WireError>,
}

/// The beginning of a streamed answer, or all of one that is not.
#[derive(Debug, Deserialize)]
struct WireMessage {
    #[serde(default)]
    content: Vec<Value>,
    stop_reason: Option<String>,
    stop_details: Option<StopDetails>,
    usage: Option<WireUsage>,
    error: Option<WireError>,
}

#[derive(Debug, Deserialize)]
struct Delta {
    r#type: Option<String>,
    text: Option<String>,
    partial_json: Option<String>,
    thinking: Option<String>,
    signature: Option<String>,
    stop_reason: Option<String>,
    stop_details: Option<StopDetails>,
}

#[derive(Debug, Deserialize)]
struct StopDetails {
    explanation: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireUsage {
    #[serde(default, deserialize_with = "count")]
    input_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    output_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
}

impl Stream {
    pub(crate) fn new(limits: Limits, messages: usize) -> Self {
        let draft = Draft::new(limits, messages);
        Self { draft, blocks: Vec::new(), began: false, refusal: None, done: false }
    }

    /// Counts are of the whole so far. Here the input is told without what the cache had and got.
    fn count(&mut self, usage: &WireUsage) {
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

    fn begin_block(&mut self, index: usize, block: Value, on_text: OnText<'_>) -> Result<(), Fault> {
        let word = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        let block = match word("type") {
            "text" => {
                let text = word("text");
                self.draft.say(text, on_text)?;
                Block::Text { bytes: text.len() }
            }
            "tool_use" => {
                let place = self.draft.begin_call()?;
                // By the book the input comes later; a server that does not stream it sends it here.
                let input = match block.get("input") {
                    Some(Value::Object(input)) if !input.is_empty() => block["input"].to_string(),
                    Some(_) | None => String::new(),
                };
                self.draft.add_to_call(place, word("id").to_owned(), word("name"), &input)?;
                Block::Call { place }
            }
            "thinking" | "redacted_thinking" => {
                self.draft.grow(word("data").len() + word("thinking").len() + word("signature").len())?;
                match block {
                    Value::Object(thought) => Block::Thought(thought),
                    _ => Block::Foreign,
                }
            }
            _ => Block::Foreign,
        };
        // Blocks cost memory although they say nothing.
        self.draft.grow(std::mem::size_of::<Block>())?;
        self.blocks.push((index, block));
        Ok(())
    }

    fn continue_block(&mut self, index: usize, delta: Delta, on_text: OnText<'_>) -> Result<(), Fault> {
        let Some((_, block)) = self.blocks.iter_mut().rfind(|(begun, _)| *begun == index) else {
            return Err(Fault::Nonsense { what: Nonsense::Disorder, text: delta.r#type.unwrap_or_default() });
        };
        match block {
            Block::Text { bytes } => {
                let text = delta.text.unwrap_or_default();
                *bytes += text.len();
                self.draft.say(&text, on_text)
            }
            Block::Call { place } => {
                let (place, input) = (*place, delta.partial_json.unwrap_or_default());
                self.draft.add_to_call(place, String::new(), "", &input)
            }
            Block::Thought(thought) => {
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
            Block::Foreign => Ok(()),
        }
    }

    fn stopped(&mut self, reason: &str, details: Option<StopDetails>) {
        self.draft.stop = Some(match reason {
            "end_turn" | "stop_sequence" => Stop::End,
            "tool_use" => Stop::ToolCalls,
            "max_tokens" | "model_context_window_exceeded" => Stop::Length,
            "refusal" => {
                let words = details.and_then(|details| details.explanation);
                self.refusal = Some(words.unwrap_or_else(|| "it refused".to_owned()));
                Stop::Filtered
            }
            _ => Stop::Unrecognised,
        });
    }
}

impl Reads for Stream {
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        let event: Event = serde_json::from_str(data)
            .map_err(|_| Fault::Nonsense { what: Nonsense::NotJson, text: data.to_owned() })?;
        if let Some(error) = event.error {
            return Err(Fault::Reported(error.reported()));
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
                if let Some(Delta { stop_reason: Some(reason), stop_details, .. }) = event.delta {
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

    fn whole(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), Fault> {
        let message: WireMessage = serde_json::from_str(body).map_err(|error| not_json(&error, body))?;
        if let Some(error) = message.error {
            return Err(Fault::Reported(error.reported()));
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

    fn progress(&self) -> Progress {
        match (self.done, self.draft.stop) {
            (true, _) => Progress::Done,
            (false, Some(_)) => Progress::Settled,
            (false, None) => Progress::Open,
        }
    }

    fn finish(self: Box<Self>) -> Result<Written, Fault> {
        if let Some(reason) = self.refusal {
            return Err(Fault::Blocked { reason });
        }
        let stop = match (self.draft.stop, self.done, self.began) {
            (Some(stop), _, true) => stop,
            (_, true, _) => return Err(Fault::Nonsense { what: Nonsense::NoAnswer, text: String::new() }),
            (_, false, _) => return Err(Fault::Incomplete),
        };
        let places: Vec<Place> = self
            .blocks
            .into_iter()
            .filter_map(|(_, block)| match block {
                Block::Text { bytes } => Some(Place::Text(bytes)),
                Block::Call { .. } => Some(Place::Call),
                Block::Thought(thought) => Some(Place::Thought(Value::Object(thought))),
                Block::Foreign => None,
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
        let mut stream = Stream::new(Limits::default(), 1);
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

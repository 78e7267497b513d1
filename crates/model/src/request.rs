//! Requests to a model and their answers, independent of the protocol.

use crate::provider::{Provider, ProviderKind};

/// One model call: the whole context, every time.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The model's name as the provider knows it, without the provider's own name.
    pub model: String,
    /// Empty means no system message.
    pub system: String,
    pub messages: Vec<ModelMessage>,
    pub tools: Vec<ToolSpec>,
    pub params: CallParams,
    /// A JSON schema that the answer's text should match. Some protocols cannot carry it, so the instruction must
    /// contain it too, and the answer must be checked.
    pub schema: Option<serde_json::Value>,
}

impl ModelRequest {
    /// A request with nothing but a model and messages.
    pub fn new(model: impl Into<String>, messages: Vec<ModelMessage>) -> Self {
        Self {
            model: model.into(),
            system: String::new(),
            messages,
            tools: Vec::new(),
            params: CallParams::default(),
            schema: None,
        }
    }

    /// The blocks that the message at `place` must be sent back with.
    ///
    /// They bind to the model that thought them and, with some providers, to the conversation before them, which
    /// may have been shortened since. Protocols need them back while tools run, so only those of the turn at hand
    /// are sent: the ones after the user's latest message.
    pub(crate) fn thoughts(&self, provider: &Provider, place: usize) -> &[Vec<u8>] {
        let is_user = |message: &ModelMessage| matches!(message, ModelMessage::User { .. });
        if self.messages.iter().skip(place).any(is_user) {
            return &[];
        }
        match self.messages.get(place) {
            Some(ModelMessage::Assistant { reasoning: Some(reasoning), .. })
                if reasoning.kind == provider.kind
                    && reasoning.provider == provider.name
                    && reasoning.model == self.model =>
            {
                &reasoning.blocks
            }
            Some(
                ModelMessage::Assistant { .. } | ModelMessage::User { .. } | ModelMessage::ToolResult { .. },
            )
            | None => &[],
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelMessage {
    User {
        text: String,
    },
    Assistant {
        text: String,
        calls: Vec<ToolCall>,
        reasoning: Option<Reasoning>,
    },
    ToolResult {
        call_id: String,
        text: String,
        /// The outcome, for protocols that can carry it.
        outcome: ToolOutcome,
    },
}

impl ModelMessage {
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }

    pub fn assistant(text: impl Into<String>, calls: Vec<ToolCall>) -> Self {
        Self::Assistant { text: text.into(), calls, reasoning: None }
    }

    pub fn result(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self::ToolResult { call_id: call_id.into(), text: text.into(), outcome: ToolOutcome::Succeeded }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolOutcome {
    Succeeded,
    Failed,
}

/// What a model thought: opaque blocks for the model that thought them, and for no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    pub kind: ProviderKind,
    pub provider: String,
    pub model: String,
    pub blocks: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    pub name: String,
    pub description: String,
    /// A JSON schema of the arguments.
    pub parameters: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// Raw JSON text as the model wrote it; it may be invalid.
    pub arguments: String,
}

/// Parameters of a call. Absent ones are left to the provider, and ones that a protocol does not have are not sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CallParams {
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<u32>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub seed: Option<i64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallAnswer {
    pub text: String,
    pub calls: Vec<ToolCall>,
    pub usage: CallUsage,
    pub stop: StopReason,
    /// To be kept with the message, unread, and given back with it.
    pub reasoning: Option<Reasoning>,
}

/// Tokens as the provider counted them; zeros when it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallUsage {
    /// All of the input, cached or not.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Of the input, what the provider had in its cache.
    pub cached_tokens: u64,
    /// Of the input, what it put there, where that has a price of its own.
    pub cache_write_tokens: u64,
}

/// Why the model stopped writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// It was finished.
    End,
    /// It wants the results of its calls.
    ToolCalls,
    /// It hit the token limit: the text, or the last call's arguments, may be incomplete.
    Length,
    /// The provider withheld the rest.
    Filtered,
    /// The provider gave a reason this release does not know.
    Unrecognised,
}

//! What is asked of a model and what comes back, in no provider's dialect.

/// One model call: the whole context, every time.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The model's name as the provider knows it, without the provider's own name.
    pub model: String,
    /// Empty means no system message.
    pub system: String,
    pub messages: Vec<Message>,
    pub tools: Vec<Tool>,
    pub params: Params,
}

impl Request {
    /// A request with nothing but a model and messages.
    pub fn new(model: impl Into<String>, messages: Vec<Message>) -> Self {
        Self {
            model: model.into(),
            system: String::new(),
            messages,
            tools: Vec::new(),
            params: Params::default(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    User { text: String },
    Assistant { text: String, calls: Vec<ToolCall> },
    ToolResult { call_id: String, text: String },
}

impl Message {
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
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

/// Knobs; whatever is absent is left to the provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Params {
    pub max_tokens: Option<u32>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub seed: Option<i64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub text: String,
    pub calls: Vec<ToolCall>,
    pub usage: Usage,
    pub stop: Stop,
}

/// Tokens as the provider counted them; zeros when it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// Why the model stopped writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
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

//! The JSON of the OpenAI dialect: exact in what is sent, forgiving in what is read.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::thoughts::Thoughts;
use crate::count::count;
use crate::dialect::{ProviderReport, json};
use crate::functions::FunctionTool;
use crate::names::PlainNames;
use crate::provider::Provider;
use crate::request::{ModelMessage, ModelRequest};

pub(crate) fn body(provider: &Provider, request: &ModelRequest) -> Vec<u8> {
    let params = &request.params;
    // OpenAI itself knows only the newer name of the limit with its newer models, and no `top_k` at all.
    let (max_tokens, max_completion_tokens, top_k) = match provider.is_official() {
        true => (None, params.max_tokens, None),
        false => (params.max_tokens, None, params.top_k),
    };
    let thoughts: Vec<Thoughts> =
        (0..request.messages.len()).map(|place| Thoughts::read(request.thoughts(provider, place))).collect();
    let system =
        Some(OpenaiMessage::System { content: &request.system }).filter(|_| !request.system.is_empty());
    let plain = PlainNames::of(request);
    let messages = request.messages.iter().zip(&thoughts);
    let messages = messages.map(|(said, thought)| message(said, thought, &plain));
    json(&OpenaiRequest {
        model: &request.model,
        messages: system.into_iter().chain(messages).collect(),
        tools: FunctionTool::all(&request.tools, &plain),
        response_format: request.schema.as_ref().map(|schema| ResponseFormat {
            r#type: "json_schema",
            json_schema: NamedSchema { name: "answer", schema },
        }),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        max_tokens,
        max_completion_tokens,
        temperature: params.temperature,
        top_p: params.top_p,
        top_k,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        seed: params.seed,
        stop: &params.stop,
    })
}

#[derive(Serialize)]
struct OpenaiRequest<'a> {
    model: &'a str,
    messages: Vec<OpenaiMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<FunctionTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
}

#[derive(Serialize)]
struct ResponseFormat<'a> {
    r#type: &'static str,
    json_schema: NamedSchema<'a>,
}

#[derive(Serialize)]
struct NamedSchema<'a> {
    name: &'static str,
    schema: &'a Value,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum OpenaiMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        /// Null beside tool calls: some servers refuse an empty string there.
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<OpenaiCall<'a>>,
        #[serde(skip_serializing_if = "str::is_empty")]
        reasoning_content: &'a str,
        #[serde(skip_serializing_if = "<[Value]>::is_empty")]
        reasoning_details: &'a [Value],
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct OpenaiCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: OpenaiFunction<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<&'a Value>,
}

#[derive(Serialize)]
struct OpenaiFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

fn message<'a>(
    message: &'a ModelMessage,
    thoughts: &'a Thoughts,
    plain: &'a PlainNames<'a>,
) -> OpenaiMessage<'a> {
    match message {
        ModelMessage::User { text } => OpenaiMessage::User { content: text },
        ModelMessage::Assistant { text, calls, .. } => OpenaiMessage::Assistant {
            content: Some(text.as_str()).filter(|text| !text.is_empty() || calls.is_empty()),
            tool_calls: calls
                .iter()
                .enumerate()
                .map(|(place, call)| OpenaiCall {
                    id: &call.id,
                    r#type: "function",
                    function: OpenaiFunction {
                        name: plain.name(&call.name),
                        arguments: if call.arguments.is_empty() { "{}" } else { &call.arguments },
                    },
                    extra_content: thoughts.extra_of(place),
                })
                .collect(),
            reasoning_content: &thoughts.reasoning_content,
            reasoning_details: &thoughts.reasoning_details,
        },
        // The protocol has no mark for a call that went wrong: the text has to say it.
        ModelMessage::ToolResult { call_id, text, .. } => {
            OpenaiMessage::Tool { tool_call_id: call_id, content: text }
        }
    }
}

/// One event of a stream, or the whole reply of a server that does not stream.
#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiChunk {
    pub(crate) choices: Option<Vec<OpenaiChoice>>,
    pub(crate) usage: Option<OpenaiUsage>,
    pub(crate) error: Option<OpenaiError>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiChoice {
    #[serde(default)]
    pub(crate) index: u32,
    /// In a stream. Some servers repeat the text so far in `message`, so the two must be distinguished.
    pub(crate) delta: Option<OpenaiDelta>,
    /// In a whole reply.
    pub(crate) message: Option<OpenaiDelta>,
    pub(crate) finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct OpenaiDelta {
    pub(crate) content: Option<OpenaiContent>,
    pub(crate) refusal: Option<String>,
    pub(crate) reasoning_content: Option<String>,
    pub(crate) reasoning_details: Option<Vec<Value>>,
    pub(crate) tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OpenaiContent {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    /// Absent in parts that are not text.
    text: Option<String>,
}

impl OpenaiContent {
    pub(crate) fn into_text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => parts.into_iter().filter_map(|part| part.text).collect(),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct CallDelta {
    pub(crate) index: Option<usize>,
    pub(crate) id: Option<String>,
    #[serde(default)]
    pub(crate) function: FunctionDelta,
    pub(crate) extra_content: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct FunctionDelta {
    pub(crate) name: Option<String>,
    /// Text by the book; some servers send the object itself.
    pub(crate) arguments: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiUsage {
    #[serde(default, deserialize_with = "count")]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(default, deserialize_with = "count")]
    pub(crate) completion_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) prompt_tokens_details: Option<PromptDetails>,
    /// What one server calls `cached_tokens`.
    #[serde(default, deserialize_with = "count")]
    pub(crate) prompt_cache_hit_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PromptDetails {
    #[serde(default, deserialize_with = "count")]
    pub(crate) cached_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiRefusal {
    pub(crate) error: OpenaiError,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OpenaiError {
    Text(String),
    Object { message: Option<String>, code: Option<Value>, r#type: Option<String> },
}

impl OpenaiError {
    pub(crate) fn reported(self) -> ProviderReport {
        let (code, message) = match self {
            Self::Text(message) => (None, message),
            Self::Object { message, code, r#type } => {
                let code = match code {
                    Some(Value::String(code)) => Some(code),
                    Some(Value::Number(code)) => Some(code.to_string()),
                    Some(_) | None => r#type,
                };
                (code, message.unwrap_or_default())
            }
        };
        ProviderReport { code, message, retry_after: None }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiModels {
    pub(crate) data: Vec<OpenaiModel>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenaiModel {
    pub(crate) id: String,
}

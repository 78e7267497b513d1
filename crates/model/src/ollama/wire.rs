//! What is sent in the Ollama dialect.

use serde::Serialize;
use serde_json::Value;

use crate::dialect::json;
use crate::draft::as_object;
use crate::functions::FunctionTool;
use crate::names::PlainNames;
use crate::provider::Provider;
use crate::request::{ModelMessage, ModelRequest};

pub(crate) fn body(provider: &Provider, request: &ModelRequest) -> Vec<u8> {
    let plain = PlainNames::of(request);
    let params = &request.params;
    let options = OllamaOptions {
        num_predict: params.max_tokens,
        // Left to itself it reads few tokens and drops the rest without a word.
        num_ctx: provider.written_context_window(&request.model),
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        presence_penalty: params.presence_penalty,
        frequency_penalty: params.frequency_penalty,
        seed: params.seed,
        stop: &params.stop,
    };
    let system = Some(OllamaMessage { content: &request.system, ..OllamaMessage::of("system") })
        .filter(|_| !request.system.is_empty());
    json(&OllamaRequest {
        model: &request.model,
        messages: system.into_iter().chain(messages(provider, request, &plain)).collect(),
        tools: FunctionTool::all(&request.tools, &plain),
        // It holds the model to the schema from the first letter, so that no tool could be called.
        format: request.schema.as_ref().filter(|_| request.tools.is_empty()),
        stream: true,
        options: Some(options).filter(|options| *options != OllamaOptions::default()),
    })
}

#[derive(Serialize)]
struct OllamaRequest<'a> {
    model: &'a str,
    messages: Vec<OllamaMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<FunctionTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'a Value>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<OllamaOptions<'a>>,
}

#[derive(Default, PartialEq, Serialize)]
struct OllamaOptions<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    num_predict: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_ctx: Option<u64>,
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

#[derive(Default, Serialize)]
struct OllamaMessage<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<OllamaCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl OllamaMessage<'_> {
    fn of(role: &'static str) -> Self {
        Self { role, ..Self::default() }
    }
}

#[derive(Serialize)]
struct OllamaCall<'a> {
    id: &'a str,
    function: OllamaFunction<'a>,
}

#[derive(Serialize)]
struct OllamaFunction<'a> {
    name: &'a str,
    arguments: Value,
}

fn messages<'a>(
    provider: &Provider,
    request: &'a ModelRequest,
    plain: &'a PlainNames<'a>,
) -> Vec<OllamaMessage<'a>> {
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut messages = Vec::with_capacity(request.messages.len());
    for (place, message) in request.messages.iter().enumerate() {
        messages.push(match message {
            ModelMessage::User { text } => OllamaMessage { content: text, ..OllamaMessage::of("user") },
            ModelMessage::Assistant { text, calls, .. } => {
                names = calls.iter().map(|call| (call.id.as_str(), plain.name(&call.name))).collect();
                let thoughts = request.thoughts(provider, place).concat();
                let calls = calls.iter().map(|call| OllamaCall {
                    id: &call.id,
                    function: OllamaFunction {
                        name: plain.name(&call.name),
                        arguments: as_object(&call.arguments),
                    },
                });
                OllamaMessage {
                    content: text,
                    thinking: String::from_utf8(thoughts).unwrap_or_default(),
                    tool_calls: calls.collect(),
                    ..OllamaMessage::of("assistant")
                }
            }
            // The protocol has no mark for a call that went wrong: the text has to say it.
            ModelMessage::ToolResult { call_id, text, .. } => OllamaMessage {
                content: text,
                tool_name: names.iter().find(|(id, _)| id == call_id).map(|(_, name)| *name),
                tool_call_id: Some(call_id),
                ..OllamaMessage::of("tool")
            },
        });
    }
    messages
}

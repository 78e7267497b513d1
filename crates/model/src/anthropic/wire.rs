//! What is sent in the Messages dialect: roles in turn, results right after their calls, a cached beginning.

use serde::Serialize;
use serde_json::Value;

use super::layout::{OutgoingBlock, pieces};
use super::schema;
use crate::dialect::json;
use crate::draft::as_object;
use crate::names::PlainNames;
use crate::provider::Provider;
use crate::request::{ModelMessage, ModelRequest, ToolOutcome, ToolSpec};

pub(crate) fn body(provider: &Provider, request: &ModelRequest) -> Vec<u8> {
    let plain = PlainNames::of(request);
    let mut messages = turns(provider, request, &plain);
    // Everything up to here is read again with the next call, so it is worth keeping.
    if let Some(block) = messages.last_mut().and_then(|turn| turn.content.last_mut()) {
        block.keep();
    }
    let has_system = !request.system.trim().is_empty();
    let mut tools: Vec<AnthropicTool<'_>> = request.tools.iter().map(|known| tool(known, &plain)).collect();
    if let (false, Some(last)) = (has_system, tools.last_mut()) {
        last.cache_control = Some(CACHED);
    }
    let system = AnthropicSystem { r#type: "text", text: &request.system, cache_control: CACHED };
    let params = &request.params;
    json(&AnthropicRequest {
        model: &request.model,
        max_tokens: params.max_tokens.unwrap_or_else(|| tokens_max(&request.model)),
        // Tools stand before it in what the model reads, so that this one mark keeps both.
        system: if has_system { vec![system] } else { Vec::new() },
        messages,
        tools,
        output_config: request
            .schema
            .as_ref()
            .and_then(|schema| schema::schema_for(&request.model, schema))
            .map(|schema| AnthropicOutput { format: AnthropicFormat { r#type: "json_schema", schema } }),
        stream: true,
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        stop_sequences: &params.stop,
    })
}

/// The protocol requires a limit. The default is the highest that the model is known to accept.
fn tokens_max(model: &str) -> u32 {
    if model.starts_with("claude-3-5") {
        8192
    } else if model.starts_with("claude-3-") && !model.starts_with("claude-3-7") {
        4096
    } else {
        32_000
    }
}

const CACHED: CacheControl = CacheControl { r#type: "ephemeral" };

#[derive(Serialize)]
struct AnthropicRequest<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<AnthropicSystem<'a>>,
    messages: Vec<AnthropicMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<AnthropicTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<AnthropicOutput>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<u32>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop_sequences: &'a [String],
}

#[derive(Serialize)]
struct AnthropicOutput {
    format: AnthropicFormat,
}

#[derive(Serialize)]
struct AnthropicFormat {
    r#type: &'static str,
    schema: Value,
}

#[derive(Clone, Copy, Serialize)]
struct CacheControl {
    r#type: &'static str,
}

#[derive(Serialize)]
struct AnthropicSystem<'a> {
    r#type: &'static str,
    text: &'a str,
    cache_control: CacheControl,
}

#[derive(Serialize)]
struct AnthropicTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum AnthropicRole {
    User,
    Assistant,
}

#[derive(Serialize)]
struct AnthropicMessage<'a> {
    role: AnthropicRole,
    content: Vec<AnthropicBlock<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum AnthropicBlock<'a> {
    /// As it came.
    Thought(Value),
    Other(CacheableBlock<'a>),
}

#[derive(Serialize)]
struct CacheableBlock<'a> {
    #[serde(flatten)]
    content: AnthropicContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AnthropicContent<'a> {
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Value,
    },
    ToolResult {
        tool_use_id: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        content: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        is_error: Option<bool>,
    },
}

impl AnthropicBlock<'_> {
    fn keep(&mut self) {
        match self {
            Self::Other(block) => block.cache_control = Some(CACHED),
            // A thought cannot carry the mark.
            Self::Thought(_) => {}
        }
    }
}

fn tool<'a>(tool: &'a ToolSpec, plain: &'a PlainNames<'a>) -> AnthropicTool<'a> {
    AnthropicTool {
        name: plain.name(&tool.name),
        description: &tool.description,
        input_schema: &tool.parameters,
        cache_control: None,
    }
}

/// Messages joined so that the roles take turns; what says nothing is left out, since empty texts are refused.
fn turns<'a>(
    provider: &Provider,
    request: &'a ModelRequest,
    plain: &'a PlainNames<'a>,
) -> Vec<AnthropicMessage<'a>> {
    let mut turns: Vec<AnthropicMessage<'a>> = Vec::new();
    let other = |content| AnthropicBlock::Other(CacheableBlock { content, cache_control: None });
    for (place, message) in request.messages.iter().enumerate() {
        let (role, content) = match message {
            ModelMessage::User { text } => {
                let text = if text.trim().is_empty() { "(nothing)" } else { text };
                (AnthropicRole::User, vec![other(AnthropicContent::Text { text })])
            }
            ModelMessage::Assistant { text, calls, .. } => {
                let pieces = pieces(request.thoughts(provider, place), text, calls).into_iter();
                let blocks = pieces.filter_map(|piece| match piece {
                    OutgoingBlock::Thought(thought) => Some(AnthropicBlock::Thought(thought)),
                    OutgoingBlock::Text(text) if text.trim().is_empty() => None,
                    OutgoingBlock::Text(text) => Some(other(AnthropicContent::Text { text })),
                    OutgoingBlock::Call(call) => Some(other(AnthropicContent::ToolUse {
                        id: plain.id(&call.id),
                        name: plain.name(&call.name),
                        input: as_object(&call.arguments),
                    })),
                });
                (AnthropicRole::Assistant, blocks.collect())
            }
            ModelMessage::ToolResult { call_id, text, outcome } => {
                let is_error = (*outcome == ToolOutcome::Failed).then_some(true);
                let tool_use_id = plain.id(call_id);
                (
                    AnthropicRole::User,
                    vec![other(AnthropicContent::ToolResult { tool_use_id, content: text, is_error })],
                )
            }
        };
        if content.is_empty() {
            continue;
        }
        match turns.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => turns.push(AnthropicMessage { role, content }),
        }
    }
    turns
}

//! What is sent in the Messages dialect: roles in turn, results right after their calls, a cached beginning.

use serde::Serialize;
use serde_json::Value;

use super::layout::{Piece, pieces};
use super::schema;
use crate::dialect::json;
use crate::draft::as_object;
use crate::names::Plain;
use crate::provider::Provider;
use crate::request::{Message, Outcome, Request, Tool};

pub(crate) fn body(provider: &Provider, request: &Request) -> Vec<u8> {
    let plain = Plain::of(request);
    let mut messages = turns(provider, request, &plain);
    // Everything up to here is read again with the next call, so it is worth keeping.
    if let Some(block) = messages.last_mut().and_then(|turn| turn.content.last_mut()) {
        block.keep();
    }
    let has_system = !request.system.trim().is_empty();
    let mut tools: Vec<WireTool<'_>> = request.tools.iter().map(|known| tool(known, &plain)).collect();
    if let (false, Some(last)) = (has_system, tools.last_mut()) {
        last.cache_control = Some(CACHED);
    }
    let system = SystemText { r#type: "text", text: &request.system, cache_control: CACHED };
    let params = &request.params;
    json(&Body {
        model: &request.model,
        max_tokens: params.max_tokens.unwrap_or_else(|| tokens_max(&request.model)),
        // Tools stand before it in what the model reads, so that this one mark keeps both.
        system: if has_system { vec![system] } else { Vec::new() },
        messages,
        tools,
        output_config: request
            .schema
            .as_ref()
            .and_then(|schema| schema::told(&request.model, schema))
            .map(|schema| OutputConfig { format: Format { r#type: "json_schema", schema } }),
        stream: true,
        temperature: params.temperature,
        top_p: params.top_p,
        top_k: params.top_k,
        stop_sequences: &params.stop,
    })
}

/// The protocol wants a limit. Where nobody set one it is as high as the model is known to take.
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
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<SystemText<'a>>,
    messages: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig>,
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
struct OutputConfig {
    format: Format,
}

#[derive(Serialize)]
struct Format {
    r#type: &'static str,
    schema: Value,
}

#[derive(Clone, Copy, Serialize)]
struct CacheControl {
    r#type: &'static str,
}

#[derive(Serialize)]
struct SystemText<'a> {
    r#type: &'static str,
    text: &'a str,
    cache_control: CacheControl,
}

#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Serialize)]
struct Turn<'a> {
    role: Role,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Block<'a> {
    /// As it came.
    Thought(Value),
    Other(Marked<'a>),
}

#[derive(Serialize)]
struct Marked<'a> {
    #[serde(flatten)]
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
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

impl Block<'_> {
    fn keep(&mut self) {
        match self {
            Self::Other(block) => block.cache_control = Some(CACHED),
            // A thought cannot carry the mark.
            Self::Thought(_) => {}
        }
    }
}

fn tool<'a>(tool: &'a Tool, plain: &'a Plain<'a>) -> WireTool<'a> {
    WireTool {
        name: plain.name(&tool.name),
        description: &tool.description,
        input_schema: &tool.parameters,
        cache_control: None,
    }
}

/// Messages joined so that the roles take turns; what says nothing is left out, since empty texts are refused.
fn turns<'a>(provider: &Provider, request: &'a Request, plain: &'a Plain<'a>) -> Vec<Turn<'a>> {
    let mut turns: Vec<Turn<'a>> = Vec::new();
    let other = |content| Block::Other(Marked { content, cache_control: None });
    for (place, message) in request.messages.iter().enumerate() {
        let (role, content) = match message {
            Message::User { text } => {
                let text = if text.trim().is_empty() { "(nothing)" } else { text };
                (Role::User, vec![other(Content::Text { text })])
            }
            Message::Assistant { text, calls, .. } => {
                let pieces = pieces(request.thoughts(provider, place), text, calls).into_iter();
                let blocks = pieces.filter_map(|piece| match piece {
                    Piece::Thought(thought) => Some(Block::Thought(thought)),
                    Piece::Text(text) if text.trim().is_empty() => None,
                    Piece::Text(text) => Some(other(Content::Text { text })),
                    Piece::Call(call) => Some(other(Content::ToolUse {
                        id: plain.id(&call.id),
                        name: plain.name(&call.name),
                        input: as_object(&call.arguments),
                    })),
                });
                (Role::Assistant, blocks.collect())
            }
            Message::ToolResult { call_id, text, outcome } => {
                let is_error = (*outcome == Outcome::Failed).then_some(true);
                let tool_use_id = plain.id(call_id);
                (Role::User, vec![other(Content::ToolResult { tool_use_id, content: text, is_error })])
            }
        };
        if content.is_empty() {
            continue;
        }
        match turns.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            Some(_) | None => turns.push(Turn { role, content }),
        }
    }
    turns
}

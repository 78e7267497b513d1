//! The JSON of the OpenAI dialect: exact in what is sent, forgiving in what is read.

use serde::{Deserialize, Serialize};

use crate::request::{Message, Request, Tool};

/// The request body. `official` is OpenAI itself, whose newer models know only the newer name of the limit.
pub(crate) fn body(request: &Request, official: bool) -> Vec<u8> {
    let params = &request.params;
    let (max_tokens, max_completion_tokens) =
        if official { (None, params.max_tokens) } else { (params.max_tokens, None) };
    let system =
        Some(WireMessage::System { content: &request.system }).filter(|_| !request.system.is_empty());
    let body = Body {
        model: &request.model,
        messages: system.into_iter().chain(request.messages.iter().map(message)).collect(),
        tools: request.tools.iter().map(tool).collect(),
        stream: true,
        stream_options: StreamOptions { include_usage: true },
        max_tokens,
        max_completion_tokens,
        temperature: params.temperature,
        top_p: params.top_p,
        seed: params.seed,
        stop: &params.stop,
    };
    // Strings, numbers and parsed JSON always serialise; the writer is memory.
    serde_json::to_vec(&body).unwrap_or_default()
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
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
    seed: Option<i64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum WireMessage<'a> {
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
        tool_calls: Vec<WireCall<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: WireCallFunction<'a>,
}

#[derive(Serialize)]
struct WireCallFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct WireTool<'a> {
    r#type: &'static str,
    function: WireToolFunction<'a>,
}

#[derive(Serialize)]
struct WireToolFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a serde_json::Value,
}

fn message(message: &Message) -> WireMessage<'_> {
    match message {
        Message::User { text } => WireMessage::User { content: text },
        Message::Assistant { text, calls } => WireMessage::Assistant {
            content: Some(text.as_str()).filter(|text| !text.is_empty() || calls.is_empty()),
            tool_calls: calls
                .iter()
                .map(|call| WireCall {
                    id: &call.id,
                    r#type: "function",
                    function: WireCallFunction {
                        name: &call.name,
                        arguments: if call.arguments.is_empty() { "{}" } else { &call.arguments },
                    },
                })
                .collect(),
        },
        Message::ToolResult { call_id, text } => WireMessage::Tool { tool_call_id: call_id, content: text },
    }
}

fn tool(tool: &Tool) -> WireTool<'_> {
    WireTool {
        r#type: "function",
        function: WireToolFunction {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.parameters,
        },
    }
}

/// One event of a stream, or the whole reply of a server that does not stream.
#[derive(Debug, Deserialize)]
pub(crate) struct Chunk {
    pub(crate) choices: Option<Vec<Choice>>,
    pub(crate) usage: Option<WireUsage>,
    pub(crate) error: Option<WireError>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Choice {
    #[serde(default)]
    pub(crate) index: u32,
    /// In a stream. Some servers repeat the text so far in `message`, so the two are told apart.
    pub(crate) delta: Option<Delta>,
    /// In a whole reply.
    pub(crate) message: Option<Delta>,
    pub(crate) finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Delta {
    pub(crate) content: Option<Content>,
    pub(crate) refusal: Option<String>,
    pub(crate) tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    Parts(Vec<ContentPart>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContentPart {
    /// Absent in parts that are not text.
    text: Option<String>,
}

impl Content {
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
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct FunctionDelta {
    pub(crate) name: Option<String>,
    /// Text by the book; some servers send the object itself.
    pub(crate) arguments: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct WireUsage {
    #[serde(default)]
    pub(crate) prompt_tokens: Option<u64>,
    #[serde(default)]
    pub(crate) completion_tokens: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Refusal {
    pub(crate) error: WireError,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum WireError {
    Text(String),
    Object { message: Option<String>, code: Option<serde_json::Value>, r#type: Option<String> },
}

impl WireError {
    /// The provider's name for the failure, and its words.
    pub(crate) fn into_parts(self) -> (Option<String>, String) {
        match self {
            Self::Text(message) => (None, message),
            Self::Object { message, code, r#type } => {
                let code = match code {
                    Some(serde_json::Value::String(code)) => Some(code),
                    Some(serde_json::Value::Number(code)) => Some(code.to_string()),
                    Some(_) | None => r#type,
                };
                (code, message.unwrap_or_default())
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelList {
    pub(crate) data: Vec<ModelItem>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelItem {
    pub(crate) id: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Params, ToolCall};

    #[test]
    fn a_whole_conversation_is_sent_in_the_dialect() {
        let call = ToolCall { id: "c1".into(), name: "sh".into(), arguments: String::new() };
        let request = Request {
            model: "m".into(),
            system: "be brief".into(),
            messages: vec![
                Message::user("hi"),
                Message::Assistant { text: String::new(), calls: vec![call] },
                Message::ToolResult { call_id: "c1".into(), text: "out".into() },
                Message::Assistant { text: String::new(), calls: vec![] },
            ],
            tools: vec![],
            params: Params { max_tokens: Some(7), ..Params::default() },
        };
        let sent: serde_json::Value = serde_json::from_slice(&body(&request, false)).unwrap();
        let expected = serde_json::json!({
            "model": "m", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 7,
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c1", "content": "out"},
                {"role": "assistant", "content": ""},
            ],
        });
        assert_eq!(sent, expected);
        let sent: serde_json::Value = serde_json::from_slice(&body(&request, true)).unwrap();
        assert_eq!(
            (&sent["max_tokens"], &sent["max_completion_tokens"]),
            (&serde_json::Value::Null, &7.into())
        );
    }
}

//! What the published descriptions demand beyond the shape of a request.

use std::collections::HashSet;

use lodge_model::ProviderKind;
use serde_json::{Value, json};

use super::{ArrivedRequest, header};
use crate::common::KEY;

/// A refusal in the protocol's own shape.
pub(crate) fn error(kind: ProviderKind, status: u16, message: &str) -> String {
    let error = match kind {
        ProviderKind::Openai => {
            json!({"error": {"message": message, "type": "invalid_request_error", "code": null}})
        }
        ProviderKind::Anthropic => {
            json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}})
        }
        ProviderKind::Gemini => {
            json!({"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}})
        }
        ProviderKind::Ollama | ProviderKind::Script => json!({"error": message}),
    };
    error.to_string()
}

/// What a protocol allows.
pub(crate) struct ProtocolRules {
    kind: ProviderKind,
    shape: jsonschema::Validator,
}

impl ProtocolRules {
    pub(crate) fn of(kind: ProviderKind) -> Self {
        let schema = match kind {
            ProviderKind::Openai => include_str!("openai.json"),
            ProviderKind::Anthropic => include_str!("anthropic.json"),
            ProviderKind::Gemini => include_str!("gemini.json"),
            ProviderKind::Ollama => include_str!("ollama.json"),
            ProviderKind::Script => "false",
        };
        let schema: Value = serde_json::from_str(schema).expect("a schema");
        Self { kind, shape: jsonschema::validator_for(&schema).expect("a schema") }
    }

    /// Why a request is not allowed.
    pub(crate) fn violation(&self, arrived: &ArrivedRequest) -> Option<String> {
        self.check(arrived).err()
    }

    fn check(&self, arrived: &ArrivedRequest) -> Result<(), String> {
        let line = arrived.head.lines().next().unwrap_or_default();
        let bearer = format!("Bearer {KEY}");
        let (get, post, needed): (&str, &str, Vec<(&str, &str)>) = match self.kind {
            ProviderKind::Openai => ("/v1/models", "/v1/chat/completions", vec![("authorization", &bearer)]),
            ProviderKind::Anthropic => (
                "/v1/models?limit=1000",
                "/v1/messages",
                vec![("x-api-key", KEY), ("anthropic-version", "2023-06-01")],
            ),
            ProviderKind::Gemini => (
                "/v1beta/models?pageSize=1000",
                "/v1beta/models/m:streamGenerateContent?alt=sse",
                vec![("x-goog-api-key", KEY)],
            ),
            ProviderKind::Ollama => ("/api/tags", "/api/chat", vec![("authorization", &bearer)]),
            ProviderKind::Script => return Err("a script has no server".to_owned()),
        };
        for (name, value) in needed {
            let is_there = header(&arrived.head, name) == Some(value);
            demand(is_there, &format!("the header {name} is missing or wrong"))?;
        }
        if line == format!("GET {get} HTTP/1.1") {
            return Ok(());
        }
        demand(line == format!("POST {post} HTTP/1.1"), &format!("nothing is at {line}"))?;
        let is_json = header(&arrived.head, "content-type") == Some("application/json");
        demand(is_json, "the content is not declared as JSON")?;
        let mistakes = self.shape.iter_errors(&arrived.body);
        let mistakes: Vec<String> =
            mistakes.map(|error| format!("{}: {error}", error.instance_path())).collect();
        demand(mistakes.is_empty(), &mistakes.join("; "))?;
        match self.kind {
            ProviderKind::Openai => openai(&arrived.body),
            ProviderKind::Anthropic => anthropic(&arrived.body),
            ProviderKind::Gemini => gemini(&arrived.body),
            ProviderKind::Ollama => ollama(&arrived.body),
            ProviderKind::Script => Ok(()),
        }
    }
}

fn demand(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.to_owned()) }
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn words<'v>(values: impl IntoIterator<Item = &'v Value>, pointer: &str) -> Vec<&'v str> {
    values.into_iter().filter_map(|value| value.pointer(pointer)?.as_str()).collect()
}

fn openai(body: &Value) -> Result<(), String> {
    let both = body.get("max_tokens").is_some() && body.get("max_completion_tokens").is_some();
    demand(!both, "max_tokens and max_completion_tokens exclude each other")?;
    let mut open: Vec<&str> = Vec::new();
    for (at, message) in list(body, "messages").iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        demand(role != "system" || at == 0, "a system message in the middle")?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let place = open.iter().position(|known| *known == id);
            open.remove(place.ok_or_else(|| format!("no open call has the id {id}"))?);
            continue;
        }
        demand(open.is_empty(), "a call has no result before the next message")?;
        let calls = list(message, "tool_calls");
        open = words(calls, "/id");
        for name in words(calls, "/function/name") {
            demand(is_plain(name), &format!("`{name}` does not match ^[a-zA-Z0-9_-]+$"))?;
        }
        demand(open.iter().collect::<HashSet<_>>().len() == open.len(), "two calls have one id")?;
        demand(!message["content"].is_null() || !calls.is_empty(), "a message without content or calls")?;
    }
    demand(open.is_empty(), "a call has no result")
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn anthropic(body: &Value) -> Result<(), String> {
    let messages = list(body, "messages");
    for (at, message) in messages.iter().enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        demand(message["role"] == expected, "roles do not take turns, beginning with the user")?;
    }
    demand(messages.len() % 2 == 1, "the last message is not the user's")?;
    let mut asked: Vec<&str> = Vec::new();
    for message in messages {
        let blocks = list(message, "content");
        for text in words(blocks, "/text") {
            demand(!text.trim().is_empty(), "text content blocks must contain non-whitespace text")?;
        }
        let results = blocks.iter().take_while(|block| block["type"] == "tool_result").count();
        let answered = words(&blocks[..results], "/tool_use_id");
        let late = blocks[results..].iter().any(|block| block["type"] == "tool_result");
        demand(!late, "tool_result blocks must come first")?;
        if message["role"] == "user" {
            let (asked_set, answered_set): (HashSet<_>, HashSet<_>) =
                (asked.iter().collect(), answered.iter().collect());
            demand(
                asked_set == answered_set && asked.len() == answered.len(),
                "calls and results do not match",
            )?;
            asked.clear();
        } else {
            demand(answered.is_empty(), "a result from the assistant")?;
            asked = words(blocks, "/id");
            for name in asked.iter().chain(&words(blocks, "/name")) {
                demand(is_plain(name), &format!("`{name}` does not match ^[a-zA-Z0-9_-]+$"))?;
            }
            let last = blocks.last().map(|block| block["type"].as_str().unwrap_or_default());
            demand(
                !last.is_some_and(|kind| kind.contains("thinking")),
                "the final block cannot be thinking",
            )?;
        }
    }
    let marks = body.to_string().matches("\"cache_control\"").count();
    demand(marks <= 4, "more than 4 blocks with cache_control")?;
    match body.pointer("/output_config/format/schema") {
        Some(schema) => {
            demand(is_closed(schema), "additionalProperties must be false and keywords supported")
        }
        None => Ok(()),
    }
}

fn is_closed(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            let closed =
                map.get("type") != Some(&json!("object")) || map["additionalProperties"] == json!(false);
            let known =
                !["minimum", "maxLength", "minLength"].iter().any(|keyword| map.contains_key(*keyword));
            closed && known && map.values().all(is_closed)
        }
        Value::Array(items) => items.iter().all(is_closed),
        _ => true,
    }
}

fn gemini(body: &Value) -> Result<(), String> {
    let contents = list(body, "contents");
    demand(
        contents.first().is_some_and(|first| first["role"] == "user"),
        "the first content is not the user's",
    )?;
    let has_text = |content: &Value| list(content, "parts").iter().any(|part| part.get("text").is_some());
    let turn =
        contents.iter().rposition(|content| content["role"] == "user" && has_text(content)).unwrap_or(0);
    let mut open: Vec<(Option<&str>, Option<&str>)> = Vec::new();
    for (at, content) in contents.iter().enumerate() {
        let parts = list(content, "parts");
        let calls: Vec<&Value> = parts.iter().filter(|part| part.get("functionCall").is_some()).collect();
        let named = |part: &&'_ Value, what: &str| -> (Option<String>, Option<String>) {
            let word = |key: &str| part[what][key].as_str().map(str::to_owned);
            (word("id"), word("name"))
        };
        let answers: Vec<&Value> =
            parts.iter().filter(|part| part.get("functionResponse").is_some()).collect();
        let answered: Vec<_> = answers.iter().map(|part| named(part, "functionResponse")).collect();
        let expected: Vec<_> =
            open.iter().map(|(id, name)| (id.map(str::to_owned), name.map(str::to_owned))).collect();
        demand(answered == expected, "function responses must follow their calls, one for each")?;
        demand(answers.is_empty() || answers.len() == parts.len(), "responses stand alone")?;
        demand(calls.is_empty() || content["role"] == "model", "a call of the user's")?;
        demand(answers.is_empty() || content["role"] == "user", "a response of the model's")?;
        if let (Some(first), true) = (calls.first(), at > turn) {
            demand(first.get("thoughtSignature").is_some(), "function call is missing a thought_signature")?;
        }
        open = calls
            .iter()
            .map(|part| (part["functionCall"]["id"].as_str(), part["functionCall"]["name"].as_str()))
            .collect();
        for (_, name) in &open {
            demand(name.is_some_and(is_plain), "a function's name has odd letters")?;
        }
    }
    demand(open.is_empty(), "a function call has no response")?;
    let json = body.pointer("/generationConfig/responseMimeType").is_some();
    demand(
        !(json && body.get("tools").is_some()),
        "function calling with a response mime type is unsupported",
    )
}

fn ollama(body: &Value) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    for message in list(body, "messages") {
        if message["role"] == "tool" {
            let name = message["tool_name"].as_str().unwrap_or_default();
            let place = open.iter().position(|known| *known == name);
            open.remove(place.ok_or_else(|| format!("no open call is of {name}"))?);
            continue;
        }
        demand(open.is_empty(), "a call has no result before the next message")?;
        open = words(list(message, "tool_calls"), "/function/name");
    }
    demand(open.is_empty(), "a call has no result")
}

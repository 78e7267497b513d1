//! Answers as each protocol writes them.

use lodge_model::{CallUsage, ProviderKind};
use serde_json::{Value, json};

pub(crate) const KINDS: [ProviderKind; 4] =
    [ProviderKind::Openai, ProviderKind::Anthropic, ProviderKind::Gemini, ProviderKind::Ollama];

/// Text with letters of several bytes, thoughts, two calls side by side, counts.
pub(crate) const TEXT: &str = "h\u{e9}\u{1f600} \"done\"";

/// How an answer ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedEnding {
    Plain,
    Length,
    Refusal,
}

pub(crate) fn events(kind: ProviderKind, events: &[Value]) -> String {
    events
        .iter()
        .map(|event| match kind {
            ProviderKind::Anthropic => {
                format!("event: {}\ndata: {event}\n\n", event["type"].as_str().expect("a type"))
            }
            ProviderKind::Ollama => format!("{event}\n"),
            ProviderKind::Openai | ProviderKind::Gemini | ProviderKind::Script => {
                format!("data: {event}\r\n\r\n")
            }
        })
        .collect()
}

/// The rich answer: everything that a protocol has.
pub(crate) fn rich(kind: ProviderKind) -> String {
    match kind {
        ProviderKind::Openai => {
            let call = |index: usize, id: &str, name: &str, arguments: &str| {
                let function = json!({"name": name, "arguments": arguments});
                delta(
                    json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}),
                )
            };
            let more = |index: usize, arguments: &str| {
                delta(json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}))
            };
            let list = [
                delta(json!({"role": "assistant", "content": "", "reasoning_content": "hm "})),
                delta(json!({"content": "h\u{e9}"})),
                delta(json!({"content": "\u{1f600} \"done\""})),
                call(0, "c1", "sh", "{\"args\":"),
                call(1, "c2", "cat", ""),
                more(0, "[\"\u{e9}\"]}"),
                more(1, "{}"),
                json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
                json!({"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 7,
                    "prompt_tokens_details": {"cached_tokens": 10}}}),
            ];
            format!(": hello\n\n{}data: [DONE]\n\n", events(kind, &list))
        }
        ProviderKind::Anthropic => {
            let start = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
            let delta = |index: usize, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
            let stop = |index: usize| json!({"type": "content_block_stop", "index": index});
            let input =
                |index, text: &str| delta(index, json!({"type": "input_json_delta", "partial_json": text}));
            let text = |index, text: &str| delta(index, json!({"type": "text_delta", "text": text}));
            events(
                kind,
                &[
                    anthropic_start(),
                    start(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
                    json!({"type": "ping"}),
                    delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
                    delta(0, json!({"type": "signature_delta", "signature": "c2ln"})),
                    stop(0),
                    start(1, json!({"type": "text", "text": ""})),
                    text(1, "h\u{e9}"),
                    text(1, "\u{1f600} \"done\""),
                    stop(1),
                    start(2, json!({"type": "redacted_thinking", "data": "cmVk"})),
                    stop(2),
                    start(3, json!({"type": "tool_use", "id": "c1", "name": "sh", "input": {}})),
                    input(3, ""),
                    input(3, "{\"args\":"),
                    input(3, "[\"\u{e9}\"]}"),
                    stop(3),
                    start(4, json!({"type": "tool_use", "id": "c2", "name": "cat", "input": {}})),
                    input(4, "{}"),
                    stop(4),
                    json!({"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": null},
                    "usage": {"output_tokens": 7}}),
                    json!({"type": "message_stop"}),
                ],
            )
        }
        ProviderKind::Gemini => events(
            kind,
            &[
                gemini_parts(json!([{"text": "h\u{e9}"}])),
                gemini_parts(json!([{"text": "\u{1f600} \"done\""}])),
                gemini_parts(json!([
                {"functionCall": {"id": "c1", "name": "sh", "args": {"args": ["\u{e9}"]}}, "thoughtSignature": "c2ln"},
                {"functionCall": {"id": "c2", "name": "cat", "args": {}}}])),
                json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "", "thoughtSignature": "ZW5k"}]},
                    "finishReason": "STOP", "index": 0}],
                "usageMetadata": {"promptTokenCount": 30, "cachedContentTokenCount": 10,
                    "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "totalTokenCount": 37}}),
            ],
        ),
        ProviderKind::Ollama => events(
            kind,
            &[
                ollama_says(json!({"content": "", "thinking": "hm"})),
                ollama_says(json!({"content": "h\u{e9}"})),
                ollama_says(json!({"content": "\u{1f600} \"done\""})),
                ollama_says(json!({"content": "", "tool_calls": [
                {"id": "c1", "function": {"index": 0, "name": "sh", "arguments": {"args": ["\u{e9}"]}}},
                {"id": "c2", "function": {"index": 1, "name": "cat", "arguments": {}}}]})),
                ollama_end("stop"),
            ],
        ),
        ProviderKind::Script => String::new(),
    }
}

/// What the rich answer counts.
pub(crate) fn rich_usage(kind: ProviderKind) -> CallUsage {
    let (cached_tokens, cache_write_tokens) = match kind {
        ProviderKind::Anthropic => (10, 5),
        ProviderKind::Openai | ProviderKind::Gemini => (10, 0),
        ProviderKind::Ollama | ProviderKind::Script => (0, 0),
    };
    CallUsage { input_tokens: 30, output_tokens: 7, cached_tokens, cache_write_tokens }
}

/// The pieces of an answer of text: its beginning, any number of `middle`, its end.
pub(crate) fn plain(kind: ProviderKind, middle: &[&str], ending: RecordedEnding) -> Vec<String> {
    let one = |event: Value| events(kind, &[event]);
    let mut pieces = Vec::new();
    if kind == ProviderKind::Anthropic {
        let block = json!({"type": "text", "text": ""});
        pieces.push(one(anthropic_start()));
        pieces.push(one(json!({"type": "content_block_start", "index": 0, "content_block": block})));
    }
    pieces.extend(middle.iter().map(|text| {
        one(match kind {
            ProviderKind::Openai | ProviderKind::Script => delta(json!({"content": text})),
            ProviderKind::Anthropic => {
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
            }
            ProviderKind::Gemini => gemini_parts(json!([{"text": text}])),
            ProviderKind::Ollama => ollama_says(json!({"content": text})),
        })
    }));
    pieces.push(ending_of(kind, ending));
    pieces
}

fn ending_of(kind: ProviderKind, ending: RecordedEnding) -> String {
    let reason = |plain: &'static str, length: &'static str, refusal: &'static str| match ending {
        RecordedEnding::Plain => plain,
        RecordedEnding::Length => length,
        RecordedEnding::Refusal => refusal,
    };
    match kind {
        ProviderKind::Openai | ProviderKind::Script => {
            let reason = reason("stop", "length", "content_filter");
            let end = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]});
            format!("{}data: [DONE]\n\n", events(kind, &[end]))
        }
        ProviderKind::Anthropic => events(
            kind,
            &[
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": reason("end_turn", "max_tokens", "refusal")},
                "usage": {"output_tokens": 7}}),
                json!({"type": "message_stop"}),
            ],
        ),
        ProviderKind::Gemini => events(
            kind,
            &[json!({"candidates": [{"content": {"role": "model", "parts": []},
            "finishReason": reason("STOP", "MAX_TOKENS", "SAFETY"), "index": 0}]})],
        ),
        ProviderKind::Ollama => events(kind, &[ollama_end(reason("stop", "length", "stop"))]),
    }
}

/// An answer with this many calls.
pub(crate) fn calls(kind: ProviderKind, count: usize, ending: RecordedEnding) -> Vec<String> {
    let mut pieces = vec![if kind == ProviderKind::Anthropic {
        events(kind, &[anthropic_start()])
    } else {
        String::new()
    }];
    for at in 0..count {
        let id = format!("c{at}");
        pieces.push(events(kind, &[match kind {
            ProviderKind::Openai | ProviderKind::Script => delta(json!({"tool_calls": [{"index": at, "id": id, "type": "function",
                "function": {"name": "sh", "arguments": "{}"}}]})),
            ProviderKind::Anthropic => json!({"type": "content_block_start", "index": at,
                "content_block": {"type": "tool_use", "id": id, "name": "sh", "input": {}}}),
            ProviderKind::Gemini => gemini_parts(json!([{"functionCall": {"id": id, "name": "sh", "args": {}}}])),
            ProviderKind::Ollama => {
                ollama_says(json!({"content": "", "tool_calls": [{"id": id, "function": {"name": "sh", "arguments": {}}}]}))
            }
        }]));
    }
    pieces.push(ending_of(kind, ending));
    pieces
}

/// A failure in the middle of an answer that began.
pub(crate) fn breaking(kind: ProviderKind, message: &str) -> String {
    let error = match kind {
        ProviderKind::Openai | ProviderKind::Script => {
            json!({"error": {"message": message, "code": "server_error"}})
        }
        ProviderKind::Anthropic => {
            json!({"type": "error", "error": {"type": "overloaded_error", "message": message}})
        }
        ProviderKind::Gemini => json!({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}}),
        ProviderKind::Ollama => json!({"error": message}),
    };
    let begun = plain(kind, &["begun"], RecordedEnding::Plain);
    begun[..begun.len() - 1].concat() + &events(kind, &[error])
}

pub(crate) fn listing(kind: ProviderKind) -> String {
    match kind {
        ProviderKind::Openai | ProviderKind::Anthropic | ProviderKind::Script => {
            json!({"data": [{"id": "m"}, {"id": "n"}]})
        }
        ProviderKind::Gemini => {
            json!({"models": [{"name": "models/m", "supportedGenerationMethods": ["generateContent"]},
            {"name": "models/e", "supportedGenerationMethods": ["embedContent"]}, {"name": "models/n"}]})
        }
        ProviderKind::Ollama => json!({"models": [{"name": "m", "size": 1}, {"name": "n"}]}),
    }
    .to_string()
}

fn delta(delta: Value) -> Value {
    json!({"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn anthropic_start() -> Value {
    json!({"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [],
        "model": "m", "stop_reason": null, "usage": {"input_tokens": 15, "cache_read_input_tokens": 10,
            "cache_creation_input_tokens": 5, "output_tokens": 1}}})
}

fn gemini_parts(parts: Value) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0}], "modelVersion": "m",
        "usageMetadata": {"promptTokenCount": 30, "totalTokenCount": 30}})
}

fn ollama_says(mut message: Value) -> Value {
    message["role"] = "assistant".into();
    json!({"model": "m", "created_at": "2026-11-15T00:00:00Z", "message": message, "done": false})
}

fn ollama_end(reason: &str) -> Value {
    json!({"model": "m", "created_at": "2026-11-15T00:00:00Z", "message": {"role": "assistant", "content": ""},
        "done": true, "done_reason": reason, "prompt_eval_count": 30, "eval_count": 7})
}

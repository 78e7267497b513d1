//! The relevant parts of a request, and the pieces of a reply.

use std::borrow::Cow;

use serde::Deserialize;

use super::command::{MockCall, MockFault, MockPlan};

#[derive(Deserialize)]
pub(super) struct ChatRequest<'a> {
    #[serde(borrow)]
    pub(super) model: Cow<'a, str>,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(borrow)]
    messages: Vec<ChatMessage<'a>>,
}

#[derive(Deserialize)]
struct ChatMessage<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<ChatContent<'a>>,
    #[serde(borrow, default)]
    tool_calls: Vec<ChatCall<'a>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ChatContent<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Parts(Vec<ChatPart>),
}

#[derive(Deserialize)]
struct ChatPart {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct ChatCall<'a> {
    #[serde(borrow)]
    function: ChatFunction<'a>,
}

#[derive(Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    arguments: Cow<'a, str>,
}

impl ChatMessage<'_> {
    fn text(&self) -> Cow<'_, str> {
        match &self.content {
            Some(ChatContent::Text(text)) => Cow::Borrowed(text),
            Some(ChatContent::Parts(parts)) => parts.iter().map(|part| part.text.as_str()).collect(),
            None => Cow::Borrowed(""),
        }
    }
}

/// The position in a conversation.
pub(super) struct ChatPosition {
    /// The last user message.
    pub(super) user: String,
    pub(super) user_messages: usize,
    /// Assistant messages after it.
    pub(super) step: usize,
    /// The last tool result after it.
    tool_result: Option<String>,
    pub(super) lengths: Vec<u64>,
    pub(super) digest: String,
}

impl ChatPosition {
    pub(super) fn of(request: &ChatRequest<'_>) -> Self {
        let messages = &request.messages;
        let last_user = messages.iter().rposition(|message| message.role == "user");
        let since = &messages[last_user.map_or(messages.len(), |place| place + 1)..];
        let tool_result = since.iter().rfind(|message| message.role == "tool");
        let mut hash = Fnv::default();
        let mut lengths = Vec::with_capacity(messages.len());
        for message in messages {
            let before = hash.length;
            hash.add(&message.text());
            for call in &message.tool_calls {
                hash.add(&call.function.name);
                hash.add(&call.function.arguments);
            }
            lengths.push(hash.length - before);
            hash.add_role(&message.role);
        }
        Self {
            user: last_user.map_or_else(String::new, |place| messages[place].text().into_owned()),
            user_messages: messages.iter().filter(|message| message.role == "user").count(),
            step: since.iter().filter(|message| message.role == "assistant").count(),
            tool_result: tool_result.map(|message| message.text().into_owned()),
            lengths,
            digest: format!("{:016x}", hash.state),
        }
    }

    /// A call that names the job of the last tool result: its id is known when it is made, and not before.
    fn fill(&self, call: &MockCall) -> MockCall {
        let told = self.tool_result.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let job = told.as_ref().and_then(|told: &serde_json::Value| told["job_id"].as_str());
        let arguments = call.arguments.replace("{{job}}", job.unwrap_or_default());
        MockCall { name: call.name.clone(), arguments }
    }
}

/// FNV-1a: short, and enough to distinguish requests.
pub(super) struct Fnv {
    state: u64,
    length: u64,
}

impl Default for Fnv {
    fn default() -> Self {
        Self { state: 0xcbf2_9ce4_8422_2325, length: 0 }
    }
}

impl Fnv {
    pub(super) fn of(text: &str) -> u64 {
        let mut hash = Self::default();
        hash.add(text);
        hash.state
    }

    fn add(&mut self, text: &str) {
        self.length += text.len() as u64;
        for byte in text.as_bytes() {
            self.state = (self.state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn add_role(&mut self, role: &str) {
        let length = self.length;
        self.add(role);
        self.length = length;
    }
}

/// A whole answer, before it is put on the wire.
pub(super) struct ChatReply<'a> {
    number: u64,
    model: &'a str,
    pieces: Vec<String>,
    calls: Vec<MockCall>,
    usage: (u64, u64),
}

impl<'a> ChatReply<'a> {
    pub(super) fn of(number: u64, model: &'a str, plan: &MockPlan, standing: &ChatPosition) -> Self {
        let calls = plan.steps.get(standing.step).map_or(&[][..], Vec::as_slice);
        let calls: Vec<MockCall> = calls.iter().map(|call| standing.fill(call)).collect();
        let pieces =
            if calls.is_empty() { split(&text(plan, standing), wanted_pieces(plan)) } else { Vec::new() };
        let tokens = |bytes: u64| bytes.div_ceil(4);
        let input = tokens(standing.lengths.iter().sum());
        let output = tokens(pieces.iter().map(|piece| piece.len() as u64).sum());
        Self { number, model, pieces, calls, usage: plan.usage.unwrap_or((input, output)) }
    }

    /// The events before the end: one for each piece of text, two for each call.
    pub(super) fn events(&self) -> impl Iterator<Item = String> {
        let texts = self.pieces.iter().map(|piece| {
            let content = serde_json::Value::from(piece.as_str());
            self.event(
                &format!(r#"{{"index":0,"delta":{{"content":{content}}},"finish_reason":null}}"#),
                "null",
            )
        });
        let calls = self.calls.iter().enumerate().flat_map(|(index, call)| {
            let middle = middle_of(&call.arguments);
            let (first, second) = call.arguments.split_at(middle);
            let (name, id) = (serde_json::Value::from(call.name.as_str()), self.call_id(index));
            let (first, second) = (serde_json::Value::from(first), serde_json::Value::from(second));
            [
                format!(r#"{{"index":{index},"id":"{id}","type":"function","function":{{"name":{name},"arguments":{first}}}}}"#),
                format!(r#"{{"index":{index},"function":{{"arguments":{second}}}}}"#),
            ]
            .map(|delta| {
                self.event(&format!(r#"{{"index":0,"delta":{{"tool_calls":[{delta}]}},"finish_reason":null}}"#), "null")
            })
        });
        texts.chain(calls)
    }

    /// The events that end a stream.
    pub(super) fn ending(&self) -> String {
        let reason = self.finish_reason();
        let finish = self.event(&format!(r#"{{"index":0,"delta":{{}},"finish_reason":"{reason}"}}"#), "null");
        format!("{finish}{}data: [DONE]\n\n", self.event("", &self.usage()))
    }

    /// The same as one JSON object.
    pub(super) fn whole(&self) -> String {
        let calls: Vec<serde_json::Value> = self
            .calls
            .iter()
            .enumerate()
            .map(|(index, call)| {
                serde_json::json!({"id": self.call_id(index), "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments}})
            })
            .collect();
        let mut message = serde_json::json!({"role": "assistant", "content": self.pieces.concat()});
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        serde_json::json!({
            "id": format!("chatcmpl-{}", self.number), "object": "chat.completion", "created": 0, "model": self.model,
            "choices": [{"index": 0, "message": message, "finish_reason": self.finish_reason()}],
            "usage": {"prompt_tokens": self.usage.0, "completion_tokens": self.usage.1,
                "total_tokens": self.usage.0 + self.usage.1},
        })
        .to_string()
    }

    fn call_id(&self, index: usize) -> String {
        format!("call_{}_{index}", self.number)
    }

    fn finish_reason(&self) -> &'static str {
        if self.calls.is_empty() { "stop" } else { "tool_calls" }
    }

    fn usage(&self) -> String {
        let (input, output) = self.usage;
        let total = input + output;
        format!(r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{total}}}"#)
    }

    fn event(&self, choice: &str, usage: &str) -> String {
        let (number, model) = (self.number, serde_json::Value::from(self.model));
        format!(
            "data: {{\"id\":\"chatcmpl-{number}\",\"object\":\"chat.completion.chunk\",\"created\":0,\
             \"model\":{model},\"choices\":[{choice}],\"usage\":{usage}}}\n\n"
        )
    }
}

fn text(plan: &MockPlan, standing: &ChatPosition) -> String {
    if plan.big_bytes > 0 {
        return "0123456789abcde\n".repeat(plan.big_bytes.div_ceil(16))[..plan.big_bytes].to_owned();
    }
    let tool_result = standing.tool_result.as_deref().unwrap_or_default();
    match &plan.reply {
        Some(reply) => {
            reply.replace("{{turn}}", &standing.user_messages.to_string()).replace("{{tool}}", tool_result)
        }
        None if !plan.steps.is_empty() => format!("tool said: {tool_result}"),
        None => match wanted_pieces(plan) {
            1 => format!("ok {}", standing.user_messages),
            count => (1..=count).map(|word| format!("word{word} ")).collect(),
        },
    }
}

/// Enough pieces that something is missing when the stream stops short.
fn wanted_pieces(plan: &MockPlan) -> usize {
    let before_stop = match plan.fault {
        Some(MockFault::CutAfter(pieces) | MockFault::HangAfter(pieces)) => {
            pieces.saturating_add(1).min(100_000)
        }
        Some(MockFault::Status(_) | MockFault::Hang | MockFault::Garbage | MockFault::ErrorObject) | None => {
            1
        }
    };
    plan.chunks.unwrap_or(1).max(before_stop)
}

/// `text` in at most `count` pieces of nearly equal size.
fn split(text: &str, count: usize) -> Vec<String> {
    if count <= 1 {
        return vec![text.to_owned()];
    }
    let chars: Vec<char> = text.chars().collect();
    let count = count.min(chars.len()).max(1);
    let at = |piece: usize| piece * chars.len() / count;
    (0..count).map(|piece| chars[at(piece)..at(piece + 1)].iter().collect()).collect()
}

fn middle_of(text: &str) -> usize {
    (text.len() / 2..=text.len()).find(|place| text.is_char_boundary(*place)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(messages: serde_json::Value) -> String {
        let text = serde_json::json!({"model": "m", "messages": messages}).to_string();
        let request: ChatRequest<'_> = serde_json::from_str(&text).unwrap();
        let call = MockCall { name: "job_wait".into(), arguments: r#"{"job_id":"{{job}}"}"#.into() };
        ChatPosition::of(&request).fill(&call).arguments
    }

    #[test]
    fn a_call_names_the_job_that_the_last_result_told_of() {
        let said = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        let (user, told) = (said("user", "go"), said("tool", r#"{"job_id":"job_7"}"#));
        assert_eq!(arguments(serde_json::json!([user, told])), r#"{"job_id":"job_7"}"#);
        for other in [said("tool", "no json"), said("tool", "{}"), said("assistant", "none")] {
            assert_eq!(arguments(serde_json::json!([user, other])), r#"{"job_id":""}"#);
        }
    }
}

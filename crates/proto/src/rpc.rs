//! JSON-RPC 2.0 envelopes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One call as a client sends it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Request {
    pub jsonrpc: String,
    pub id: Value,
    pub method: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub params: Value,
}

/// One answer: exactly one of `result` and `error` is set.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Response {
    pub jsonrpc: String,
    pub id: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// A message that the daemon sends after `client/attach` without a request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Notification {
    pub jsonrpc: String,
    pub method: String,
    pub params: Value,
}

/// Anything that arrives at a client.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Message {
    Response(Response),
    Notification(Notification),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The JSON-RPC number; scripts should match on `data.code` instead.
    pub code: i64,
    /// What failed.
    pub message: String,
    pub data: ErrorData,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorData {
    /// Stable, dotted, documented, never reused.
    pub code: String,
    /// Why it failed, innermost cause last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ErrorBody {
    pub fn new(code: &str, message: impl Into<String>) -> Self {
        ErrorBody {
            code: rpc_code(code),
            message: message.into(),
            data: ErrorData { code: code.to_owned(), cause: None, hint: None },
        }
    }

    #[must_use]
    pub fn because(mut self, cause: impl Into<String>) -> Self {
        self.data.cause = Some(cause.into());
        self
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.data.hint = Some(hint.into());
        self
    }
}

/// The JSON-RPC number that goes with a dotted code.
pub fn rpc_code(code: &str) -> i64 {
    match code {
        "request.malformed" => -32700,
        "request.invalid" => -32600,
        "method.not_found" => -32601,
        "params.invalid" => -32602,
        "daemon.internal" => -32603,
        _ => -32000,
    }
}

impl Response {
    pub fn err(id: Value, error: ErrorBody) -> Self {
        Response { jsonrpc: "2.0".into(), id, result: None, error: Some(error) }
    }
}

/// A successful [`Response`] as text, around a result that is JSON already.
pub fn result_text(id: &Value, result: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
}

/// A [`Notification`] as text. The shapes of the API have string keys and finite numbers, so this cannot fail.
pub fn notification_text<P: Serialize>(method: &str, params: &P) -> String {
    #[derive(Serialize)]
    struct NotificationLine<'a, P> {
        jsonrpc: &'static str,
        method: &'a str,
        params: &'a P,
    }
    serde_json::to_string(&NotificationLine { jsonrpc: "2.0", method, params }).unwrap_or_default()
}

impl Notification {
    pub fn new(method: &str, params: Value) -> Self {
        Notification { jsonrpc: "2.0".into(), method: method.to_owned(), params }
    }
}

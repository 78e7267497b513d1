//! The messages between the daemon and a runtime, version 1.
//!
//! Owns: method names, field names, and how a message becomes a line. Never: behaviour. The contract is
//! `docs/runtime-protocol.md`; a test compares it with these types. Fields are added, never renamed, and unknown
//! fields are ignored. A field that one side may leave out has a default.

mod daemon;
mod runtime;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use daemon::{
    AgentIdentity, ContextFile, ConversationEpoch, DaemonMethod, EmptyReply, InitializeReply,
    InitializeRequest, ModelParams, PingRequest, RunningTurn, RuntimeName, SystemPrompt, ToolDeclaration,
    ToolOffer, TurnInterruptRequest, TurnRunRequest, WindowSize,
};
pub use runtime::{
    CompactReply, CompactStrategy, ContextCompactRequest, ExecReply, ExecRunRequest, FinishStatus,
    JobListRequest, JobSubmitRequest, ModelStreamReply, ModelStreamRequest, OneJobRequest, RequestError,
    RuntimeRequest, ToolAnswerRequest, TurnFinishRequest,
};

/// The version that both sides speak.
pub const PROTOCOL: u64 = 1;

/// The longest line that either side may send, without its newline.
pub const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The JSON-RPC number of errors that have a dotted code of their own.
pub const REFUSED: i32 = -32000;
/// The code of a runtime that refuses `initialize` because values of CONFIG cannot be used. The agent is then failed with `config`.
pub const CONFIG_UNUSABLE: &str = "config.unusable";
/// The CONFIG keys that the stock runtime reads.
pub const CONFIG_KEYS: [&str; 11] = [
    "max-tokens",
    "max-iterations",
    "memory-strategy",
    "memory-max-messages",
    "memory-max-tokens",
    "tool-timeout",
    "temperature",
    "top-p",
    "top-k",
    "presence-penalty",
    "frequency-penalty",
];

const JSONRPC: &str = "2.0";

/// Enough of a message to know what it is. The rest is parsed once that is known.
#[derive(Debug, Deserialize)]
pub struct MessageHead {
    pub id: Option<Value>,
    pub method: Option<String>,
}

/// The params of a request whose method is known.
#[derive(Debug, Deserialize)]
pub struct RequestBody<P> {
    pub params: P,
}

/// The answer to a request whose reply has the shape `R`.
#[derive(Debug, Deserialize)]
pub struct AnswerBody<R> {
    pub result: Option<R>,
    pub error: Option<ErrorReply>,
}

/// A whole message of a runtime. Which fields there are depends on what it is.
#[derive(Debug, Deserialize)]
pub struct RuntimeMessage {
    #[serde(default)]
    pub id: Value,
    pub method: Option<String>,
    #[serde(default)]
    pub params: Value,
    pub result: Option<Value>,
    pub error: Option<Value>,
}

/// One tool call of a model's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerCall {
    pub id: String,
    pub name: String,
    /// What the model wrote: as JSON, or as text that may or may not be JSON.
    #[serde(default)]
    pub arguments: Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorReply {
    #[serde(default)]
    pub code: i32,
    #[serde(default)]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

/// How the turn of a refused request has ended. The runtime drops the turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEndCode {
    Gone,
    Interrupted,
    Failed,
}

impl TurnEndCode {
    pub const ALL: [TurnEndCode; 3] = [TurnEndCode::Gone, TurnEndCode::Interrupted, TurnEndCode::Failed];

    pub fn code(self) -> &'static str {
        match self {
            TurnEndCode::Gone => "turn.gone",
            TurnEndCode::Interrupted => "turn.interrupted",
            TurnEndCode::Failed => "turn.failed",
        }
    }

    pub fn from_code(code: &str) -> Option<TurnEndCode> {
        TurnEndCode::ALL.into_iter().find(|end| end.code() == code)
    }
}

impl ErrorReply {
    pub fn new(number: i32, message: String, dotted_code: &str) -> Self {
        ErrorReply { code: number, message, data: Some(json!({"code": dotted_code})) }
    }

    /// The turn that the request was about has ended, as far as the daemon says so.
    pub fn turn_end(&self) -> Option<TurnEndCode> {
        TurnEndCode::from_code(self.dotted_code()?)
    }

    /// The code that programs look at, if the other side gave one.
    pub fn dotted_code(&self) -> Option<&str> {
        self.data.as_ref()?.get("code")?.as_str()
    }
}

/// Appends a request of the daemon, without a newline.
pub fn write_daemon_request<P: DaemonMethod>(out: &mut Vec<u8>, id: &str, params: &P) {
    #[derive(Serialize)]
    struct DaemonRequestLine<'a, P> {
        jsonrpc: &'static str,
        id: &'a str,
        method: &'static str,
        params: &'a P,
    }
    write(out, &DaemonRequestLine { jsonrpc: JSONRPC, id, method: P::METHOD, params });
}

/// Appends a request of a runtime, without a newline.
pub fn write_runtime_request(out: &mut Vec<u8>, id: &str, request: &RuntimeRequest) {
    #[derive(Serialize)]
    struct RuntimeRequestLine<'a> {
        jsonrpc: &'static str,
        id: &'a str,
        #[serde(flatten)]
        request: &'a RuntimeRequest,
    }
    write(out, &RuntimeRequestLine { jsonrpc: JSONRPC, id, request });
}

/// Appends the answer to a request that was done, without a newline.
pub fn write_result(out: &mut Vec<u8>, id: &Value, result: &impl Serialize) {
    #[derive(Serialize)]
    struct ResultLine<'a, R> {
        jsonrpc: &'static str,
        id: &'a Value,
        result: &'a R,
    }
    write(out, &ResultLine { jsonrpc: JSONRPC, id, result });
}

/// Appends the answer to a request that was refused, without a newline.
pub fn write_error(out: &mut Vec<u8>, id: &Value, error: &ErrorReply) {
    #[derive(Serialize)]
    struct ErrorLine<'a> {
        jsonrpc: &'static str,
        id: &'a Value,
        error: &'a ErrorReply,
    }
    write(out, &ErrorLine { jsonrpc: JSONRPC, id, error });
}

fn write(out: &mut Vec<u8>, message: &impl Serialize) {
    serde_json::to_writer(out, message).expect("plain strings and numbers always become JSON");
}

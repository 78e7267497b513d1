//! The shapes of protocol version 1.
//!
//! Owns: field names, and how a message becomes a line. Never: behaviour. Fields are added, never renamed; unknown
//! ones are ignored.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::ModelParams;
use crate::memory::Strategy;
use crate::prompt::Prompt;

pub(crate) const PROTOCOL: u64 = 1;
pub(crate) const RUNTIME_NAME: &str = "lodge-runtime";
pub(crate) const RUNTIME_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Enough of a message to know what it is; the rest is parsed once that is known.
#[derive(Debug, Deserialize)]
pub(crate) struct Head {
    pub(crate) id: Option<Value>,
    pub(crate) method: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Request<P> {
    pub(crate) params: P,
}

#[derive(Debug, Deserialize)]
pub(crate) struct InitializeParams {
    pub(crate) protocol: u64,
    pub(crate) epoch: u64,
    pub(crate) agent: AgentNamed,
    pub(crate) root: Option<PathBuf>,
    #[serde(default)]
    pub(crate) configs: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) context: Vec<ContextFile>,
    #[serde(default)]
    pub(crate) tools: Vec<ToolDeclared>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct AgentNamed {
    pub(crate) id: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ContextFile {
    pub(crate) name: String,
    /// Relative to `<root>/etc/context`.
    pub(crate) file: String,
    pub(crate) description: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ToolDeclared {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    pub(crate) usage: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TurnRunParams {
    pub(crate) turn: String,
    pub(crate) number: u64,
    pub(crate) step: u64,
    #[serde(default)]
    pub(crate) calls: Vec<Call>,
    #[serde(default)]
    pub(crate) epoch: Epoch,
}

/// What the daemon tells of the conversation since it was compacted last.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Epoch {
    pub(crate) from_turn: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    /// The newest turns, one by one, the one that begins last.
    #[serde(default)]
    pub(crate) turns: Vec<u64>,
}

impl Default for Epoch {
    /// A daemon that does not tell has never compacted.
    fn default() -> Self {
        Epoch { from_turn: 1, bytes: 0, turns: Vec::new() }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct TurnInterruptParams {
    pub(crate) turn: String,
}

/// One tool call of a model's answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// What the model wrote: as JSON, or as text that may or may not be JSON.
    #[serde(default)]
    pub(crate) arguments: Value,
}

/// An answer to one of our requests.
#[derive(Debug, Deserialize)]
pub(crate) struct Answer<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<AnswerError>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct AnswerError {
    #[serde(default)]
    pub(crate) message: String,
    data: Option<Value>,
}

impl AnswerError {
    /// The dotted code, where the daemon gave one.
    pub(crate) fn code(&self) -> Option<&str> {
        self.data.as_ref()?.get("code")?.as_str()
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModelAnswer {
    pub(crate) finished: bool,
    #[serde(default)]
    pub(crate) calls: Vec<Call>,
}

/// The answer to an `exec/run` or `job/…`: the daemon stored the result itself.
#[derive(Debug, Deserialize)]
pub(crate) struct ExecAnswer {
    /// Tells one result from another.
    pub(crate) digest: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CompactAnswer {
    pub(crate) from_turn: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct InitializeReply<'a> {
    pub(crate) protocol: u64,
    pub(crate) runtime: RuntimeNamed,
    pub(crate) context: &'a Prompt,
    pub(crate) tools: Vec<ToolOffered<'a>>,
    pub(crate) params: &'a ModelParams,
    pub(crate) window: Window,
    pub(crate) turns: Vec<TurnRunning<'a>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RuntimeNamed {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct ToolOffered<'a> {
    pub(crate) name: &'a str,
    pub(crate) description: String,
    pub(crate) parameters: &'a Value,
}

#[derive(Debug, Serialize)]
pub(crate) struct Window {
    pub(crate) max_messages: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct TurnRunning<'a> {
    pub(crate) turn: &'a str,
}

/// The `{}` of a request that is simply done.
#[derive(Debug, Serialize)]
pub(crate) struct Done {}

/// A request to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "method", content = "params")]
pub(crate) enum Ask {
    #[serde(rename = "model/stream")]
    ModelStream { turn: String, step: u64, context: String, from_turn: u64, finish_if_no_tools: bool },
    #[serde(rename = "exec/run")]
    ExecRun {
        turn: String,
        step: u64,
        call: String,
        bin: String,
        args: Vec<String>,
        stdin: String,
        timeout_ms: u64,
    },
    #[serde(rename = "job/submit")]
    JobSubmit {
        turn: String,
        step: u64,
        call: String,
        bin: String,
        args: Vec<String>,
        stdin: String,
        timeout_ms: u64,
        priority: i64,
        labels: BTreeMap<String, String>,
    },
    #[serde(rename = "job/list")]
    JobList {
        turn: String,
        step: u64,
        call: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        status: Option<String>,
        limit: u64,
    },
    #[serde(rename = "job/status")]
    JobStatus { turn: String, step: u64, call: String, job: String },
    #[serde(rename = "job/wait")]
    JobWait { turn: String, step: u64, call: String, job: String },
    #[serde(rename = "job/watch")]
    JobWatch { turn: String, step: u64, call: String, job: String },
    #[serde(rename = "job/cancel")]
    JobCancel { turn: String, step: u64, call: String, job: String },
    #[serde(rename = "context/compact")]
    ContextCompact { turn: String, from_turn: u64, strategy: Strategy },
    #[serde(rename = "tool/answer")]
    ToolAnswer { turn: String, step: u64, call: String, text: String, error: bool },
    #[serde(rename = "turn/finish")]
    TurnFinish { turn: String, step: u64, status: FinishStatus, code: String, message: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishStatus {
    Failed,
}

impl Ask {
    pub(crate) fn turn(&self) -> &str {
        match self {
            Ask::ModelStream { turn, .. }
            | Ask::ExecRun { turn, .. }
            | Ask::JobSubmit { turn, .. }
            | Ask::JobList { turn, .. }
            | Ask::JobStatus { turn, .. }
            | Ask::JobWait { turn, .. }
            | Ask::JobWatch { turn, .. }
            | Ask::JobCancel { turn, .. }
            | Ask::ContextCompact { turn, .. }
            | Ask::ToolAnswer { turn, .. }
            | Ask::TurnFinish { turn, .. } => turn,
        }
    }

    /// The same for the same work, whichever process asks, so that a repeated request can be recognised.
    pub(crate) fn id(&self) -> String {
        match self {
            Ask::ModelStream { turn, step, .. } => format!("{turn}:m{step}"),
            Ask::ExecRun { turn, step, call, .. }
            | Ask::JobSubmit { turn, step, call, .. }
            | Ask::JobList { turn, step, call, .. }
            | Ask::JobStatus { turn, step, call, .. }
            | Ask::JobWait { turn, step, call, .. }
            | Ask::JobWatch { turn, step, call, .. }
            | Ask::JobCancel { turn, step, call, .. }
            | Ask::ToolAnswer { turn, step, call, .. } => format!("{turn}:t{step}.{call}"),
            Ask::ContextCompact { turn, from_turn, .. } => format!("{turn}:e{from_turn}"),
            Ask::TurnFinish { turn, step, .. } => format!("{turn}:f{step}"),
        }
    }
}

/// Why a request of the daemon was refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    Parse,
    TooLong,
    InvalidRequest,
    UnknownMethod { method: String },
    InvalidParams { cause: String },
    NotInitialized,
    Busy { turns_max: usize },
    Protocol { asked: u64 },
    StaleEpoch { epoch: u64, known: u64 },
    Context(crate::prompt::ContextError),
    ReplyTooLong,
}

impl Refusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refusal::Parse => "rpc.parse",
            Refusal::TooLong => "rpc.too_long",
            Refusal::InvalidRequest => "rpc.invalid_request",
            Refusal::UnknownMethod { .. } => "rpc.unknown_method",
            Refusal::InvalidParams { .. } => "rpc.invalid_params",
            Refusal::NotInitialized => "runtime.not_initialized",
            Refusal::Busy { .. } => "runtime.busy",
            Refusal::Protocol { .. } => "protocol.unsupported",
            Refusal::StaleEpoch { .. } => "epoch.stale",
            Refusal::Context(error) => error.code(),
            Refusal::ReplyTooLong => "context.too_large",
        }
    }

    fn rpc_code(&self) -> i32 {
        match self {
            Refusal::Parse | Refusal::TooLong => -32700,
            Refusal::InvalidRequest => -32600,
            Refusal::UnknownMethod { .. } => -32601,
            Refusal::InvalidParams { .. } => -32602,
            Refusal::NotInitialized
            | Refusal::Busy { .. }
            | Refusal::Protocol { .. }
            | Refusal::StaleEpoch { .. }
            | Refusal::Context(_)
            | Refusal::ReplyTooLong => -32000,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Parse => f.write_str("the line is not a JSON object"),
            Refusal::TooLong => write!(f, "the line is longer than {} bytes", crate::lines::LINE_BYTES_MAX),
            Refusal::InvalidRequest => f.write_str("the message has neither a method nor an id"),
            Refusal::UnknownMethod { method } => write!(f, "there is no method `{method}`"),
            Refusal::InvalidParams { cause } => write!(f, "the params do not fit the method: {cause}"),
            Refusal::NotInitialized => f.write_str("`initialize` must come first"),
            Refusal::Busy { turns_max } => write!(f, "{turns_max} turns are running already"),
            Refusal::Protocol { asked } => {
                write!(f, "protocol {asked} is not spoken here, the oldest is {PROTOCOL}")
            }
            Refusal::StaleEpoch { epoch, known } => write!(f, "epoch {epoch} is older than {known}"),
            Refusal::Context(error) => error.fmt(f),
            Refusal::ReplyTooLong => f.write_str("context files and tools together do not fit one line"),
        }
    }
}

pub(crate) fn push_reply(out: &mut Vec<u8>, id: &Value, result: &impl Serialize) {
    #[derive(Serialize)]
    struct Reply<'a, T> {
        jsonrpc: &'static str,
        id: &'a Value,
        result: &'a T,
    }
    push_line(out, &Reply { jsonrpc: "2.0", id, result });
}

pub(crate) fn push_refusal(out: &mut Vec<u8>, id: &Value, refusal: &Refusal) {
    let error = serde_json::json!({
        "code": refusal.rpc_code(),
        "message": refusal.to_string(),
        "data": {"code": refusal.code()},
    });
    push_line(out, &serde_json::json!({"jsonrpc": "2.0", "id": id, "error": error}));
}

pub(crate) fn push_ask(out: &mut Vec<u8>, id: &str, ask: &Ask) {
    #[derive(Serialize)]
    struct Asked<'a> {
        jsonrpc: &'static str,
        id: &'a str,
        #[serde(flatten)]
        ask: &'a Ask,
    }
    push_line(out, &Asked { jsonrpc: "2.0", id, ask });
}

fn push_line(out: &mut Vec<u8>, message: &impl Serialize) {
    serde_json::to_writer(&mut *out, message).expect("plain strings and numbers always become JSON");
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_with_its_method_beside_its_params() {
        let ask = Ask::ToolAnswer {
            turn: "trn_1".into(),
            step: 2,
            call: "c9".into(),
            text: "two\nlines".into(),
            error: true,
        };
        let mut out = Vec::new();
        push_ask(&mut out, &ask.id(), &ask);
        let expected = r#"{"jsonrpc":"2.0","id":"trn_1:t2.c9","method":"tool/answer","params":{"turn":"trn_1","step":2,"call":"c9","text":"two\nlines","error":true}}"#;
        assert_eq!(String::from_utf8(out).unwrap(), format!("{expected}\n"));
    }
}

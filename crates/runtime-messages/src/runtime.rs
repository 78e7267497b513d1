//! What a runtime asks of the daemon, and the replies.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::AnswerCall;

/// Declares each request once: its variant, its method and its params.
macro_rules! runtime_requests {
    ($($variant:ident($params:ident) = $method:literal,)*) => {
        /// A request to the daemon.
        #[derive(Debug, Clone, PartialEq, Serialize)]
        #[serde(tag = "method", content = "params")]
        pub enum RuntimeRequest {
            $(#[serde(rename = $method)] $variant($params),)*
        }

        impl RuntimeRequest {
            pub const METHODS: &[&str] = &[$($method),*];

            pub fn parse(method: &str, params: Value) -> Result<RuntimeRequest, RequestError> {
                match method {
                    $($method => serde_json::from_value(params)
                        .map(RuntimeRequest::$variant)
                        .map_err(RequestError::Params),)*
                    other => Err(RequestError::UnknownMethod(other.to_owned())),
                }
            }

            /// The turn that the request is for.
            pub fn turn(&self) -> &str {
                match self {
                    $(RuntimeRequest::$variant(params) => &params.turn,)*
                }
            }
        }
    };
}

runtime_requests! {
    ModelStream(ModelStreamRequest) = "model/stream",
    ContextCompact(ContextCompactRequest) = "context/compact",
    ExecRun(ExecRunRequest) = "exec/run",
    JobSubmit(JobSubmitRequest) = "job/submit",
    JobList(JobListRequest) = "job/list",
    JobStatus(OneJobRequest) = "job/status",
    JobWait(OneJobRequest) = "job/wait",
    JobWatch(OneJobRequest) = "job/watch",
    JobCancel(OneJobRequest) = "job/cancel",
    ToolAnswer(ToolAnswerRequest) = "tool/answer",
    TurnFinish(TurnFinishRequest) = "turn/finish",
}

impl RuntimeRequest {
    /// The same for the same work, whichever process asks, so that a repeated request can be recognised.
    pub fn id(&self) -> String {
        let tool = |turn: &str, step: u32, call: &str| format!("{turn}:t{step}.{call}");
        match self {
            RuntimeRequest::ModelStream(params) => format!("{}:m{}", params.turn, params.step),
            RuntimeRequest::ExecRun(params) => tool(&params.turn, params.step, &params.call),
            RuntimeRequest::JobSubmit(params) => tool(&params.turn, params.step, &params.call),
            RuntimeRequest::JobList(params) => tool(&params.turn, params.step, &params.call),
            RuntimeRequest::JobStatus(params)
            | RuntimeRequest::JobWait(params)
            | RuntimeRequest::JobWatch(params)
            | RuntimeRequest::JobCancel(params) => tool(&params.turn, params.step, &params.call),
            RuntimeRequest::ToolAnswer(params) => tool(&params.turn, params.step, &params.call),
            RuntimeRequest::ContextCompact(params) => format!("{}:e{}", params.turn, params.from_turn),
            RuntimeRequest::TurnFinish(params) => format!("{}:f{}", params.turn, params.step),
        }
    }
}

/// Why a request was not understood.
#[derive(Debug)]
pub enum RequestError {
    UnknownMethod(String),
    Params(serde_json::Error),
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestError::UnknownMethod(method) => write!(f, "there is no method `{method}`"),
            // The cause is the message, because only the message crosses the pipe.
            RequestError::Params(cause) => cause.fmt(f),
        }
    }
}

impl std::error::Error for RequestError {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelStreamRequest {
    pub turn: String,
    pub step: u32,
    /// The id of a system prompt.
    pub context: String,
    pub from_turn: u32,
    #[serde(default = "yes")]
    pub finish_if_no_tools: bool,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelStreamReply {
    /// There were no calls, and the turn is over.
    pub finished: bool,
    #[serde(default)]
    pub calls: Vec<AnswerCall>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextCompactRequest {
    pub turn: String,
    pub from_turn: u32,
    pub strategy: CompactStrategy,
}

/// What happens to the turns before the new epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactStrategy {
    /// They are left out.
    Sliding,
    /// The model writes a summary of them.
    Summarize,
    /// The model writes a document for a successor.
    Handoff,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompactReply {
    pub from_turn: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecRunRequest {
    pub turn: String,
    pub step: u32,
    pub call: String,
    pub bin: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub stdin: String,
    /// 0 for no limit.
    #[serde(default)]
    pub timeout_ms: u64,
}

fn null_is_empty<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(text)?.unwrap_or_default())
}

/// The reply to `exec/run` and `job/…`: the daemon stored the result itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecReply {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(default)]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub signal: Option<i32>,
    /// The limit that the program ran into.
    #[serde(default)]
    pub cause: Option<String>,
    /// Distinguishes one result from another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_bytes: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSubmitRequest {
    pub turn: String,
    pub step: u32,
    pub call: String,
    pub bin: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub stdin: String,
    /// 0 for no limit.
    #[serde(default)]
    pub timeout_ms: u64,
    #[serde(default)]
    pub priority: i32,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobListRequest {
    pub turn: String,
    pub step: u32,
    pub call: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// A request about one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneJobRequest {
    pub turn: String,
    pub step: u32,
    pub call: String,
    pub job: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolAnswerRequest {
    pub turn: String,
    pub step: u32,
    pub call: String,
    pub text: String,
    #[serde(default)]
    pub error: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnFinishRequest {
    pub turn: String,
    #[serde(default)]
    pub step: u32,
    #[serde(default)]
    pub status: FinishStatus,
    pub code: String,
    pub message: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishStatus {
    // The only way for a turn to end without an answer, so any other word is read as this one.
    #[default]
    #[serde(other)]
    Failed,
}

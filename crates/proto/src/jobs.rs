//! Jobs: programs that run beside the conversation.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobSubmitParams {
    /// By id, name or unique id prefix.
    pub agent: String,
    /// The session that the job belongs to, which gets a report of its end.
    pub session: Option<String>,
    /// One of the agent's declared tools.
    pub bin: String,
    pub args: Vec<String>,
    pub stdin: Option<String>,
    /// Instead of `stdin`, for bytes that are no text.
    pub stdin_base64: Option<String>,
    /// Such as `90s` or `10m`; without one it runs until it ends.
    pub timeout: Option<String>,
    /// -100 to 100, 0 when absent: the order among the agent's own jobs.
    pub priority: Option<i32>,
    /// Most bytes that are kept of each stream, such as `64m`: three quarters from the start, the rest from the end.
    pub output: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobListParams {
    pub agent: Option<String>,
    /// pending, running, done, error or cancelled.
    pub status: Option<String>,
    pub session: Option<String>,
    /// All of them must be there, with these values.
    pub labels: BTreeMap<String, String>,
    /// Older than this job: the `next` of the page before.
    pub before: Option<String>,
    pub limit: Option<u32>,
}

/// A job named by id or unique id prefix.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobRef {
    pub job: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobCancelParams {
    pub job: String,
    pub request_id: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobWaitParams {
    pub job: String,
    /// How long to wait for its end: 30 s by default, 60 s at most. The answer has the state at that time.
    pub timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JobOutputParams {
    pub job: String,
    /// stdout (when absent), stderr, or merged: both, in the order in which they were written.
    pub stream: Option<String>,
    pub offset: Option<u64>,
    /// Most bytes of the answer.
    pub limit: Option<u64>,
    /// How long to wait for something behind `offset`, 30 s at most.
    pub wait_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobOutput {
    pub job: String,
    pub stream: String,
    /// Where `data` begins: after the requested offset if output was dropped there.
    pub offset: u64,
    /// The offset to ask for next.
    pub next: u64,
    pub data: String,
    /// utf8 or base64.
    pub encoding: String,
    /// Bytes between the requested offset and `offset` that were not kept.
    pub dropped: u64,
    /// There is nothing behind `next`, and never will be.
    pub end: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobView {
    pub id: String,
    pub agent: String,
    pub agent_name: String,
    pub session: Option<String>,
    pub bin: String,
    pub args: Vec<String>,
    /// pending, running, done, error or cancelled.
    pub status: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit that it ran into: oom, pids, cpu_time, disk, timeout or output.
    pub cause: Option<String>,
    /// Why it is an error, or was cancelled.
    pub error: Option<String>,
    pub priority: i32,
    pub timeout_ms: Option<u64>,
    pub created_at: String,
    pub started_at: Option<String>,
    pub finished_at: Option<String>,
    /// All that was written, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// Some of its output was not kept, or was removed.
    pub truncated: bool,
    /// Bytes of both streams that were not kept.
    pub dropped_bytes: u64,
    /// Its output was removed, as the retention says.
    pub output_removed: bool,
    /// A cancel was requested, and the job has not ended yet.
    pub cancelling: bool,
    pub labels: BTreeMap<String, String>,
}

/// How many jobs of an agent are not over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobCounts {
    pub pending: u64,
    pub running: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobList {
    pub jobs: Vec<JobView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

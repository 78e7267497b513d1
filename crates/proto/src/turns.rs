//! Turns: one message in, one answer out. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::quarantine::QuarantineView;

params! {
    pub struct TurnSendParams {
        agent: String,
        session: Option<String>,
        sender: Option<String>,
        text: String,
        /// A JSON schema: the answer is JSON that fits it, or the turn fails and says why.
        schema: Option<Value>,
        request_id: Option<String>,
    }

    pub struct TurnRef {
        /// An id or a unique prefix of one.
        turn: String,
    }

    pub struct TurnInterruptParams {
        turn: String,
        request_id: Option<String>,
    }

    pub struct TurnRetryParams {
        /// The last turn of its session, which failed or was interrupted: its id or a unique prefix.
        turn: String,
        request_id: Option<String>,
    }

    pub struct TurnListParams {
        /// Only this session, in the order of its path. Absent or empty: turns of all sessions, newest first.
        session: String,
        /// Only this agent, which may be removed.
        agent: Option<String>,
        /// Only this status: queued, running, waiting, done, interrupted or failed.
        status: Option<String>,
        /// Newest first, also within a session.
        newest_first: bool,
        /// Also turns that are not on the path of their session.
        all: bool,
        /// The `next` of an earlier page.
        after: Option<String>,
        limit: Option<u32>,
    }
}

shapes! {
    pub struct UsageView {
        input_tokens: u64,
        output_tokens: u64,
        /// Of the input, what the provider's cache had.
        #[serde(default)]
        cached_tokens: u64,
        /// Absent when a price is not known.
        cost_usd: Option<f64>,
    }

    pub struct StepView {
        id: String,
        /// model or tool.
        kind: String,
        name: String,
        /// intent, done, failed, interrupted, unknown or fenced.
        status: String,
        attempt: u32,
        exit_code: Option<i32>,
        signal: Option<i32>,
        /// The limit that it ran into: oom, pids, cpu_time, disk, timeout or output.
        cause: Option<String>,
        started_at: String,
        ended_at: Option<String>,
    }

    pub struct TurnView {
        id: String,
        session: String,
        agent: String,
        /// Its place in the path of its session, from 1. Turns of one number are branches.
        #[serde(default)]
        number: u32,
        /// Whether it is on the path.
        #[serde(default)]
        active: bool,
        /// The turn that it regenerates or continues.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
        /// queued, running, waiting, done, interrupted or failed.
        status: String,
        /// What a turn that is queued or waiting waits for: `agent` (it is not ready), `session` (turns before it), `slot`
        /// (max-concurrent agents work), `update` (its agent is about to change), `provider` (see `waiting`) or `quarantine` (what it asks for killed the daemon
        /// several times, and an operator has to decide).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<String>,
        /// The work in quarantine that an operator has to decide on before this turn can go on. Its `turn` is this one, or one
        /// before it in the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quarantine: Option<QuarantineView>,
        /// The user's message: in full from `turn/get`, its first 200 characters in listings that are newest first, and
        /// absent elsewhere.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        /// `event/list` and `client/attach` with this `since` return all events of the turn. `turn/get` alone has it; a
        /// turn that a fork copied has no events.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
        /// What a turn that waits for its provider waits for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting: Option<TurnWaitView>,
        /// The answer; while the turn runs or when it broke off, what there is of it.
        text: String,
        /// Whether `text` is incomplete.
        partial: bool,
        steps: Vec<StepView>,
        usage: UsageView,
        error: Option<TurnError>,
        created_at: String,
        ended_at: Option<String>,
    }

    /// Why a turn is parked.
    pub struct TurnWaitView {
        /// `provider`: the provider of its model does not answer.
        reason: String,
        provider: Option<String>,
        /// Of the newest failure.
        code: String,
        message: String,
        hint: Option<String>,
        /// How often the provider failed in a row.
        attempt: u32,
        /// The first failure.
        since: String,
        /// When the provider is tried again, by this turn or by another that waits for it.
        next_at: Option<String>,
        /// The first failure after this time ends the turn.
        until: Option<String>,
    }

    pub struct TurnError {
        code: String,
        message: String,
        hint: Option<String>,
    }

    pub struct TurnList {
        turns: Vec<TurnView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
}

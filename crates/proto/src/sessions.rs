//! Sessions: listed, read, changed, searched and exported. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quarantine::QuarantineView;
use crate::turns::{TurnError, UsageView};

params! {
    pub struct SessionListParams {
        agent: Option<String>,
        after: Option<String>,
        limit: Option<u32>,
    }

    pub struct SessionRef {
        session: String,
    }

    pub struct SessionMessagesParams {
        session: String,
        /// Also messages of turns that are not on the path of the session.
        all: bool,
        /// Only messages before this sequence number: page backwards with it.
        before: Option<u64>,
        limit: Option<u32>,
    }

    pub struct SessionForkParams {
        session: String,
        /// The last turn that is copied: its id, or its number in the path. Absent: the last of the path.
        turn: Option<String>,
        /// The id of the new session. Absent: a new one.
        to: Option<String>,
        request_id: Option<String>,
    }

    pub struct SessionRewindParams {
        session: String,
        /// The turn that is the last one then: its id, or its number in the path; 0 is before the first.
        turn: String,
        request_id: Option<String>,
    }

    pub struct SessionRegenerateParams {
        session: String,
        /// The turn that is done again: its id, or its number in the path. Absent: the last of the path.
        turn: Option<String>,
        request_id: Option<String>,
    }

    pub struct SessionActivateParams {
        session: String,
        /// The id of a turn that is not on the path.
        turn: String,
        request_id: Option<String>,
    }

    pub struct SessionDeleteParams {
        session: String,
        request_id: Option<String>,
    }

    pub struct SessionSearchParams {
        /// Words that all occur, `"phrases"`, and beginnings of words with a `*`.
        query: String,
        agent: Option<String>,
        session: Option<String>,
        /// The `next` of an earlier page.
        after: Option<String>,
        limit: Option<u32>,
    }

    pub struct SessionExportParams {
        session: String,
        /// The `next` of an earlier page.
        after: Option<u64>,
        /// Messages on a page, which is also bounded in bytes.
        limit: Option<u32>,
    }
}

/// From where a session was copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForkView {
    pub session: String,
    /// The number of the last turn that was copied.
    pub turn: u32,
}

/// A session, and how many turns of it are on no path now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDetail {
    #[serde(flatten)]
    pub session: SessionView,
    pub inactive_turns: u64,
    /// Its jobs that wait or run.
    #[serde(default)]
    pub open_jobs: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SessionDeleted {
    pub session: String,
    /// Whether there was one.
    pub deleted: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionHits {
    /// The newest first.
    pub hits: Vec<SessionHit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionHit {
    pub session: String,
    pub agent: String,
    pub turn: String,
    /// The turn's place in its session.
    pub number: u32,
    pub seq: u64,
    /// user, assistant or tool.
    pub role: String,
    /// Whether its turn is on the path of the session.
    pub active: bool,
    pub at: String,
    /// A piece of the text around what was looked for.
    pub snippet: String,
    /// Its positions in the snippet.
    pub marks: Vec<SnippetMark>,
}

/// Counted in characters from the beginning of the snippet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SnippetMark {
    pub start: u32,
    pub end: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionExport {
    pub lines: Vec<ExportLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// One line of an exported session. The first is the session, and the others are its messages in the order in which
/// they were recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExportLine {
    Session(Box<ExportedSession>),
    Message(Box<ExportedMessage>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedSession {
    /// Of this form.
    pub version: u32,
    #[serde(flatten)]
    pub session: SessionView,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedMessage {
    pub seq: u64,
    pub turn: String,
    /// The turn's place in the session. The path, read in the order of number and seq, is the conversation.
    pub number: u32,
    /// Whether the turn is on the path; else it is a branch.
    pub active: bool,
    /// user, assistant or tool.
    pub role: String,
    pub text: String,
    /// For an assistant's message: the turn ended before it was whole.
    pub partial: bool,
    pub calls: Vec<ToolCallView>,
    /// For a tool's message: the call it answers.
    pub call: Option<String>,
    /// For a tool's message: how the call ended.
    pub result: Option<ExportedResult>,
    pub at: String,
    /// With the message that began a turn: how the whole turn went.
    pub outcome: Option<ExportedTurn>,
    /// With the message that began a turn: what the whole turn used.
    pub usage: Option<UsageView>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedResult {
    /// done, failed, interrupted, unknown or fenced.
    pub status: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExportedTurn {
    /// queued, running, waiting, done, interrupted or failed.
    pub status: String,
    pub error: Option<TurnError>,
    /// The turn that this one regenerates.
    pub replaces: Option<String>,
    pub created_at: String,
    pub ended_at: Option<String>,
}

shapes! {
    pub struct SessionView {
        id: String,
        agent: String,
        /// The agent may be removed: its sessions stay until they are deleted.
        agent_name: String,
        agent_removed: bool,
        sender: Option<String>,
        /// The beginning of its first message; in listings and `session/get`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        title: Option<String>,
        /// Of its path.
        turns: u64,
        /// The turn that runs now.
        running: Option<String>,
        /// The turns that wait behind it, the next one first.
        queued: Vec<String>,
        /// Where it was copied from.
        forked_from: Option<ForkView>,
        last_active: String,
        created_at: String,
        /// Null: this release does not measure how full a context is.
        context_state: Option<String>,
        /// Null, as `context_state`.
        context_used_pct: Option<u32>,
        generation: u32,
        epoch: u32,
        /// What its turns used, on its path or not; in listings and `session/get`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<UsageView>,
        /// The work of its turns that is in quarantine. Absent when there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        quarantine: Vec<QuarantineView>,
    }

    pub struct SessionList {
        sessions: Vec<SessionView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }

    pub struct ToolCallView {
        id: String,
        name: String,
        /// The arguments as the model wrote them.
        arguments: String,
    }

    pub struct MessageView {
        seq: u64,
        turn: String,
        /// The turn's place in its session.
        number: u32,
        /// Whether the turn is on the path of the session; else it is a branch.
        active: bool,
        /// user, assistant or tool.
        role: String,
        text: String,
        /// For a user's message: the daemon's note to the model before it, such as a list of ended jobs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        calls: Vec<ToolCallView>,
        /// For a tool's message: the call it answers.
        call: Option<String>,
        /// For an assistant's message: the turn ended before it was whole.
        #[serde(default)]
        partial: bool,
        at: String,
    }

    /// A compaction: from here on the model reads less of the session than people do.
    pub struct EpochView {
        epoch: u32,
        /// The sequence of the first message that was read so: what a page shows before it was read otherwise.
        seq: u64,
        /// The turn that began it, and the first one whose messages the model reads.
        turn: u32,
        from_turn: u32,
        /// sliding, summarize or handoff.
        strategy: String,
        /// The text before those messages.
        summary: Option<String>,
        at: String,
    }

    pub struct MessageList {
        messages: Vec<MessageView>,
        /// Those that begin on this page, in order.
        #[serde(default)]
        epochs: Vec<EpochView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<u64>,
    }
}

//! Sessions: changing, searching and exporting them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shapes::{SessionView, ToolCallView, TurnError, UsageView};

macro_rules! params {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}

params! {
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
    /// Where in the snippet it stands.
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
    /// The turn that this one was asked to do better than.
    pub replaces: Option<String>,
    pub created_at: String,
    pub ended_at: Option<String>,
}

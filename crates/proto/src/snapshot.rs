//! A lineage at its last turn boundary: the shapes of the document, and reading it from a file.
//!
//! Owns: today's version and the upgrade from older ones. Never: what of it is stored where.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agents::Mount;
use crate::sessions::ToolCallView;

/// The version that is written.
pub const SNAPSHOT_VERSION: u32 = 2;
/// The policy of work that records none: an operator decides.
const POLICY_UNKNOWN: &str = "ask";

/// Everything of a snapshot that does not grow with its conversations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotHead {
    pub version: u32,
    pub lineage_id: String,
    /// The state directory that it is of, as `info` names its log.
    pub anchor_id: String,
    /// The epoch of the daemon that recorded this boundary.
    pub epoch: Option<u64>,
    /// When the last turn ended, or the lineage began.
    pub written_at: String,
    pub model: String,
    /// The sampling parameters that are configured.
    pub llm: BTreeMap<String, String>,
    pub config: SnapshotConfig,
}

/// What a process that takes over would be given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotConfig {
    pub tools: Vec<SnapshotTool>,
    pub permissions: SnapshotPermissions,
    pub limits: SnapshotLimits,
    /// All CONFIG values, sampling parameters included.
    pub configs: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotTool {
    pub name: String,
    pub description: String,
    pub source: String,
    pub digest: Option<String>,
    /// Whether a call whose outcome is unknown may be repeated.
    pub safe: bool,
}

/// What its tools may touch.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotPermissions {
    pub executor: Option<String>,
    pub mounts: Vec<Mount>,
    /// Keys only: values may be secrets.
    pub env_keys: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotLimits {
    /// What happens when its process dies: revive, reap or ask.
    pub revival_policy: String,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        SnapshotLimits { revival_policy: POLICY_UNKNOWN.to_owned() }
    }
}

/// One message, as a model reads it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotMessage {
    /// The turn's place in its session, from 1.
    pub turn: u32,
    /// user, assistant or tool.
    pub role: String,
    pub text: String,
    pub calls: Vec<ToolCallView>,
    /// For a tool's message: the call it answers.
    pub call: Option<String>,
    pub at: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TokenUsage {
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl std::ops::AddAssign for TokenUsage {
    fn add_assign(&mut self, more: Self) {
        self.input_tokens += more.input_tokens;
        self.output_tokens += more.output_tokens;
    }
}

/// A conversation up to its newest ended turn before which none is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SnapshotSession {
    pub id: String,
    pub sender: Option<String>,
    pub turns: u32,
    pub messages: Vec<SnapshotMessage>,
}

/// A whole snapshot in memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    #[serde(flatten)]
    pub head: SnapshotHead,
    pub sessions: Vec<SnapshotSession>,
    /// Of all turns of the lineage up to the boundary.
    pub usage: TokenUsage,
}

/// What `lineage/snapshot` answers: a snapshot without the messages, and a page of its sessions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineageSnapshot {
    #[serde(flatten)]
    pub head: SnapshotHead,
    pub sessions: Vec<SessionBoundary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// How much of a session lies before the boundary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SessionBoundary {
    pub id: String,
    pub sender: Option<String>,
    pub turns: u32,
}

/// What `lineage/messages` answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LineageMessages {
    /// Turn after turn, as a model reads them.
    pub messages: Vec<SnapshotMessage>,
    /// Of those turns of the lineage whose first message is on this page.
    pub usage: TokenUsage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("this is no snapshot: a JSON object with a `version` was expected")]
    NoSnapshot {
        #[source]
        cause: serde_json::Error,
    },
    #[error("the snapshot says that it has version {version}, and does not fit it")]
    Malformed {
        version: u32,
        #[source]
        cause: serde_json::Error,
    },
    #[error("the snapshot has version {version}, and this release reads versions 1 to {SNAPSHOT_VERSION}")]
    UnknownVersion { version: u32 },
}

impl SnapshotError {
    pub fn hint(&self) -> &'static str {
        match self {
            SnapshotError::NoSnapshot { .. } | SnapshotError::Malformed { .. } => {
                "`lodge lineage show ID --snapshot` writes one"
            }
            SnapshotError::UnknownVersion { .. } => "a newer release wrote it: read it with that one",
        }
    }
}

/// The first version: one conversation, and no configuration.
#[derive(Deserialize)]
struct FirstVersion {
    lineage_id: String,
    anchor_id: String,
    written_at: String,
    model: String,
    #[serde(default)]
    llm: BTreeMap<String, String>,
    usage: TokenUsage,
    messages: Vec<FirstMessage>,
}

#[derive(Deserialize)]
struct FirstMessage {
    role: String,
    text: String,
    #[serde(default)]
    calls: Vec<ToolCallView>,
    #[serde(default)]
    call: Option<String>,
}

impl Snapshot {
    /// Reads a document of any version up to today's, as one of today's.
    pub fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } =
            serde_json::from_slice(bytes).map_err(|cause| SnapshotError::NoSnapshot { cause })?;
        let malformed = |cause| SnapshotError::Malformed { version, cause };
        match version {
            SNAPSHOT_VERSION => serde_json::from_slice(bytes).map_err(malformed),
            1 => serde_json::from_slice(bytes).map(upgrade).map_err(malformed),
            version => Err(SnapshotError::UnknownVersion { version }),
        }
    }
}

/// Its one conversation becomes a session that is named as the lineage, and its configuration is unknown.
fn upgrade(first: FirstVersion) -> Snapshot {
    let mut turn = 0;
    let mut message = |message: FirstMessage| {
        turn += u32::from(message.role == "user");
        let FirstMessage { role, text, calls, call } = message;
        SnapshotMessage { turn, role, text, calls, call, at: None }
    };
    let messages: Vec<SnapshotMessage> = first.messages.into_iter().map(&mut message).collect();
    let session = SnapshotSession { id: first.lineage_id.clone(), sender: None, turns: turn, messages };
    Snapshot {
        head: SnapshotHead {
            version: SNAPSHOT_VERSION,
            lineage_id: first.lineage_id,
            anchor_id: first.anchor_id,
            epoch: None,
            written_at: first.written_at,
            model: first.model,
            llm: first.llm,
            config: SnapshotConfig::default(),
        },
        sessions: vec![session],
        usage: first.usage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &[u8] = include_bytes!("../../../testkit/fixtures/snapshot-v1.json");

    #[test]
    fn the_first_version_is_read_as_todays_and_its_unknown_policy_is_to_ask() {
        let read = Snapshot::read(FIRST).unwrap();
        assert_eq!((read.head.version, read.head.config.limits.revival_policy.as_str()), (2, "ask"));
        assert_eq!(read.usage, TokenUsage { input_tokens: 41, output_tokens: 17 });
        let [session] = &read.sessions[..] else { panic!("{:?}", read.sessions) };
        assert_eq!((session.turns, session.messages.len()), (2, 6));
        let turns: Vec<u32> = session.messages.iter().map(|message| message.turn).collect();
        assert_eq!(turns, [1, 1, 1, 1, 2, 2]);
        assert_eq!(session.messages[1].calls[0].name, "sh");
        assert_eq!(session.messages[2].call.as_deref(), Some("call_1"));
    }

    #[test]
    fn what_was_upgraded_is_read_back_unchanged() {
        let read = Snapshot::read(FIRST).unwrap();
        let again = serde_json::to_vec(&read).unwrap();
        assert_eq!(Snapshot::read(&again).unwrap(), read);
    }

    #[test]
    fn a_version_of_tomorrow_and_what_is_no_snapshot_are_refused_with_an_explanation() {
        let check = |bytes: &[u8], words: &str| {
            let error = Snapshot::read(bytes).unwrap_err();
            assert!(error.to_string().contains(words) && !error.hint().is_empty(), "{error}");
        };
        check(br#"{"version": 3, "whatever": 1}"#, "has version 3, and this release reads versions 1 to 2");
        check(br#"{"version": 0}"#, "has version 0");
        check(br#"{"version": 2}"#, "does not fit it");
        check(br#"{"version": 1, "messages": 7}"#, "does not fit it");
        check(b"[]", "no snapshot");
        check(b"", "no snapshot");
    }
}

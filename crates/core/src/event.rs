//! What happened, as it is stored.
//!
//! Kinds are numbers and data is one protobuf record: tags and numbers are for ever. A changed meaning gets a
//! new kind.

/// The kind of an event. Codes are stored: never renumber, never reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    DaemonStarted,
    AgentPulling,
    AgentStarting,
    AgentReady,
    AgentWorking,
    AgentStopped,
    AgentFailed,
    AgentRemoving,
    AgentRemoved,
    LineageAdopted,
    TurnAccepted,
    TurnStarted,
    TurnStepStarted,
    TurnStepRestarted,
    TurnText,
    TurnToolCall,
    TurnToolResult,
    TurnStepFinished,
    TurnFinished,
    TurnInterrupted,
    TurnFailed,
}

use EventKind as K;

const TABLE: &[(EventKind, i64, &str)] = &[
    (K::DaemonStarted, 1, "daemon.started"),
    (K::AgentPulling, 10, "agent.pulling"),
    (K::AgentStarting, 11, "agent.starting"),
    (K::AgentReady, 12, "agent.ready"),
    (K::AgentWorking, 13, "agent.working"),
    (K::AgentStopped, 14, "agent.stopped"),
    (K::AgentFailed, 15, "agent.failed"),
    (K::AgentRemoving, 16, "agent.removing"),
    (K::AgentRemoved, 17, "agent.removed"),
    (K::LineageAdopted, 30, "lineage.adopted"),
    (K::TurnAccepted, 50, "turn.accepted"),
    (K::TurnStarted, 51, "turn.started"),
    (K::TurnStepStarted, 52, "turn.step_started"),
    (K::TurnStepRestarted, 53, "turn.step_restarted"),
    (K::TurnText, 54, "turn.text"),
    (K::TurnToolCall, 55, "turn.tool_call"),
    (K::TurnToolResult, 56, "turn.tool_result"),
    (K::TurnStepFinished, 57, "turn.step_finished"),
    (K::TurnFinished, 58, "turn.finished"),
    (K::TurnInterrupted, 59, "turn.interrupted"),
    (K::TurnFailed, 60, "turn.failed"),
];

impl EventKind {
    pub fn all() -> impl Iterator<Item = EventKind> {
        TABLE.iter().map(|(kind, _, _)| *kind)
    }

    fn row(self) -> &'static (EventKind, i64, &'static str) {
        // The test below walks every kind, so a missing row cannot reach a release.
        TABLE.iter().find(|(kind, _, _)| *kind == self).unwrap_or(&TABLE[0])
    }

    pub fn code(self) -> i64 {
        self.row().1
    }

    pub fn word(self) -> &'static str {
        self.row().2
    }

    pub fn from_code(code: i64) -> Option<EventKind> {
        TABLE.iter().find(|(_, known, _)| *known == code).map(|(kind, _, _)| *kind)
    }

    pub fn from_word(word: &str) -> Option<EventKind> {
        TABLE.iter().find(|(_, _, known)| *known == word).map(|(kind, _, _)| *kind)
    }
}

/// The data of every kind of event: a field that a kind does not use is absent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventData {
    #[prost(string, optional, tag = "1")]
    pub session: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub turn: Option<String>,
    #[prost(uint32, optional, tag = "3")]
    pub step: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub attempt: Option<u32>,
    /// Of an agent, a tool or a model.
    #[prost(string, optional, tag = "5")]
    pub name: Option<String>,
    /// Of a step: model or tool.
    #[prost(string, optional, tag = "6")]
    pub kind: Option<String>,
    #[prost(string, optional, tag = "7")]
    pub call: Option<String>,
    #[prost(string, optional, tag = "8")]
    pub arguments: Option<String>,
    #[prost(string, optional, tag = "9")]
    pub status: Option<String>,
    #[prost(sint32, optional, tag = "10")]
    pub exit_code: Option<i32>,
    #[prost(sint32, optional, tag = "11")]
    pub signal: Option<i32>,
    #[prost(uint64, optional, tag = "12")]
    pub bytes: Option<u64>,
    #[prost(string, optional, tag = "13")]
    pub preview: Option<String>,
    #[prost(uint64, optional, tag = "14")]
    pub offset: Option<u64>,
    #[prost(string, optional, tag = "15")]
    pub text: Option<String>,
    #[prost(string, optional, tag = "16")]
    pub code: Option<String>,
    #[prost(string, optional, tag = "17")]
    pub message: Option<String>,
    #[prost(string, optional, tag = "18")]
    pub hint: Option<String>,
    #[prost(string, optional, tag = "19")]
    pub reason: Option<String>,
    #[prost(string, optional, tag = "20")]
    pub detail: Option<String>,
    #[prost(uint64, optional, tag = "21")]
    pub epoch: Option<u64>,
    #[prost(string, optional, tag = "22")]
    pub version: Option<String>,
    #[prost(uint64, optional, tag = "23")]
    pub input_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "24")]
    pub output_tokens: Option<u64>,
    #[prost(uint32, optional, tag = "25")]
    pub incarnation: Option<u32>,
    #[prost(string, optional, tag = "26")]
    pub sender: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_code_and_word() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in EventKind::all() {
            assert!(seen.insert(kind.code()), "{kind:?} has a code of another kind");
            assert_eq!(EventKind::from_code(kind.code()), Some(kind));
            assert_eq!(EventKind::from_word(kind.word()), Some(kind));
        }
        assert_eq!(seen.len(), TABLE.len());
    }
}

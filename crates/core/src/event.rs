//! What happened, as it is stored.
//!
//! Kinds are numbers and data is one protobuf record: tags and numbers are for ever. A changed meaning gets a
//! new kind.

/// The kind of an event. Codes are stored: never renumber, never reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    DaemonStarted,
    DaemonReloaded,
    AgentPulling,
    AgentStarting,
    AgentReady,
    AgentWorking,
    AgentStopped,
    AgentFailed,
    AgentRemoving,
    AgentRemoved,
    AgentLiveness,
    AgentUpdated,
    LineageAdopted,
    LineageOrphaned,
    LineageRevived,
    LineageReaped,
    LineageAsk,
    LineageEnded,
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
    SessionCompacted,
    SessionForked,
    SessionRewound,
    SessionBranchActivated,
    SessionDeleted,
    JobSubmitted,
    JobStarted,
    JobOutput,
    JobFinished,
    JobCancelled,
    WorkQuarantined,
    WorkReleased,
}

use EventKind as K;

impl EventKind {
    pub const ALL: [EventKind; 41] = [
        K::DaemonStarted,
        K::DaemonReloaded,
        K::AgentPulling,
        K::AgentStarting,
        K::AgentReady,
        K::AgentWorking,
        K::AgentStopped,
        K::AgentFailed,
        K::AgentRemoving,
        K::AgentRemoved,
        K::AgentLiveness,
        K::AgentUpdated,
        K::LineageAdopted,
        K::LineageOrphaned,
        K::LineageRevived,
        K::LineageReaped,
        K::LineageAsk,
        K::LineageEnded,
        K::TurnAccepted,
        K::TurnStarted,
        K::TurnStepStarted,
        K::TurnStepRestarted,
        K::TurnText,
        K::TurnToolCall,
        K::TurnToolResult,
        K::TurnStepFinished,
        K::TurnFinished,
        K::TurnInterrupted,
        K::TurnFailed,
        K::SessionCompacted,
        K::SessionForked,
        K::SessionRewound,
        K::SessionBranchActivated,
        K::SessionDeleted,
        K::JobSubmitted,
        K::JobStarted,
        K::JobOutput,
        K::JobFinished,
        K::JobCancelled,
        K::WorkQuarantined,
        K::WorkReleased,
    ];

    /// Stored: never renumber, never reuse.
    pub fn code(self) -> i64 {
        match self {
            K::DaemonStarted => 1,
            K::DaemonReloaded => 2,
            K::AgentPulling => 10,
            K::AgentStarting => 11,
            K::AgentReady => 12,
            K::AgentWorking => 13,
            K::AgentStopped => 14,
            K::AgentFailed => 15,
            K::AgentRemoving => 16,
            K::AgentRemoved => 17,
            K::AgentLiveness => 18,
            K::AgentUpdated => 19,
            K::LineageAdopted => 30,
            K::LineageOrphaned => 31,
            K::LineageRevived => 32,
            K::LineageReaped => 33,
            K::LineageAsk => 34,
            K::LineageEnded => 35,
            K::TurnAccepted => 50,
            K::TurnStarted => 51,
            K::TurnStepStarted => 52,
            K::TurnStepRestarted => 53,
            K::TurnText => 54,
            K::TurnToolCall => 55,
            K::TurnToolResult => 56,
            K::TurnStepFinished => 57,
            K::TurnFinished => 58,
            K::TurnInterrupted => 59,
            K::TurnFailed => 60,
            K::SessionCompacted => 70,
            K::SessionForked => 71,
            K::SessionRewound => 72,
            K::SessionBranchActivated => 73,
            K::SessionDeleted => 74,
            K::JobSubmitted => 80,
            K::JobStarted => 81,
            K::JobOutput => 82,
            K::JobFinished => 83,
            K::JobCancelled => 84,
            K::WorkQuarantined => 90,
            K::WorkReleased => 91,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            K::DaemonStarted => "daemon.started",
            K::DaemonReloaded => "daemon.reloaded",
            K::AgentPulling => "agent.pulling",
            K::AgentStarting => "agent.starting",
            K::AgentReady => "agent.ready",
            K::AgentWorking => "agent.working",
            K::AgentStopped => "agent.stopped",
            K::AgentFailed => "agent.failed",
            K::AgentRemoving => "agent.removing",
            K::AgentRemoved => "agent.removed",
            K::AgentLiveness => "agent.liveness",
            K::AgentUpdated => "agent.updated",
            K::LineageAdopted => "lineage.adopted",
            K::LineageOrphaned => "lineage.orphaned",
            K::LineageRevived => "lineage.revived",
            K::LineageReaped => "lineage.reaped",
            K::LineageAsk => "lineage.ask",
            K::LineageEnded => "lineage.ended",
            K::TurnAccepted => "turn.accepted",
            K::TurnStarted => "turn.started",
            K::TurnStepStarted => "turn.step_started",
            K::TurnStepRestarted => "turn.step_restarted",
            K::TurnText => "turn.text",
            K::TurnToolCall => "turn.tool_call",
            K::TurnToolResult => "turn.tool_result",
            K::TurnStepFinished => "turn.step_finished",
            K::TurnFinished => "turn.finished",
            K::TurnInterrupted => "turn.interrupted",
            K::TurnFailed => "turn.failed",
            K::SessionCompacted => "session.compacted",
            K::SessionForked => "session.forked",
            K::SessionRewound => "session.rewound",
            K::SessionBranchActivated => "session.branch_activated",
            K::SessionDeleted => "session.deleted",
            K::JobSubmitted => "job.submitted",
            K::JobStarted => "job.started",
            K::JobOutput => "job.output",
            K::JobFinished => "job.finished",
            K::JobCancelled => "job.cancelled",
            K::WorkQuarantined => "work.quarantined",
            K::WorkReleased => "work.released",
        }
    }

    pub fn from_code(code: i64) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| kind.code() == code)
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
    #[prost(string, optional, tag = "27")]
    pub lineage: Option<String>,
    #[prost(uint64, optional, tag = "28")]
    pub cached_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "29")]
    pub micro_usd: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub retry_at_ms: Option<i64>,
    /// Settings.
    #[prost(string, repeated, tag = "31")]
    pub keys: Vec<String>,
    /// The first turn that a model reads of a compacted session.
    #[prost(uint32, optional, tag = "32")]
    pub from_turn: Option<u32>,
    /// The turn that a new one shall do better than.
    #[prost(string, optional, tag = "33")]
    pub replaces: Option<String>,
    /// The session that another is a copy of.
    #[prost(string, optional, tag = "34")]
    pub origin: Option<String>,
    /// A turn's place in its session.
    #[prost(uint32, optional, tag = "35")]
    pub number: Option<u32>,
    #[prost(string, optional, tag = "36")]
    pub job: Option<String>,
    /// What a job has written so far.
    #[prost(uint64, optional, tag = "37")]
    pub stdout_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "38")]
    pub stderr_bytes: Option<u64>,
    /// The limit that a tool call or a job ran into.
    #[prost(string, optional, tag = "40")]
    pub cause: Option<String>,
    /// Work that is set aside.
    #[prost(string, optional, tag = "41")]
    pub work: Option<String>,
    /// How often the daemon died while it computed that work.
    #[prost(uint32, optional, tag = "42")]
    pub deaths: Option<u32>,
}

impl EventData {
    /// How much it is, in bytes.
    pub fn weight(&self) -> usize {
        prost::Message::encoded_len(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_code_and_word() {
        let codes: std::collections::BTreeSet<i64> = EventKind::ALL.iter().map(|kind| kind.code()).collect();
        let words: std::collections::BTreeSet<&str> = EventKind::ALL.iter().map(|kind| kind.word()).collect();
        assert_eq!((codes.len(), words.len()), (EventKind::ALL.len(), EventKind::ALL.len()));
        for kind in EventKind::ALL {
            assert_eq!(EventKind::from_code(kind.code()), Some(kind));
        }
    }
}

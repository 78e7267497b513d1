//! The log of events, in pages and live. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agents::AgentView;
use crate::events::Event;
use crate::jobs::JobView;
use crate::sandboxes::{ExecView, SandboxView};
use crate::turns::TurnView;

params! {
    pub struct EventListParams {
        since: Option<u64>,
        /// The newest ones before this sequence, in place of the oldest ones after `since`; past the end it is the end.
        before: Option<u64>,
        agent: Option<String>,
        session: Option<String>,
        /// A sandbox that belongs to no agent, also one that was deleted.
        #[serde(skip_serializing_if = "Option::is_none")]
        sandbox: Option<String>,
        kind: Option<String>,
        limit: Option<u32>,
    }

    pub struct AttachParams {
        agent: Option<String>,
        session: Option<String>,
        job: Option<String>,
        /// A sandbox that belongs to no agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        sandbox: Option<String>,
        all: bool,
        /// Everything after this sequence, then live. Absent: from now on.
        since: Option<u64>,
        /// The log that `since` refers to, from an earlier attach.
        log: Option<String>,
    }

    pub struct DetachParams {
        attachment: u64,
    }
}

shapes! {
    pub struct EventList {
        events: Vec<Event>,
        /// The log's newest sequence.
        head: u64,
        log: String,
        /// Pass it as `since` for the next page, when there is one; as `before` when that was given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<u64>,
    }

    pub struct Attached {
        attachment: u64,
        epoch: u64,
        log: String,
        /// Where the replay starts: everything after this follows.
        seq: u64,
        state: AttachState,
    }

    /// What is there now, so that a client can draw before the first event.
    #[derive(Default)]
    pub struct AttachState {
        agents: Vec<AgentView>,
        /// Turns that are queued or running, with the text so far.
        turns: Vec<TurnView>,
        /// Pending and running jobs. Attached to one job: that job, in any state.
        #[serde(default)]
        jobs: Vec<JobView>,
        /// Attached to a sandbox: that sandbox, in any state. Attached to all: those that are not at rest.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sandboxes: Vec<SandboxView>,
        /// The execs that run in these.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        execs: Vec<ExecView>,
    }
}

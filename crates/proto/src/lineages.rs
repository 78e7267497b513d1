//! Lineages: the identity of an agent's work. Fields are added, never renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::turns::TurnView;

params! {
    pub struct LineageListParams {
        /// Of this agent, which may be removed if its whole id is given.
        agent: Option<String>,
        /// active, orphaned, ask_pending, reaped or ended.
        status: Option<String>,
        after: Option<String>,
        limit: Option<u32>,
    }

    /// A lineage named by id or unique id prefix, or by its agent.
    pub struct LineageRef {
        lineage: String,
    }

    pub struct LineageResolveParams {
        lineage: String,
        /// revive or reap.
        decision: String,
        request_id: Option<String>,
    }

    pub struct LineageSnapshotParams {
        /// As in `LineageRef`.
        lineage: String,
        /// Sessions after this one: the `next` of an earlier page.
        after: Option<String>,
        limit: Option<u32>,
    }

    pub struct LineageMessagesParams {
        /// As in `LineageRef`.
        lineage: String,
        session: String,
        /// Of this many turns, from `lineage/snapshot`; absent: all up to the boundary. Never beyond it.
        turns: Option<u32>,
        /// The `next` of an earlier page.
        after: Option<String>,
        limit: Option<u32>,
    }
}

shapes! {
    /// The identity of an agent's work across processes, restarts and clients.
    pub struct LineageView {
        id: String,
        agent: String,
        agent_name: String,
        /// active, orphaned, ask_pending, reaped or ended.
        status: String,
        /// Of an ended one: killed, exhausted or removed.
        ended_reason: Option<String>,
        /// What happens when its process dies: revive, reap or ask.
        policy: String,
        /// How often a new process took over.
        revivals: u32,
        /// Deaths in a row, without a finished turn between them.
        deaths: u32,
        /// How its process died last.
        detail: Option<String>,
        last_turn: Option<String>,
        created_at: String,
        ended_at: Option<String>,
    }

    /// A lineage and its open work.
    pub struct LineageDetail {
        #[serde(flatten)]
        lineage: LineageView,
        /// Of one that is orphaned or waits for a decision: since when.
        since: Option<String>,
        /// Turns that are not over, with their steps: those with the status `intent` have no outcome yet.
        open_turns: Vec<TurnView>,
    }

    pub struct LineageList {
        lineages: Vec<LineageView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }
}

//! Agents: created, listed, changed. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::images::{CapabilityView, NetworkView};
use crate::jobs::JobCounts;
use crate::quarantine::QuarantineView;
use crate::turns::UsageView;

params! {
    pub struct AgentCreateParams {
        /// A directory with an Agentfile, or an Agentfile, on the daemon's host. Exactly one of `path`, `content` and `image`.
        path: Option<String>,
        /// The text of an Agentfile.
        content: Option<String>,
        /// The name or digest of a local image, or the name of one in a registry, which the agent is then pulling.
        image: Option<String>,
        name: Option<String>,
        model: Option<String>,
        env: BTreeMap<String, String>,
        labels: BTreeMap<String, String>,
        mounts: Vec<Mount>,
        build_args: BTreeMap<String, String>,
        /// Settings of the runtime, before what the image says.
        configs: BTreeMap<String, String>,
        /// `host:/path/program` or the image of a tool, before what the image says.
        runtime: Option<String>,
        /// Beside those of the image.
        capabilities: Vec<String>,
        /// As LIMIT in an Agentfile, before what the image says: memory, pids, cpu-time, disk, output and the budgets.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        limits: BTreeMap<String, String>,
        /// revive, reap or ask; before what the Agentfile says and what the daemon is set to.
        revival_policy: Option<String>,
        request_id: Option<String>,
    }

    pub struct AgentListParams {
        /// Also agents that are stopped or failed. Removed ones are never listed.
        all: bool,
        labels: BTreeMap<String, String>,
        /// Also what the turns of each agent used.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        usage: bool,
        after: Option<String>,
        limit: Option<u32>,
    }

    /// An agent named by id, name or unique id prefix.
    pub struct AgentRef {
        agent: String,
        request_id: Option<String>,
    }

    /// An agent to stop or to restart.
    pub struct AgentStopParams {
        agent: String,
        /// What happens to its jobs: `cancel` (the default), or `refuse` to change nothing while a job runs.
        jobs: Option<String>,
        request_id: Option<String>,
    }

    pub struct AgentRemoveParams {
        agent: String,
        /// Stop it first when it runs.
        force: bool,
        request_id: Option<String>,
    }

    pub struct AgentLogsParams {
        agent: String,
        /// The newest lines; 200 when absent.
        lines: Option<u32>,
        /// Only output after this byte offset (for following).
        after: Option<u64>,
        /// Whether lines for debugging are included.
        #[serde(default)]
        debug: bool,
    }

    /// The settings to change. Absent ones stay.
    pub struct AgentUpdateParams {
        agent: String,
        model: Option<String>,
        /// Null takes a variable away.
        env: BTreeMap<String, Option<String>>,
        /// CONFIG values, before those of the image. Null goes back to the image's.
        configs: BTreeMap<String, Option<String>>,
        /// Null takes a label away.
        labels: BTreeMap<String, Option<String>>,
        /// Each replaces the one at the same target.
        mounts: Vec<Mount>,
        /// Targets whose mount is taken away.
        unmounts: Vec<String>,
        /// As LIMIT in an Agentfile: memory, pids, cpu-time, disk, output and the budgets.
        limits: BTreeMap<String, String>,
        /// revive, reap or ask.
        revival_policy: Option<String>,
        /// Another image: as for `agent/create`, at most one of `path`, `content` and `image`.
        path: Option<String>,
        content: Option<String>,
        image: Option<String>,
        build_args: BTreeMap<String, String>,
        request_id: Option<String>,
    }
}

shapes! {
    pub struct Mount {
        host: String,
        target: String,
        #[serde(default)]
        read_only: bool,
        /// The description for the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
        /// Whether the agent gets root's rights in a path of root. The rights of other owners need no such word.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        map_root: bool,
        /// In replies, the owner whose rights the agent has, as `UID:GID`, or `UID` where the group is not mapped. Absent: the
        /// agent has those of its own user (`uid` of the agent), or of the daemon's where it has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
    }

    pub struct AgentView {
        id: String,
        name: String,
        image: String,
        image_digest: String,
        model: String,
        /// pulling, starting, ready, working, stopped, failed, removing or removed.
        status: String,
        failure_reason: Option<String>,
        failure_detail: Option<String>,
        /// Failures in a row of one that starts itself again; absent when there were none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<u32>,
        /// When one that failed is started again by itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_at: Option<String>,
        lineage: String,
        /// Null: this release does not measure how full a context is.
        context_state: Option<String>,
        liveness: Option<String>,
        last_heartbeat_at: Option<String>,
        /// The keeper's process id on this host, while it lives.
        pid: Option<u32>,
        started_at: Option<String>,
        created_at: String,
        labels: BTreeMap<String, String>,
        mounts: Vec<Mount>,
        sandbox: String,
        #[serde(default)]
        network: NetworkView,
        isolation: Vec<LayerView>,
        #[serde(default)]
        capabilities: Vec<CapabilityView>,
        #[serde(default)]
        limits: Vec<LimitView>,
        /// Configured limits that this release does not enforce.
        #[serde(default)]
        limits_not_enforced: Vec<String>,
        /// What its turns used; in `agent/get`, and in listings that ask for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<UsageView>,
        /// Its work in quarantine: what its turns wait for, and its pull. Absent when there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        quarantine: Vec<QuarantineView>,
        /// What its parked turns wait for, one entry for each reason and provider; in listings and `agent/get`. Absent when none is parked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waiting: Vec<AgentWaitView>,
    }

    /// Why turns of an agent are parked.
    pub struct AgentWaitView {
        /// `provider`: the provider of its model does not answer.
        reason: String,
        provider: Option<String>,
        /// How many turns wait for it.
        turns: u32,
        /// Of the newest failure.
        code: String,
        message: String,
        hint: Option<String>,
        /// How often the provider failed in a row.
        attempt: u32,
        /// The first failure of the turn that has waited longest.
        since: String,
        /// When the provider is tried again.
        next_at: Option<String>,
        /// When the first of the turns fails, if the provider has not answered by then.
        until: Option<String>,
    }

    /// What an agent's sandbox may use.
    pub struct LimitView {
        /// memory, pids, cpu_time, disk or output.
        name: String,
        /// Bytes, processes, or milliseconds. Absent: it is decided at the next start.
        limit: Option<u64>,
        /// `agent` if it is configured, else `default`.
        source: String,
        /// What enforces it, while the sandbox lives.
        by: Option<String>,
    }

    /// An agent after an update, and from when on it counts.
    pub struct AgentUpdated {
        #[serde(flatten)]
        agent: AgentView,
        /// `now` (its runtime is being replaced, or need not be), `after_turns` or `next_start`.
        in_force: String,
        /// With `after_turns`: those that run on what was before …
        #[serde(default)]
        after_turns: Vec<String>,
        /// … and the jobs that do. Turns go on meanwhile, on what was before.
        #[serde(default)]
        after_jobs: Vec<String>,
    }

    pub struct AgentDetail {
        #[serde(flatten)]
        agent: AgentView,
        root: String,
        /// The sandbox's counter: raised by every start, kept by adoption and by a revival in place.
        incarnation: u32,
        /// The runtime's counter: raised by every process that is started as its runtime.
        runs: u32,
        /// The runtime's process id on this host, while it lives. `pid` is its keeper's.
        runtime_pid: Option<u32>,
        /// What happens when its process dies: revive, reap or ask.
        revival_policy: String,
        /// How many tokens its model reads and writes in one call, where that is known.
        context_window: Option<u64>,
        uid: Option<u32>,
        /// Directories and programs of the host that it sees, read-only, because its `host:` programs need them.
        #[serde(default)]
        host_dirs: Vec<String>,
        tools: Vec<ToolView>,
        configs: BTreeMap<String, String>,
        /// Keys only: values may be secrets.
        env_keys: Vec<String>,
        sessions: u64,
        #[serde(default)]
        jobs: JobCounts,
        agentfile: String,
    }

    pub struct ToolView {
        name: String,
        description: String,
        source: String,
        /// Where its program is: of a host program, where it was found when the agent was created.
        path: Option<String>,
        digest: Option<String>,
        safe: bool,
        /// Whether it comes with an image. A program of the host does not.
        #[serde(default)]
        portable: bool,
        /// What this tool's source means for isolation.
        note: Option<String>,
        /// Of the tool of SHELL: what its command lines can start beside the agent's tools.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opens: Option<String>,
    }

    /// One layer of the fence and whether it holds.
    pub struct LayerView {
        name: String,
        in_force: bool,
        why: Option<String>,
    }

    pub struct AgentList {
        agents: Vec<AgentView>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    }

    pub struct AgentLogs {
        path: String,
        text: String,
        /// The byte offset after `text`: pass it as `after` to follow.
        end: u64,
    }
}

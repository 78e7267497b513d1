//! Parameters and replies of every method. Fields are added, never renamed.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::events::Event;
use crate::images::{CapabilityView, NetworkView};
use crate::jobs::{JobCounts, JobView};
use crate::quarantine::QuarantineView;
use crate::sessions::ForkView;

macro_rules! shapes {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}

/// Parameters refuse unknown fields, so that a typing mistake is an error and not silence.
macro_rules! params {
    ($($(#[$meta:meta])* pub struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$fmeta])* pub $field: $type,)* })*
    };
}

params! {
    /// No parameters.
    pub struct Empty {}

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
        /// revive, reap or ask; before what the Agentfile says and what the daemon is set to.
        revival_policy: Option<String>,
        request_id: Option<String>,
    }

    pub struct AgentListParams {
        /// Also agents that are stopped or failed. Removed ones are never listed.
        all: bool,
        labels: BTreeMap<String, String>,
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
        /// What becomes of its jobs: `cancel` (when absent), or `refuse` to do nothing while one of them runs.
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
        /// Only what stands after this byte offset (for following).
        after: Option<u64>,
    }

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
        turn: String,
    }

    pub struct TurnInterruptParams {
        turn: String,
        request_id: Option<String>,
    }

    pub struct TurnListParams {
        session: String,
        /// Also turns that are not on the path of the session.
        all: bool,
        after: Option<String>,
        limit: Option<u32>,
    }

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

    pub struct ProviderAddParams {
        name: String,
        kind: String,
        base_url: Option<String>,
        api_key: Option<String>,
        models: Vec<String>,
        request_id: Option<String>,
    }

    pub struct ProviderListParams {
        /// Show keys instead of masking them.
        reveal: bool,
    }

    pub struct ProviderRef {
        name: String,
        request_id: Option<String>,
    }

    pub struct ProviderTestParams {
        name: String,
        /// The model to try; the first that the provider is configured with when absent.
        model: Option<String>,
        request_id: Option<String>,
    }

    pub struct EventListParams {
        since: Option<u64>,
        /// The newest ones before this sequence, in place of the oldest ones after `since`; past the end it is the end.
        before: Option<u64>,
        agent: Option<String>,
        session: Option<String>,
        kind: Option<String>,
        limit: Option<u32>,
    }

    pub struct AttachParams {
        agent: Option<String>,
        session: Option<String>,
        job: Option<String>,
        all: bool,
        /// Everything after this sequence, then live. Absent: from now on.
        since: Option<u64>,
        /// The log that `since` is of, as an earlier attach told it.
        log: Option<String>,
    }

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
        /// Of so many turns, as `lineage/snapshot` told; absent: of all up to the boundary. Never beyond it.
        turns: Option<u32>,
        /// The `next` of an earlier page.
        after: Option<String>,
        limit: Option<u32>,
    }

    pub struct DetachParams {
        attachment: u64,
    }

    pub struct ShutdownParams {
        /// End the agents too.
        agents: bool,
        request_id: Option<String>,
    }

    pub struct ReapParams {
        request_id: Option<String>,
    }

    pub struct ReloadParams {
        request_id: Option<String>,
    }

    /// What of an agent is to be another; what is absent stays.
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
    pub struct Done {
        done: bool,
    }

    pub struct Mount {
        host: String,
        target: String,
        #[serde(default)]
        read_only: bool,
        /// What the agent is told about it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        description: Option<String>,
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
        context_state: String,
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
        /// Limits that were asked for and that this release does not enforce.
        #[serde(default)]
        limits_not_enforced: Vec<String>,
        /// Its work in quarantine: what its turns wait for, and its pull. Absent when there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        quarantine: Vec<QuarantineView>,
    }

    /// What an agent's sandbox may use.
    pub struct LimitView {
        /// memory, pids, cpu_time, disk or output.
        name: String,
        /// Bytes, processes, or milliseconds. Absent: it is decided at the next start.
        limit: Option<u64>,
        /// `agent` when it was asked for, else `default`.
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

    /// What a sweep over the sandboxes found and took away.
    pub struct Reaped {
        /// Sandboxes that have a directory.
        probed: u64,
        /// Those whose keeper lives.
        alive: u64,
        /// Dead ones that are still needed: their agent is about to go on, or its open work needs what they left.
        kept: u64,
        pruned: Vec<PrunedView>,
        /// Agents that were recorded as running and whose sandbox is dead; what becomes of them is their lineages'
        /// business.
        dead: Vec<String>,
        /// Agents whose heartbeat was forgotten.
        forgotten: u64,
        /// Dead ones that could not be taken away.
        failed: Vec<NotPrunedView>,
    }

    /// What a reload of the settings did.
    pub struct Reloaded {
        /// The file that was read; none when there is none.
        file: Option<String>,
        /// In effect for whatever is begun from now on.
        changed: Vec<SettingChange>,
        /// These count from the next start of the daemon on.
        needs_restart: Vec<SettingChange>,
        /// Values of the file that do not count.
        overridden: Vec<Overridden>,
    }

    pub struct SettingChange {
        key: String,
        from: Value,
        to: Value,
    }

    pub struct Overridden {
        key: String,
        /// flag or env.
        by: String,
        /// What is in effect.
        value: Value,
        /// What the file says.
        file: Value,
    }

    pub struct PrunedView {
        sandbox: String,
        /// None: nobody has it any more.
        agent: Option<String>,
        why: String,
    }

    pub struct NotPrunedView {
        sandbox: String,
        detail: String,
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
        /// The turn that it was asked to do better than.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
        /// queued, running, waiting, done, interrupted or failed.
        status: String,
        /// What a turn that is queued or waiting waits for: `agent` (it is not ready), `session` (turns before it), `slot`
        /// (max-concurrent agents work), `update` (its agent is about to change) or `quarantine` (what it asks for killed the daemon
        /// several times, and an operator has to decide).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<String>,
        /// The work in quarantine that an operator has to decide on before this turn can go on. Its `turn` is this one, or one
        /// before it in the session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        quarantine: Option<QuarantineView>,
        /// The answer; while the turn runs or when it broke off, what there is of it.
        text: String,
        /// Whether `text` is only a part of what the model would have said.
        partial: bool,
        steps: Vec<StepView>,
        usage: UsageView,
        error: Option<TurnError>,
        created_at: String,
        ended_at: Option<String>,
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

    pub struct SessionView {
        id: String,
        agent: String,
        /// The agent may be removed: its sessions stay until they are deleted.
        agent_name: String,
        agent_removed: bool,
        sender: Option<String>,
        /// The first words that were said in it; listings and `session/get` have it.
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
        context_state: String,
        context_used_pct: u32,
        generation: u32,
        epoch: u32,
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
        /// For a user's message: what the model was told before it by the daemon, such as jobs that ended.
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
        /// What stands before those messages.
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

    pub struct ProviderView {
        name: String,
        kind: String,
        base_url: Option<String>,
        /// Masked unless revealed.
        api_key: Option<String>,
        models: Vec<String>,
        builtin: bool,
        /// Why it cannot be called, when it cannot.
        problem: Option<String>,
    }

    pub struct ProviderList {
        providers: Vec<ProviderView>,
        /// Why the file on disk is not in effect, when it is not.
        error: Option<String>,
    }

    pub struct ProviderTested {
        ok: bool,
        ms: u64,
        /// What it offers, as far as it tells.
        models: Vec<String>,
        /// The model that answered; absent when there was none to ask.
        answered: Option<String>,
    }

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
    pub struct AttachState {
        agents: Vec<AgentView>,
        /// Turns that are queued or running, with the text so far.
        turns: Vec<TurnView>,
        /// Jobs that wait or run; attached to one job, that one, however it stands.
        #[serde(default)]
        jobs: Vec<JobView>,
    }

    pub struct ConfigValue {
        value: Value,
        /// flag, env, file or default.
        source: String,
    }

    pub struct AgentCounts {
        total: u64,
        running: u64,
        working: u64,
    }

    /// The file system of the state directory.
    pub struct StorageView {
        /// enough, low (nothing new is begun), read_only (nothing can be recorded) or away (the store cannot be reached).
        state: String,
        /// Since when it is not enough.
        since: Option<String>,
        free_bytes: u64,
        /// What the daemon keeps back to record outcomes with.
        reserve_bytes: u64,
    }

    /// The TCP listener.
    pub struct HttpView {
        /// listening, taken (another program has the address; it is tried again until it is free), no_certificate (TLS
        /// is wanted and its files cannot be used) or off.
        state: String,
        /// What is listened on, or wanted.
        addr: Option<String>,
        /// Where it listens, with `https://` where it speaks TLS.
        #[serde(default)]
        url: Option<String>,
        /// The beginning of the SHA-256 of the certificate that new connections get.
        #[serde(default)]
        certificate: Option<String>,
        /// Why the address is not listened on.
        reason: Option<String>,
    }

    pub struct Info {
        version: String,
        epoch: u64,
        log: String,
        executor: String,
        socket: String,
        /// Where the TCP listener is; none when there is none.
        http_addr: Option<String>,
        #[serde(default = "HttpView::unknown")]
        http: HttpView,
        data_dir: String,
        config_file: Option<String>,
        pid: u32,
        started_at: String,
        agents: AgentCounts,
        storage: StorageView,
        isolation: Vec<LayerView>,
        config: BTreeMap<String, ConfigValue>,
        /// Things a person should look at.
        warnings: Vec<String>,
        /// Work that killed the daemon several times and is set aside.
        #[serde(default)]
        quarantine: Vec<QuarantineView>,
    }

    pub struct MethodSchema {
        name: String,
        params: Value,
        result: Value,
        mutates: bool,
    }

    pub struct Discovery {
        version: String,
        methods: Vec<MethodSchema>,
        event: Value,
        delta: Value,
        output: Value,
        gap: Value,
        progress: Value,
        error: Value,
        event_kinds: Vec<String>,
        error_codes: BTreeMap<String, String>,
    }
}

impl HttpView {
    /// A daemon of an earlier release does not tell.
    fn unknown() -> HttpView {
        HttpView { state: "unknown".to_owned(), addr: None, url: None, certificate: None, reason: None }
    }
}

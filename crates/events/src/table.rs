//! Every kind of event, in one table.

use crate::kind::events;

events! {
    /// A daemon started.
    1 "daemon.started" DaemonStarted {
        /// How many daemons started on this state directory, this one included.
        #[prost(uint64, tag = "21")]
        epoch: u64,
        /// The release of the daemon.
        #[prost(string, tag = "22")]
        version: String,
    }
    /// Settings were reloaded.
    2 "daemon.reloaded" DaemonReloaded {
        /// Those that changed.
        #[prost(string, repeated, tag = "31")]
        keys: Vec<String>,
    }
    /// An agent gets what it needs from images.
    10 "agent.pulling" AgentPulling {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// Failed starts in a row.
        #[prost(uint32, optional, tag = "4")]
        attempt: Option<u32>,
    }
    /// The sandbox of an agent is started.
    11 "agent.starting" AgentStarting {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// An agent is ready, and nothing of it is in flight.
    12 "agent.ready" AgentReady {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// A turn or a job of an agent is in flight.
    13 "agent.working" AgentWorking {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// An agent was stopped.
    14 "agent.stopped" AgentStopped {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// An agent failed.
    15 "agent.failed" AgentFailed {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// Failed starts in a row.
        #[prost(uint32, optional, tag = "4")]
        attempt: Option<u32>,
        /// `pull`, `init`, `model`, `crashed` and others.
        #[prost(string, tag = "19")]
        reason: String,
        /// What went wrong.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// When it is tried again.
        #[prost(int64, optional, tag = "30")]
        #[serde(default, rename = "retry_at", with = "crate::time::shown")]
        #[schemars(with = "Option<String>")]
        retry_at_ms: Option<i64>,
    }
    /// An agent is being removed.
    16 "agent.removing" AgentRemoving {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// An agent was removed.
    17 "agent.removed" AgentRemoved {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// How alive an agent looks has changed.
    18 "agent.liveness" AgentLiveness {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// `active`, `stale` or `crashed`.
        #[prost(string, tag = "9")]
        status: String,
    }
    /// An agent was updated.
    19 "agent.updated" AgentUpdated {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// From when on it counts: `now`, `next_start` or `after_turns`.
        #[prost(string, tag = "9")]
        status: String,
    }
    /// A new daemon found a live agent and adopted it.
    30 "lineage.adopted" LineageAdopted {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The incarnation of the sandbox.
        #[prost(uint32, tag = "25")]
        incarnation: u32,
    }
    /// The process of an agent died.
    31 "lineage.orphaned" LineageOrphaned {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The lineage.
        #[prost(string, tag = "27")]
        lineage: String,
        /// How it died.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
    }
    /// A new process continues the work of one that died.
    32 "lineage.revived" LineageRevived {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The lineage.
        #[prost(string, tag = "27")]
        lineage: String,
        /// Deaths in a row.
        #[prost(uint32, tag = "4")]
        attempt: u32,
    }
    /// The work of a process that died was dropped.
    33 "lineage.reaped" LineageReaped {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The lineage.
        #[prost(string, tag = "27")]
        lineage: String,
        /// How it died.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
    }
    /// An operator has to decide about the work of a process that died.
    34 "lineage.ask" LineageAsk {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The lineage.
        #[prost(string, tag = "27")]
        lineage: String,
        /// How it died.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
    }
    /// A lineage is over.
    35 "lineage.ended" LineageEnded {
        /// The name of the agent.
        #[prost(string, tag = "5")]
        name: String,
        /// The lineage.
        #[prost(string, tag = "27")]
        lineage: String,
        /// `killed`, `removed` or `exhausted`.
        #[prost(string, tag = "19")]
        reason: String,
        /// How the last process died.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
    }
    /// A message was accepted.
    50 "turn.accepted" TurnAccepted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// Who sent it.
        #[prost(string, optional, tag = "26")]
        sender: Option<String>,
        /// The turn that this one replaces.
        #[prost(string, optional, tag = "33")]
        replaces: Option<String>,
    }
    /// A turn started.
    51 "turn.started" TurnStarted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
    }
    /// A model call or a tool call of a turn began.
    52 "turn.step_started" TurnStepStarted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        /// `model` or `tool`.
        #[prost(string, tag = "6")]
        kind: String,
        /// The model or the tool.
        #[prost(string, tag = "5")]
        name: String,
        /// For a model call.
        #[prost(uint32, optional, tag = "4")]
        attempt: Option<u32>,
        /// The tool call.
        #[prost(string, optional, tag = "7")]
        call: Option<String>,
    }
    /// A model call is made again: replace the text of its earlier attempts.
    53 "turn.step_restarted" TurnStepRestarted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        #[prost(uint32, tag = "4")]
        attempt: u32,
    }
    /// The model wrote text.
    54 "turn.text" TurnText {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        #[prost(uint32, tag = "4")]
        attempt: u32,
        /// Offset of the text in the text of its step, in bytes.
        #[prost(uint64, tag = "14")]
        offset: u64,
        #[prost(string, tag = "15")]
        text: String,
    }
    /// The model asks for a tool.
    55 "turn.tool_call" TurnToolCall {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        /// The tool call.
        #[prost(string, tag = "7")]
        call: String,
        /// The tool.
        #[prost(string, tag = "5")]
        name: String,
        /// As the model wrote them.
        #[prost(string, tag = "8")]
        arguments: String,
    }
    /// A tool call has a result.
    56 "turn.tool_result" TurnToolResult {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        /// The tool call.
        #[prost(string, tag = "7")]
        call: String,
        /// The tool.
        #[prost(string, tag = "5")]
        name: String,
        /// `done`, `failed`, `interrupted` or `unknown`.
        #[prost(string, tag = "9")]
        status: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// The size of the output.
        #[prost(uint64, tag = "12")]
        bytes: u64,
        /// The beginning of the result.
        #[prost(string, tag = "13")]
        preview: String,
    }
    /// A model call or a tool call of a turn is over.
    57 "turn.step_finished" TurnStepFinished {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the model call within the turn.
        #[prost(uint32, tag = "3")]
        step: u32,
        /// `model` or `tool`.
        #[prost(string, tag = "6")]
        kind: String,
        /// How it ended.
        #[prost(string, tag = "9")]
        status: String,
    }
    /// A turn is finished.
    58 "turn.finished" TurnFinished {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        #[prost(uint64, tag = "23")]
        input_tokens: u64,
        #[prost(uint64, tag = "24")]
        output_tokens: u64,
        /// Of the input, what the cache of the provider had.
        #[prost(uint64, tag = "28")]
        cached_tokens: u64,
        /// What it cost, in dollars; absent when a price is not known.
        #[prost(uint64, optional, tag = "29")]
        #[serde(default, rename = "cost_usd", with = "crate::money")]
        #[schemars(with = "Option<f64>")]
        micro_usd: Option<u64>,
    }
    /// A turn was interrupted.
    59 "turn.interrupted" TurnInterrupted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        #[prost(uint64, tag = "23")]
        input_tokens: u64,
        #[prost(uint64, tag = "24")]
        output_tokens: u64,
        /// Of the input, what the cache of the provider had.
        #[prost(uint64, tag = "28")]
        cached_tokens: u64,
        /// What it cost, in dollars; absent when a price is not known.
        #[prost(uint64, optional, tag = "29")]
        #[serde(default, rename = "cost_usd", with = "crate::money")]
        #[schemars(with = "Option<f64>")]
        micro_usd: Option<u64>,
    }
    /// A turn failed.
    60 "turn.failed" TurnFailed {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        #[prost(uint64, tag = "23")]
        input_tokens: u64,
        #[prost(uint64, tag = "24")]
        output_tokens: u64,
        /// Of the input, what the cache of the provider had.
        #[prost(uint64, tag = "28")]
        cached_tokens: u64,
        /// What it cost, in dollars; absent when a price is not known.
        #[prost(uint64, optional, tag = "29")]
        #[serde(default, rename = "cost_usd", with = "crate::money")]
        #[schemars(with = "Option<f64>")]
        micro_usd: Option<u64>,
        /// A stable code.
        #[prost(string, tag = "16")]
        code: String,
        #[prost(string, tag = "17")]
        message: String,
        /// The next step.
        #[prost(string, optional, tag = "18")]
        hint: Option<String>,
    }
    /// A turn is parked: it has no slot, and continues by itself when it can.
    61 "turn.waiting" TurnWaiting {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// What it waits for: `provider`.
        #[prost(string, tag = "19")]
        reason: String,
        /// The provider.
        #[prost(string, optional, tag = "50")]
        provider: Option<String>,
        /// The code of the newest failure.
        #[prost(string, tag = "16")]
        code: String,
        #[prost(string, tag = "17")]
        message: String,
        /// The next step, if the failure lasts.
        #[prost(string, optional, tag = "18")]
        hint: Option<String>,
        /// How often the provider failed in a row.
        #[prost(uint32, tag = "4")]
        attempt: u32,
        /// When the provider is tried again. If this is after `until`, the turn ends without another attempt.
        #[prost(int64, optional, tag = "30")]
        #[serde(default, rename = "next_at", with = "crate::time::shown")]
        #[schemars(with = "Option<String>")]
        next_at_ms: Option<i64>,
        /// The turn ends at this time, or with the answer to a call that it is making then.
        #[prost(int64, optional, tag = "51")]
        #[serde(default, rename = "until", with = "crate::time::shown")]
        #[schemars(with = "Option<String>")]
        until_ms: Option<i64>,
    }
    /// A model reads less of a session from now on.
    70 "session.compacted" SessionCompacted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// The turn.
        #[prost(string, tag = "2")]
        turn: String,
        /// The number of the epoch.
        #[prost(uint64, tag = "21")]
        epoch: u64,
        /// The first turn that a model reads from now on.
        #[prost(uint32, tag = "32")]
        from_turn: u32,
        /// The strategy: `sliding`, `summarize` or `handoff`.
        #[prost(string, tag = "6")]
        kind: String,
        /// The size of the summary.
        #[prost(uint64, tag = "12")]
        bytes: u64,
        /// Why there is no summary.
        #[prost(string, optional, tag = "16")]
        code: Option<String>,
        #[prost(string, optional, tag = "17")]
        message: Option<String>,
    }
    /// A session was forked.
    71 "session.forked" SessionForked {
        /// The new session.
        #[prost(string, tag = "1")]
        session: String,
        /// The session that it is a copy of.
        #[prost(string, tag = "34")]
        origin: String,
        /// The last turn that was copied.
        #[prost(uint32, tag = "35")]
        number: u32,
    }
    /// A session was rewound.
    72 "session.rewound" SessionRewound {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// Its last turn now.
        #[prost(uint32, tag = "35")]
        number: u32,
    }
    /// Another branch of a session was made active.
    73 "session.branch_activated" SessionBranchActivated {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
        /// A turn of that branch.
        #[prost(string, tag = "2")]
        turn: String,
    }
    /// A session was deleted.
    74 "session.deleted" SessionDeleted {
        /// The session.
        #[prost(string, tag = "1")]
        session: String,
    }
    /// A job was submitted.
    80 "job.submitted" JobSubmitted {
        /// The job.
        #[prost(string, tag = "36")]
        job: String,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
        /// The turn that submitted it.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// A job started.
    81 "job.started" JobStarted {
        /// The job.
        #[prost(string, tag = "36")]
        job: String,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
        /// The turn that submitted it.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// A job has written more.
    82 "job.output" JobOutput {
        /// The job.
        #[prost(string, tag = "36")]
        job: String,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
        /// The turn that submitted it.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
    /// A job ended.
    83 "job.finished" JobFinished {
        /// The job.
        #[prost(string, tag = "36")]
        job: String,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
        /// The turn that submitted it.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        /// `done`, `error` or `cancelled`.
        #[prost(string, tag = "9")]
        status: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// Why, or what else is to say.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
    /// A job was cancelled.
    84 "job.cancelled" JobCancelled {
        /// The job.
        #[prost(string, tag = "36")]
        job: String,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
        /// The turn that submitted it.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        /// `done`, `error` or `cancelled`.
        #[prost(string, tag = "9")]
        status: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// Why, or what else is to say.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
    /// Work that killed the daemon several times was set aside.
    90 "work.quarantined" WorkQuarantined {
        /// The work.
        #[prost(string, tag = "41")]
        work: String,
        /// `model_call`, `schema_check`, `pull` or `request`.
        #[prost(string, tag = "6")]
        kind: String,
        /// `quarantined`.
        #[prost(string, tag = "9")]
        status: String,
        /// How often the daemon died while it computed that work.
        #[prost(uint32, tag = "42")]
        deaths: u32,
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// The turn.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
    }
    /// Work that was set aside is computed again or was dropped.
    91 "work.released" WorkReleased {
        /// The work.
        #[prost(string, tag = "41")]
        work: String,
        /// `model_call`, `schema_check`, `pull` or `request`.
        #[prost(string, tag = "6")]
        kind: String,
        /// `retried` or `dropped`.
        #[prost(string, tag = "9")]
        status: String,
        /// How often the daemon died while it computed that work.
        #[prost(uint32, tag = "42")]
        deaths: u32,
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// The turn.
        #[prost(string, optional, tag = "2")]
        turn: Option<String>,
        /// The session.
        #[prost(string, optional, tag = "1")]
        session: Option<String>,
    }
    /// A sandbox was accepted, for its first start or to be resumed.
    100 "sandbox.accepted" SandboxAccepted {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// The directory of a sandbox is made, and its keeper started.
    101 "sandbox.preparing" SandboxPreparing {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// A sandbox is ready for execs.
    102 "sandbox.ready" SandboxReady {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// A sandbox is being stopped.
    103 "sandbox.stop_requested" SandboxStopRequested {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// None of the processes of a sandbox is left.
    104 "sandbox.stopped" SandboxStopped {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// A sandbox could not be started, ended by itself, or could not be ended.
    105 "sandbox.failed" SandboxFailed {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
        /// The code of `error_code` in the sandbox.
        #[prost(string, tag = "45")]
        code: String,
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
    }
    /// A sandbox is being deleted.
    106 "sandbox.delete_requested" SandboxDeleteRequested {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// Nothing of a sandbox is left on the host. Its id is never used again.
    107 "sandbox.deleted" SandboxDeleted {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
    }
    /// An exec was accepted and is started.
    110 "exec.started" ExecStarted {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
        /// The exec.
        #[prost(string, tag = "46")]
        exec: String,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
    }
    /// An exec ran and ended, with any exit code.
    111 "exec.finished" ExecFinished {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
        /// The exec.
        #[prost(string, tag = "46")]
        exec: String,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// Why, or what else is to say.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
    /// An exec could not be started, or was lost.
    112 "exec.failed" ExecFailed {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
        /// The exec.
        #[prost(string, tag = "46")]
        exec: String,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        /// `not_found`, `not_executable`, `not_started` or `lost`.
        #[prost(string, tag = "45")]
        code: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// Why, or what else is to say.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
    /// An exec was cancelled, or ended with its sandbox.
    113 "exec.cancelled" ExecCancelled {
        /// The sandbox.
        #[prost(string, tag = "43")]
        sandbox: String,
        /// The exec.
        #[prost(string, tag = "46")]
        exec: String,
        /// The program.
        #[prost(string, tag = "5")]
        name: String,
        #[prost(sint32, optional, tag = "10")]
        exit_code: Option<i32>,
        /// The signal that ended it.
        #[prost(sint32, optional, tag = "11")]
        signal: Option<i32>,
        /// The limit that it ran into.
        #[prost(string, optional, tag = "40")]
        cause: Option<String>,
        /// Why, or what else is to say.
        #[prost(string, optional, tag = "20")]
        detail: Option<String>,
        /// What it has written to stdout.
        #[prost(uint64, tag = "37")]
        stdout_bytes: u64,
        /// What it has written to stderr.
        #[prost(uint64, tag = "38")]
        stderr_bytes: u64,
    }
}

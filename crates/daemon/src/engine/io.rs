//! What goes into the engine and what comes out of it. What clients ask for is in `commands`, what a step decided in
//! `batch`.

use lodge_core::epoch::{EpochWeight, Strategy};
use lodge_core::liveness::Liveness;
use lodge_core::quarantine::Work;
use lodge_core::record::{
    AgentRow, CallRecord, ExecRequest, FailureRecord, ImageRow, ReasoningRecord, RuntimeRecord, ToolRecord,
    Usage,
};
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, Cause, ExecId, JobId, SandboxId, SessionId, TurnId};
use serde_json::Value;

use super::jobs::{JobEffect, JobSeen, JobWish};
use super::{Command, Settings};

/// Names a caller that waits for an answer.
pub type Ticket = u64;

/// One thing that arrived.
#[derive(Debug)]
pub enum Input {
    Api { ticket: Ticket, request: Option<RequestKey>, command: Command },
    Seen(Seen),
}

/// A client-chosen id under which a change happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    pub caller: String,
    pub request_id: String,
    pub digest: [u8; 32],
}

/// What of an agent ended, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The runtime alone: its keeper lives, and tools go on.
    Runtime,
    /// The keeper, and with it everything.
    Sandbox,
}

/// Whether what failed is tried again without anybody asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// What was in the way may be gone by then.
    Later,
    /// It would fail in the same way for ever.
    Never,
}

/// What was observed.
#[derive(Debug)]
pub enum Seen {
    /// The runtime answered its probe. `running` are the turns it has in hand.
    RuntimeReady {
        agent: AgentId,
        run: u32,
        adopted: bool,
        running: Vec<TurnId>,
    },
    SpawnFailed {
        agent: AgentId,
        run: u32,
        detail: String,
    },
    /// It cannot be started: something is not there that it needs.
    Lacks {
        agent: AgentId,
        run: u32,
        lack: Lack,
        detail: String,
    },
    /// Everything that an agent needs is in the store of images.
    Pulled {
        agent: AgentId,
        /// Of the [`Effect::Pull`] that this answers.
        ask: u64,
        /// Images that are not recorded yet, or were only announced.
        rows: Vec<ImageRow>,
        /// All of its tools, those of the host unchanged.
        tools: Vec<ToolRecord>,
        runtime: Option<RuntimeRecord>,
    },
    PullFailed {
        agent: AgentId,
        ask: u64,
        detail: String,
        again: Again,
    },
    /// The pause after a failure is over.
    RetryDue {
        agent: AgentId,
        run: u32,
    },
    /// The settings of the daemon from now on.
    Configured(Settings),
    /// Somebody added or changed a provider.
    ProvidersChanged,
    ProbeTimedOut {
        agent: AgentId,
        run: u32,
    },
    /// The runtime took its leave, and nobody had asked for that.
    Exited {
        agent: AgentId,
        run: u32,
        code: i32,
        detail: String,
    },
    /// The runtime was ended by a signal, or its keeper and with it everything, or nothing was there when a daemon came back.
    Died {
        agent: AgentId,
        run: u32,
        part: Part,
        detail: String,
    },
    /// The runtime was ended because its sandbox had no memory left.
    OutOfMemory {
        agent: AgentId,
        run: u32,
        detail: String,
    },
    /// How alive it looks has changed.
    Silent {
        agent: AgentId,
        run: u32,
        level: Liveness,
        part: Part,
    },
    /// The pause before a revival is over.
    RevivalDue {
        agent: AgentId,
        run: u32,
    },
    /// The runtime will not run a turn.
    TurnRefused {
        agent: AgentId,
        turn: TurnId,
        why: String,
    },
    /// The sandbox could not be ended, as it was asked at that run.
    NotDown {
        agent: AgentId,
        run: u32,
        detail: String,
    },
    /// The sandbox is gone, as it was asked at that run.
    Down {
        agent: AgentId,
        run: u32,
    },
    /// Its files are gone, as asked.
    Cleared {
        agent: AgentId,
    },
    /// Its files could not be removed.
    NotCleared {
        agent: AgentId,
        detail: String,
    },
    Asked {
        agent: AgentId,
        id: Value,
        ask: Ask,
    },
    /// Tool calls that a keeper which was just connected knows of: those that run, and those that do not any more.
    ExecsFound {
        agent: AgentId,
        running: Vec<ExecId>,
        ended: Vec<ExecId>,
    },
    ExecEnded {
        exec: ExecId,
        end: ExecEnd,
    },
    ModelText {
        turn: TurnId,
        step: u32,
        attempt: u32,
        offset: u64,
        text: String,
    },
    ModelAnswered {
        turn: TurnId,
        step: u32,
        attempt: u32,
        answer: ModelAnswer,
    },
    ModelFailed {
        turn: TurnId,
        step: u32,
        attempt: u32,
        failure: ModelFailure,
    },
    Job(JobSeen),
    /// So many requests of this daemon's are on disk. `rest`: for a while, and nothing came since.
    Settled {
        requests: u64,
        rest: bool,
    },
}

/// What an agent needs before it can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    Image,
    /// A provider that offers its model.
    Model,
    /// A value that its image asks for.
    Config,
}

/// What a runtime asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    Model {
        turn: TurnId,
        step: u32,
        context: String,
        from_turn: u32,
    },
    Exec {
        turn: TurnId,
        step: u32,
        call: String,
        bin: String,
        args: Vec<String>,
        stdin: Vec<u8>,
        /// 0: as long as it takes.
        timeout_ms: u64,
    },
    /// From `from_turn` on, as a new epoch of the turn's session.
    Compact {
        turn: TurnId,
        from_turn: u32,
        strategy: Strategy,
    },
    /// A tool result that needed no program.
    Answer {
        turn: TurnId,
        step: u32,
        call: String,
        text: String,
        error: bool,
    },
    Finish {
        turn: TurnId,
        code: String,
        message: String,
    },
    /// One of the six tools for jobs.
    Job {
        turn: TurnId,
        step: u32,
        call: String,
        wish: JobWish,
    },
}

impl Ask {
    pub fn turn(&self) -> &TurnId {
        match self {
            Ask::Model { turn, .. }
            | Ask::Exec { turn, .. }
            | Ask::Compact { turn, .. }
            | Ask::Answer { turn, .. }
            | Ask::Finish { turn, .. }
            | Ask::Job { turn, .. } => turn,
        }
    }
}

/// How a tool call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEnd {
    pub how: ExecHow,
    /// The limit that it ran into.
    pub cause: Option<Cause>,
    /// What the model is told.
    pub text: String,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecHow {
    Exited {
        code: i32,
    },
    Killed {
        signal: i32,
    },
    NotStarted,
    /// Nobody knows.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAnswer {
    pub text: String,
    pub calls: Vec<CallRecord>,
    pub usage: Usage,
    pub reasoning: Option<ReasoningRecord>,
    /// Why it does not fit the schema that was asked for.
    pub misfit: Option<Misfit>,
}

/// An answer that does not fit its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    pub why: String,
    /// Whether another answer may fit: not if the check itself was given up.
    pub again: Again,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFailure {
    pub record: FailureRecord,
    pub retryable: bool,
    pub after_ms: Option<u64>,
}

/// Something to do in the world.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Make the agent's sandbox and runtime be there.
    Up {
        row: Box<AgentRow>,
        how: Up,
    },
    /// Find or bring everything that an agent needs from images, and say so. It takes the place of an earlier one for
    /// the same agent; `ask` tells the answers to this order from those to earlier ones.
    Pull {
        row: Box<AgentRow>,
        ask: u64,
    },
    /// What was pulled for this agent is recorded, or nobody waits for it any more: break it off, and hold nothing.
    DropPull {
        agent: AgentId,
    },
    /// An image is gone: remove the contents that nobody needs.
    CollectImages,
    /// Make the sandbox be gone. `run` tells the answers to this order from those to earlier ones.
    Down {
        agent: AgentId,
        sandbox: SandboxId,
        run: u32,
    },
    /// The runtime gives no sign of life: end it by the kill sequence.
    KillRuntime {
        agent: AgentId,
        run: u32,
    },
    /// The keeper gives no sign of life: end it, and with it everything.
    KillSandbox {
        agent: AgentId,
        sandbox: SandboxId,
        run: u32,
    },
    /// Say so when the pause before a revival is over.
    ReviveLater {
        agent: AgentId,
        run: u32,
        delay_ms: u64,
    },
    /// Say so when the pause after a failure is over.
    RetryLater {
        agent: AgentId,
        run: u32,
        delay_ms: u64,
    },
    /// Write a line into the agent's log.
    NoteFailure {
        agent: AgentId,
        line: String,
    },
    /// Remove what is left of an agent on disk, after its sandbox is gone.
    Clear {
        agent: AgentId,
        sandbox: SandboxId,
    },
    RunTurn {
        agent: AgentId,
        turn: TurnId,
        session: SessionId,
        number: u32,
        step: u32,
        calls: Vec<CallRecord>,
        epoch: EpochWeight,
    },
    DropTurn {
        agent: AgentId,
        turn: TurnId,
    },
    /// Answer what the runtime asked.
    Answer {
        agent: AgentId,
        id: Value,
        answer: Result<Value, FailureRecord>,
    },
    CallModel(Box<ModelOrder>),
    CancelModel {
        turn: TurnId,
    },
    StartExec {
        agent: AgentId,
        exec: ExecId,
        request: ExecRequest,
        safe: bool,
        resumed: bool,
    },
    KillExec {
        agent: AgentId,
        exec: ExecId,
    },
    ForgetExec {
        agent: AgentId,
        exec: ExecId,
    },
    /// Let a token open the doors, or close them where it did.
    Token(Box<TokenRow>),
    Job {
        agent: AgentId,
        what: JobEffect,
    },
    /// Work is set aside from now on, or not any more: deaths before that are not counted again.
    Quarantine {
        work: Work,
        is_aside: bool,
    },
    /// The output of these jobs is not to be kept any longer: remove it from the archive.
    RemoveOutput {
        jobs: Vec<JobId>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Up {
    /// A new incarnation.
    Start,
    /// Whatever lives there is ours; report what is found.
    Adopt,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOrder {
    pub agent: AgentId,
    pub model: String,
    pub session: SessionId,
    pub turn: TurnId,
    pub number: u32,
    pub step: u32,
    pub attempt: u32,
    pub from_turn: u32,
    pub context: String,
    /// The epoch whose summary stands before the messages.
    pub summary: Option<u32>,
    /// The newest message that the call must read: it is made once that one is recorded.
    pub message: u64,
    /// How much is to be read of the conversation, where that is known.
    pub bytes: Option<u64>,
    pub purpose: Purpose,
    pub delay_ms: u64,
}

/// What a model is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The next step of a turn.
    Step,
    /// To write down what was said in the turns up to this one. Its text is nobody's answer.
    Summary { upto: u32, strategy: Strategy },
}

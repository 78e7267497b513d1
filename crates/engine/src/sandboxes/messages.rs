//! What the engine has done in sandboxes and about them.

use lodge_core::epoch::EpochWeight;
use lodge_core::record::{AgentSpec, CallRecord, ExecRequest, FailureRecord};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId, TurnId};

use crate::turns::messages::{AskId, RuntimeAnswer};

/// Everything that is needed to start a sandbox, or to continue with one that runs.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxPlan {
    pub sandbox: SandboxId,
    /// Raised by every new sandbox under this id; an adopted keeper has its own.
    pub incarnation: u32,
    /// The agent that it belongs to, and whose runtime is in it.
    pub agent: AgentId,
    /// Numbers the starts of the runtime.
    pub run: u32,
    /// Whether that run of the runtime was ready before.
    pub was_ready: bool,
    /// The name of the agent, and of the sandbox's host.
    pub name: String,
    /// What its image is called.
    pub image: String,
    pub image_digest: String,
    /// User and group of its programs, when the daemon runs as root.
    pub uid: Option<u32>,
    /// Mounts, environment, network, limits, tools, runtime, configs and model.
    pub spec: AgentSpec,
}

/// What became of an order about a sandbox.
#[derive(Debug)]
pub enum SandboxSeen {
    /// The sandbox could not be ended, as it was asked at that run.
    NotDown { agent: AgentId, run: u32, detail: String },
    /// The sandbox is gone, as it was asked at that run.
    Down { agent: AgentId, run: u32 },
    /// Its files are gone, as asked.
    Cleared { agent: AgentId },
    /// Its files could not be removed.
    NotCleared { agent: AgentId, detail: String },
}

/// Something to do in a sandbox, or about it. One task per sandbox does them in the order of commits.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxEffect {
    /// Start the sandbox and its runtime, unless they run.
    Up {
        plan: Box<SandboxPlan>,
        how: Up,
    },
    /// End the sandbox. `run` distinguishes the answers to this order from those to earlier ones. `incarnation` is the
    /// newest that may live.
    Down {
        run: u32,
        incarnation: u32,
    },
    /// The runtime gives no sign of life: end it by the kill sequence.
    KillRuntime {
        run: u32,
    },
    /// The keeper gives no sign of life: end it, and with it everything.
    Kill {
        run: u32,
    },
    /// Write a line into the agent's log.
    NoteFailure {
        line: String,
    },
    /// Remove everything of the agent on disk, after its sandbox is gone.
    Clear,
    RunTurn {
        turn: TurnId,
        session: SessionId,
        number: u32,
        step: u32,
        calls: Vec<CallRecord>,
        epoch: EpochWeight,
    },
    DropTurn {
        turn: TurnId,
    },
    /// Answer what the runtime asked.
    Answer {
        id: AskId,
        answer: Result<RuntimeAnswer, FailureRecord>,
    },
    StartExec {
        exec: ExecId,
        request: ExecRequest,
        safe: bool,
        resumed: bool,
    },
    KillExec {
        exec: ExecId,
    },
    ForgetExec {
        exec: ExecId,
    },
    Job(JobOrder),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Up {
    /// A new incarnation.
    Start,
    /// Whatever lives there is ours; report what is found.
    Adopt,
}

/// Something to do with a job in its sandbox. All may be asked for twice. The sandbox may be gone by then: what is left of a
/// job lies in its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOrder {
    /// Start it, or find out how it stands: asking twice starts nothing twice. Its end is told whenever it comes.
    ///
    /// `resumed`: it may have been started before, by this daemon or another. One that nobody ever claimed in this boot
    /// is started; one that was claimed and has neither a process nor a record is lost.
    Start { job: JobId, resumed: bool },
    /// It is to be over: SIGKILL to it and all its descendants, if it runs. How it ended is told in any case, by its record
    /// if there is one; one that was never started is not started any more, and has ended as that.
    Kill { job: JobId },
    /// Its outcome and output are recorded elsewhere.
    Forget { job: JobId },
}

//! Orders of the engine about sandboxes, and observations.

use std::collections::BTreeMap;

use lodge_core::epoch::EpochWeight;
use lodge_core::record::{
    AgentSpec, CallRecord, ExecRequest, LimitsRecord, MountRecord, NetworkRecord, RuntimeRecord, ToolRecord,
};
use lodge_core::{AgentId, ExecId, JobId, SandboxId, SessionId, TurnId};

use crate::turns::messages::{RuntimeAnswer, RuntimeCallId};
use crate::turns::refusal::RuntimeCallRefusal;

/// The label that describes an agent, or an image.
pub const DESCRIPTION_LABEL: &str = "description";

/// Everything that is needed to start a sandbox, or to adopt a running one.
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
    /// The name of its image.
    pub image: String,
    pub image_digest: String,
    /// User and group of its programs, when the daemon runs as root.
    pub uid: Option<u32>,
    pub settings: SandboxSettings,
}

/// The settings of an agent that a sandbox and its runtime need. Each is explained in [`AgentSpec`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SandboxSettings {
    pub model: String,
    /// The agent's own description, in place of its image's.
    pub description: Option<String>,
    pub env: BTreeMap<String, String>,
    pub mounts: Vec<MountRecord>,
    pub tools: Vec<ToolRecord>,
    pub runtime: Option<RuntimeRecord>,
    pub limits: LimitsRecord,
    pub network: Option<NetworkRecord>,
    pub capabilities: Vec<String>,
    pub configs: BTreeMap<String, String>,
}

impl From<&AgentSpec> for SandboxSettings {
    fn from(spec: &AgentSpec) -> SandboxSettings {
        SandboxSettings {
            model: spec.model.clone(),
            description: spec.labels.get(DESCRIPTION_LABEL).cloned(),
            env: spec.env.clone(),
            mounts: spec.mounts.clone(),
            tools: spec.tools.clone(),
            runtime: spec.runtime.clone(),
            limits: spec.limits.unwrap_or_default(),
            network: spec.network.clone(),
            capabilities: spec.capabilities.clone(),
            configs: spec.configs.clone(),
        }
    }
}

/// The result of an order about a sandbox.
#[derive(Debug)]
pub enum SandboxObservation {
    /// The sandbox of that run could not be ended.
    NotDown { agent: AgentId, run: u32, detail: String },
    /// The sandbox of that run is gone.
    Down { agent: AgentId, run: u32 },
    /// Its files are removed.
    Cleared { agent: AgentId },
    /// Its files could not be removed.
    NotCleared { agent: AgentId, detail: String },
}

/// Work in or about a sandbox. One task per sandbox executes it in the order of commits.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxEffect {
    /// Start the sandbox and its runtime, unless they run.
    Up {
        plan: Box<SandboxPlan>,
        how: StartMode,
    },
    /// End the sandbox. `run` distinguishes the answers to this order from those to earlier ones. `incarnation` is the
    /// newest that may live.
    Down {
        run: u32,
        incarnation: u32,
    },
    /// The runtime is silent: end it by the kill sequence.
    KillRuntime {
        run: u32,
    },
    /// The keeper is silent: end it and everything in its namespace.
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
    /// Answer the runtime's request.
    Answer {
        id: RuntimeCallId,
        answer: Result<RuntimeAnswer, RuntimeCallRefusal>,
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
pub enum StartMode {
    /// A new incarnation.
    Start,
    /// Adopt the sandbox that exists, and report its state.
    Adopt,
}

/// Work on a job in its sandbox. Every order may be repeated. The sandbox may be gone by then: the job's files are
/// left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobOrder {
    /// Start it, or report its state: two orders start it once. Its end is reported whenever it comes.
    ///
    /// `resumed`: it may have been started before, by this daemon or another. If no keeper claimed it in this boot, it is
    /// started. If it was claimed and has neither a process nor a record, it is lost.
    Start { job: JobId, resumed: bool },
    /// End it: SIGKILL to it and all its descendants, if it runs. How it ended is reported in any case, by its record if
    /// there is one. A job that was never started ends as not started.
    Kill { job: JobId },
    /// Remove its files: its outcome and output are recorded elsewhere.
    Forget { job: JobId },
}

//! What the engine is asked and told about agents.

use std::collections::BTreeMap;

use lodge_core::lineage::Policy;
use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentSpec, LimitsRecord, MountRecord};
use lodge_core::{AgentId, LineageId, TurnId};

use crate::images::NewImage;

#[derive(Debug)]
pub enum AgentCommand {
    Create(Box<NewAgent>),
    Start {
        id: AgentId,
    },
    /// A new process in place of the current one; turns in flight are interrupted.
    Restart {
        id: AgentId,
        jobs: RunningJobs,
    },
    Update(Box<Update>),
    Stop {
        id: AgentId,
        jobs: RunningJobs,
    },
    /// Ends the agent and its lineage with it: its work is never continued.
    Kill {
        id: AgentId,
    },
    Remove {
        id: AgentId,
        force: bool,
    },
    SettleLineage(Box<Settlement>),
}

#[derive(Debug)]
pub struct NewAgent {
    pub name: NameChoice,
    /// What its image is called.
    pub called: String,
    pub image: NewImage,
    pub spec: AgentSpec,
}

#[derive(Debug)]
pub enum NameChoice {
    /// Exactly this one, or refuse.
    Exactly(String),
    /// This one, or the next free with a number.
    Like(String),
}

/// What becomes of a request that would end jobs which run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningJobs {
    Cancel,
    /// It is refused.
    Refuse,
}

/// What of an agent is to be another.
#[derive(Debug)]
pub struct Update {
    pub agent: AgentId,
    pub change: Change,
    /// The image that it names, which the store may not have.
    pub image: Option<NewImage>,
}

/// A value that is `None` is taken away.
#[derive(Debug, Default)]
pub struct Change {
    pub image: Option<ImageChange>,
    pub model: Option<String>,
    pub env: BTreeMap<String, Option<String>>,
    pub configs: BTreeMap<String, Option<String>>,
    pub labels: BTreeMap<String, Option<String>>,
    /// Each replaces the one at the same target.
    pub mounts: Vec<MountRecord>,
    /// Targets.
    pub unmounts: Vec<String>,
    pub limits: Option<LimitsRecord>,
    pub revival_policy: Option<Policy>,
}

/// Another image, and what an agent of either is when nobody chooses anything for it.
#[derive(Debug)]
pub struct ImageChange {
    pub name: String,
    pub digest: String,
    pub old: Box<AgentSpec>,
    pub new: Box<AgentSpec>,
}

/// What an operator decides about a lineage that waits for it.
#[derive(Debug)]
pub struct Settlement {
    pub agent: AgentId,
    pub lineage: LineageId,
    pub policy: Policy,
    /// For the answer: the newest turn of the lineage.
    pub last_turn: Option<TurnId>,
}

/// What was observed of an agent and its runtime.
#[derive(Debug)]
pub enum AgentSeen {
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
    /// The pause after a failure is over.
    RetryDue {
        agent: AgentId,
        run: u32,
    },
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
}

/// What of an agent ended, or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The runtime alone: its keeper lives, and tools go on.
    Runtime,
    /// The keeper, and with it everything.
    Sandbox,
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

/// Something to say after a pause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timer {
    /// Say so when the pause before a revival is over.
    Revival { agent: AgentId, run: u32, delay_ms: u64 },
    /// Say so when the pause after a failure is over.
    Retry { agent: AgentId, run: u32, delay_ms: u64 },
}

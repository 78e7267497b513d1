//! Commands and observations about agents, orders for them, and answers.

use std::collections::BTreeMap;

use lodge_core::lineage::Policy;
use lodge_core::liveness::Liveness;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentFact, AgentRow, AgentSpec, LimitsRecord, LineageRow, MountRecord};
use lodge_core::{AgentId, LineageId, TurnId};

use super::UpdateTiming;
use crate::images::NewImage;

#[derive(Debug)]
pub enum AgentCommand {
    Create(Box<NewAgent>),
    Start {
        id: AgentId,
    },
    /// Replaces the current process. Turns in flight are interrupted.
    Restart {
        id: AgentId,
        jobs: RunningJobs,
    },
    Update(Box<Update>),
    Stop {
        id: AgentId,
        jobs: RunningJobs,
    },
    /// Ends the agent and its lineage: its work never continues.
    Kill {
        id: AgentId,
    },
    Remove {
        id: AgentId,
        force: bool,
    },
    SettleLineage(Box<LineageResolution>),
}

#[derive(Debug)]
pub struct NewAgent {
    pub name: NameChoice,
    /// The name of its image.
    pub called: String,
    pub image: NewImage,
    pub spec: AgentSpec,
}

#[derive(Debug)]
pub enum NameChoice {
    /// Exactly this one, or refuse.
    Exactly(String),
    /// This one, or the next free name with a number.
    Like(String),
}

/// Whether a request may end running jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningJobs {
    Cancel,
    /// Refuse the request.
    Refuse,
}

/// Changes to an agent's settings.
#[derive(Debug)]
pub struct Update {
    pub agent: AgentId,
    pub change: Change,
    /// The new image, which the store may not have.
    pub image: Option<NewImage>,
}

/// A value of `None` removes the entry.
#[derive(Debug, Default)]
pub struct Change {
    pub image: Option<AgentImageChange>,
    pub model: Option<String>,
    pub env: BTreeMap<String, Option<String>>,
    pub configs: BTreeMap<String, Option<String>>,
    pub labels: BTreeMap<String, Option<String>>,
    /// Each replaces the mount at the same target.
    pub mounts: Vec<MountRecord>,
    /// Targets of mounts to remove.
    pub unmounts: Vec<String>,
    pub limits: Option<LimitsRecord>,
    pub revival_policy: Option<Policy>,
}

/// A new image, with the default settings of an agent of the old and of the new image.
#[derive(Debug)]
pub struct AgentImageChange {
    pub name: String,
    pub digest: String,
    pub old: Box<AgentSpec>,
    pub new: Box<AgentSpec>,
}

/// An operator's decision about a lineage that waits for it.
#[derive(Debug)]
pub struct LineageResolution {
    pub agent: AgentId,
    pub lineage: LineageId,
    pub policy: Policy,
    /// For the answer: the newest turn of the lineage.
    pub last_turn: Option<TurnId>,
}

/// Observations about an agent and its runtime.
#[derive(Debug)]
pub enum AgentObservation {
    /// The runtime answered its probe. `running` are the turns that it runs.
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
    /// The agent cannot start: a requirement is missing.
    Lacks {
        agent: AgentId,
        run: u32,
        lack: StartRequirement,
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
    /// The runtime exited unexpectedly.
    Exited {
        agent: AgentId,
        run: u32,
        code: i32,
        detail: String,
    },
    /// The runtime was killed by a signal, the keeper died with everything in it, or a new daemon found neither.
    Died {
        agent: AgentId,
        run: u32,
        part: AgentComponent,
        detail: String,
    },
    /// The runtime was killed because its sandbox ran out of memory.
    OutOfMemory {
        agent: AgentId,
        run: u32,
        detail: String,
    },
    /// Its liveness changed.
    Silent {
        agent: AgentId,
        run: u32,
        level: Liveness,
        part: AgentComponent,
    },
    /// The pause before a revival is over.
    RevivalDue {
        agent: AgentId,
        run: u32,
    },
    /// The store's answer about an agent that was not in memory.
    LookedUp {
        agent: AgentId,
        /// Of the [`AgentEffect::LookUp`] that this answers.
        ask: u64,
        found: AgentLookup,
    },
}

/// The result of a lookup in the store.
#[derive(Debug)]
pub enum AgentLookup {
    Found(Box<AgentFact>),
    /// The agent does not exist, or was removed.
    NotThere,
    /// The store could not be read.
    Unreadable,
}

/// The component of an agent that ended or does not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentComponent {
    /// The runtime only: its keeper lives, and tools keep running.
    Runtime,
    /// The keeper, and everything in its namespace.
    Sandbox,
}

/// A requirement for the start of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartRequirement {
    Image,
    /// A provider that offers its model.
    Model,
    /// A required value of its image.
    Config,
}

/// Work about an agent outside its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentEffect {
    /// Read an agent that is not in memory from the store, and report it.
    LookUp { agent: AgentId, ask: u64 },
    /// Report `RevivalDue` after the pause.
    RevivalTimer { agent: AgentId, run: u32, delay_ms: u64 },
    /// Report `RetryDue` after the pause.
    RetryTimer { agent: AgentId, run: u32, delay_ms: u64 },
}

#[derive(Debug, Clone)]
pub enum AgentAnswer {
    Agent(Box<AgentSnapshot>),
    Lineage(Box<LineageSnapshot>),
}

/// An agent as it is when a request is answered.
#[derive(Debug, Clone)]
pub struct AgentSnapshot {
    pub row: AgentRow,
    /// It has a turn or a job in flight.
    pub at_work: bool,
    pub quarantine: Vec<QuarantineRow>,
    /// For an update: when it takes effect.
    pub in_force: Option<UpdateTiming>,
}

#[derive(Debug, Clone)]
pub struct LineageSnapshot {
    pub row: LineageRow,
    pub agent_name: String,
    pub policy: Policy,
    pub last_turn: Option<TurnId>,
}

//! What goes into the engine and what comes out of it. Each aggregate defines its own part.

use lodge_core::quarantine::Work;
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, JobId, SandboxId, WorkId};

use crate::agents::messages::{AgentCommand, AgentSeen, Timer};
use crate::images::messages::{ImageCommand, PullEffect, PullSeen};
use crate::jobs::{JobCommand, JobEffect, JobSeen};
use crate::quarantine::Release;
use crate::sandboxes::messages::{SandboxEffect, SandboxSeen};
use crate::sessions::messages::SessionChange;
use crate::tokens::messages::TokenCommand;
use crate::turns::messages::{ModelEffect, TurnCommand, TurnSeen};
use crate::{Rendered, Settings};

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

/// What a client asks for.
#[derive(Debug)]
pub enum Command {
    Agent(AgentCommand),
    Turn(TurnCommand),
    Session(Box<SessionChange>),
    Token(TokenCommand),
    Job(JobCommand),
    Image(ImageCommand),
    /// Work that is set aside is computed again, or given up.
    ReleaseWork {
        id: WorkId,
        how: Release,
    },
    /// A request that was decided before, with its recorded answer: its caller hears that now, or when what was decided
    /// has come about.
    Again {
        /// The agent that the answer is about.
        agent: Option<AgentId>,
        answer: Rendered,
    },
    /// The settings were reloaded, and these keys differ. They count once this is recorded.
    Reloaded {
        keys: Vec<String>,
        answer: Rendered,
    },
    /// Keeps the answer to a change that was made elsewhere with the id of its request.
    Keep {
        answer: Rendered,
    },
}

/// What was observed.
#[derive(Debug)]
pub enum Seen {
    Agent(AgentSeen),
    Sandbox(SandboxSeen),
    Turn(TurnSeen),
    Pull(PullSeen),
    Job(JobSeen),
    /// The settings of the daemon from now on.
    Configured(Settings),
    /// Somebody added or changed a provider.
    ProvidersChanged,
    /// So many requests of this daemon's are on disk, and the events up to `seq`. `rest`: for a while, and nothing came
    /// since.
    Settled {
        requests: u64,
        seq: u64,
        rest: bool,
    },
}

/// Something to do in the world.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Sandbox {
        sandbox: SandboxId,
        /// The agent that owns the sandbox. Observations about the sandbox name this agent.
        agent: AgentId,
        what: SandboxEffect,
    },
    Model(ModelEffect),
    Timer(Timer),
    Pull(PullEffect),
    Job(JobEffect),
    /// Read what the store has of an agent that is not in memory, and say so.
    LookUp {
        agent: AgentId,
        ask: u64,
    },
    /// The output of these jobs is not to be kept any longer: remove it from the archive.
    RemoveOutput {
        jobs: Vec<JobId>,
    },
    /// Let a token open the doors, or close them where it did.
    Token(Box<TokenRow>),
    /// Work is set aside from now on, or not any more: deaths before that are not counted again.
    Quarantine {
        work: Work,
        is_aside: bool,
    },
}

/// Whether what failed is tried again without anybody asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// What was in the way may be gone by then.
    Later,
    /// It would always fail in the same way.
    Never,
}

//! Inputs and outputs of the engine. Each aggregate defines its own part.

use lodge_core::token::TokenRow;
use lodge_core::{AgentId, ExecId, SandboxId};

use crate::agents::messages::{AgentCommand, AgentEffect, AgentObservation};
use crate::images::messages::{ImageCommand, PullEffect, PullObservation};
use crate::jobs::{JobCommand, JobEffect, JobObservation};
use crate::quarantine::{WorkCommand, WorkEffect};
use crate::sandboxes::messages::{SandboxEffect, SandboxObservation};
use crate::sandboxes::standalone::messages::{SandboxCommand, StandaloneEffect, StandaloneObservation};
use crate::sessions::messages::SessionChange;
use crate::tokens::messages::TokenCommand;
use crate::turns::messages::{ModelEffect, TurnCommand, TurnObservation};
use crate::{RenderedAnswer, Settings};

/// Identifies a caller that waits for an answer.
pub type Ticket = u64;

/// One input.
#[derive(Debug)]
pub enum Input {
    Api { ticket: Ticket, request: Option<RequestKey>, command: Command },
    Seen(Observation),
}

/// A client-chosen id under which a change happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestKey {
    pub caller: String,
    pub request_id: String,
    pub digest: [u8; 32],
}

/// A client's request.
#[derive(Debug)]
pub enum Command {
    Agent(AgentCommand),
    Turn(TurnCommand),
    Session(Box<SessionChange>),
    Token(TokenCommand),
    Job(JobCommand),
    Sandbox(SandboxCommand),
    Image(ImageCommand),
    Work(WorkCommand),
    /// A repeated request with its recorded answer. The caller is answered now, or when the decision has taken effect.
    Again {
        /// The agent that the answer is about.
        agent: Option<AgentId>,
        answer: RenderedAnswer,
    },
    /// The settings were reloaded, and these keys differ. They apply once this is recorded.
    Reloaded {
        keys: Vec<String>,
        answer: RenderedAnswer,
    },
    /// Records the answer to a change that another component made, with the id of its request.
    Keep {
        answer: RenderedAnswer,
    },
}

/// Observations from outside the engine.
#[derive(Debug)]
pub enum Observation {
    Agent(AgentObservation),
    Sandbox(SandboxObservation),
    Standalone(StandaloneObservation),
    Turn(TurnObservation),
    Pull(PullObservation),
    Job(JobObservation),
    /// The settings of the daemon from now on.
    Configured(Settings),
    /// A provider was added or changed.
    ProvidersChanged,
    /// This many requests of this daemon are on disk, and the events up to `seq`. `rest`: nothing has arrived for a
    /// while.
    Settled {
        requests: u64,
        seq: u64,
        rest: bool,
    },
}

/// Work outside the engine.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    Sandbox {
        sandbox: SandboxId,
        /// The agent that owns the sandbox. Observations about the sandbox name this agent.
        agent: AgentId,
        what: SandboxEffect,
    },
    Agent(AgentEffect),
    /// Work in a sandbox that belongs to no agent.
    Standalone {
        sandbox: SandboxId,
        what: StandaloneEffect,
    },
    Model(ModelEffect),
    Pull(PullEffect),
    Job(JobEffect),
    /// Read the ids of a command about standalone sandboxes from the store, and report what they are.
    LookUpSandbox {
        ask: u64,
        sandbox: SandboxId,
        exec: Option<ExecId>,
    },
    /// Accept a token, or revoke it and close its connections.
    Token(Box<TokenRow>),
    Work(WorkEffect),
}

/// Whether a failed operation is retried automatically.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoRetry {
    /// The cause may be gone by then.
    Later,
    /// It would fail in the same way.
    Never,
}

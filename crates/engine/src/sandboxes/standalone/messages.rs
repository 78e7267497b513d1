//! Commands, observations and effects about standalone sandboxes.

use std::collections::BTreeMap;

use crate::sandboxes::messages::SandboxSettings;
use lodge_core::job::JobStreamBytes;
use lodge_core::sandbox::{ExecFailReason, SandboxFact, SandboxRecord};
use lodge_core::{Cause, ExecId, SandboxId};

use crate::{ExecOutcome, StartMode};

#[derive(Debug)]
pub enum SandboxCommand {
    Create(Box<NewSandbox>),
    Stop { id: SandboxId },
    Resume { id: SandboxId },
    Remove { id: SandboxId },
    RunExec(Box<NewExec>),
    CancelExec { id: ExecId },
}

/// A sandbox to create, as the API parsed it.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    /// The id that the client chose.
    pub id: Option<SandboxId>,
    pub record: SandboxRecord,
}

/// An exec to run, as the API parsed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewExec {
    pub sandbox: SandboxId,
    /// The id that the client chose.
    pub id: Option<ExecId>,
    pub command: Vec<String>,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: Vec<u8>,
}

/// Everything that is needed to start a standalone sandbox, or to adopt a running one.
#[derive(Debug, Clone, PartialEq)]
pub struct StandalonePlan {
    pub sandbox: SandboxId,
    pub incarnation: u32,
    /// User and group of its programs, when the daemon runs as root.
    pub uid: Option<u32>,
    /// Mounts, environment, network, limits and tools. There is no model, runtime or config.
    pub settings: SandboxSettings,
}

/// Work in or about a standalone sandbox. One task per sandbox executes it in the order of commits. Every effect may be
/// repeated.
#[derive(Debug, Clone, PartialEq)]
pub enum StandaloneEffect {
    Up {
        plan: Box<StandalonePlan>,
        how: StartMode,
    },
    /// End the sandbox. `incarnation` is the newest that may live.
    Down {
        incarnation: u32,
    },
    /// Remove what a sandbox without a keeper left of its processes. Its files stay.
    Tidy,
    /// Remove everything of a sandbox without a keeper.
    Remove,
    Exec(ExecOrder),
}

/// Work on an exec in its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOrder {
    /// Start it, or report its state. `resumed`: it may have been started before.
    Start { exec: ExecId, resumed: bool },
    /// End it and all of its descendants, if it runs. How it ended is reported in any case.
    Kill { exec: ExecId },
    /// Remove its claim and its exit record: its outcome is recorded elsewhere. Its output stays.
    Forget { exec: ExecId },
}

#[derive(Debug)]
pub enum StandaloneObservation {
    /// The keeper of this incarnation is connected, for the first time or again.
    Started {
        sandbox: SandboxId,
        incarnation: u32,
    },
    StartFailed {
        sandbox: SandboxId,
        incarnation: u32,
        detail: String,
    },
    /// The keeper is proven dead.
    Died {
        sandbox: SandboxId,
        incarnation: u32,
        detail: String,
    },
    /// None of its processes is left.
    Down {
        sandbox: SandboxId,
        incarnation: u32,
    },
    /// Its processes could not be ended.
    NotDown {
        sandbox: SandboxId,
        incarnation: u32,
        detail: String,
    },
    /// Nothing of it is left on the host.
    Removed {
        sandbox: SandboxId,
    },
    NotRemoved {
        sandbox: SandboxId,
        detail: String,
    },
    ExecEnded {
        exec: ExecId,
        end: SandboxExecEnd,
    },
    /// The result of [`Effect::LookUpSandbox`](crate::Effect::LookUpSandbox).
    LookedUp {
        ask: u64,
        found: SandboxLookup,
    },
}

/// What the store says about the ids of a command.
#[derive(Debug)]
pub enum SandboxLookup {
    Read {
        sandbox: Option<Box<SandboxFact>>,
        /// The id that the client chose for an exec was used before.
        exec_is_taken: bool,
    },
    Unreadable,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxExecEnd {
    pub how: ExecOutcome,
    /// For an exec that was not started or is lost.
    pub reason: Option<ExecFailReason>,
    pub cause: Option<Cause>,
    pub detail: Option<String>,
    pub stdout: JobStreamBytes,
    pub stderr: JobStreamBytes,
}

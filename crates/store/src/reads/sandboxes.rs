//! Standalone sandboxes and their execs: listed and found.

use std::collections::BTreeMap;

use lodge_core::sandbox::{SandboxExecRow, SandboxExecState, SandboxFact, SandboxRow, SandboxState};
use lodge_core::{ExecId, SandboxId};

use super::Result;

/// The filter of a listing of sandboxes: all conditions must hold.
#[derive(Debug, Clone, Copy)]
pub struct SandboxFilter<'a> {
    /// None: any.
    pub states: &'a [SandboxState],
    pub labels: &'a BTreeMap<String, String>,
    /// Created before this one.
    pub before: Option<&'a SandboxId>,
}

/// The filter of a listing of execs: all conditions must hold.
#[derive(Debug, Clone, Copy)]
pub struct ExecFilter<'a> {
    pub sandbox: Option<&'a SandboxId>,
    pub state: Option<SandboxExecState>,
    /// Created before this one.
    pub before: Option<&'a ExecId>,
}

pub trait SandboxReads {
    /// The newest sandboxes, at most `limit`.
    fn sandboxes(&self, filter: SandboxFilter<'_>, limit: u32) -> Result<Vec<SandboxRow>>;
    fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRow>>;
    /// A sandbox for an engine that does not have it in memory.
    fn sandbox_fact(&self, id: &SandboxId) -> Result<Option<SandboxFact>>;
    /// The sandboxes with this id prefix, a few at most.
    fn find_sandbox(&self, given: &str) -> Result<Vec<SandboxId>>;
    /// The states of all sandboxes that were not deleted.
    fn sandbox_states(&self) -> Result<Vec<(SandboxId, SandboxState)>>;
    /// The newest execs, at most `limit`.
    fn execs(&self, filter: ExecFilter<'_>, limit: u32) -> Result<Vec<SandboxExecRow>>;
    fn exec(&self, id: &ExecId) -> Result<Option<SandboxExecRow>>;
    /// The execs with this id prefix, a few at most.
    fn find_exec(&self, given: &str) -> Result<Vec<ExecId>>;
    /// An exec and its stdin: everything that its start needs.
    fn exec_to_start(&self, id: &ExecId) -> Result<Option<(SandboxExecRow, Vec<u8>)>>;
    fn has_open_exec(&self, sandbox: &SandboxId) -> Result<bool>;
}

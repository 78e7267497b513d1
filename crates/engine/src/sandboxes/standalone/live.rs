//! Standalone sandboxes in memory: live ones, those that a command named a moment ago, and their execs.
//!
//! A sandbox at rest is released when all of its events are on disk. A command about one that is not in memory, and a
//! chosen id, wait for a lookup: so no id is accepted twice, and nothing has to be loaded at a start.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::limits::LOOKUPS_MAX;
use lodge_core::sandbox::{SandboxExecRow, SandboxRow, SandboxState};
use lodge_core::{ExecId, SandboxId};

use super::messages::{SandboxCommand, SandboxLookup};
use super::refusal::{ExecRefusal, SandboxRefusal};
use crate::batch::EarlyEffect;
use crate::{Caller, Command, Engine, Refusal, StreamHead};

#[derive(Debug, Default)]
pub(crate) struct Standalones {
    sandboxes: BTreeMap<SandboxId, StandaloneSandbox>,
    execs: BTreeMap<ExecId, StandaloneExec>,
    /// Commands that wait for a lookup, by its number.
    lookups: BTreeMap<u64, (Caller, SandboxCommand)>,
}

/// A sandbox in memory.
#[derive(Debug)]
pub(crate) struct StandaloneSandbox {
    pub row: SandboxRow,
    /// None of its processes is left, and its execs are being settled.
    pub down: bool,
    /// The newest lookup when it was found at rest; 0: not yet. Earlier lookups may not show it as it is.
    pub rested: u64,
}

#[derive(Debug)]
struct StandaloneExec {
    row: SandboxExecRow,
    /// The newest event and the newest lookup when it ended.
    ended: Option<(u64, u64)>,
}

impl Standalones {
    pub(crate) fn insert(&mut self, row: SandboxRow) {
        self.sandboxes.insert(row.id.clone(), StandaloneSandbox { row, down: false, rested: 0 });
    }

    pub(crate) fn insert_exec(&mut self, row: SandboxExecRow) {
        self.execs.insert(row.id.clone(), StandaloneExec { row, ended: None });
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Option<&StandaloneSandbox> {
        self.sandboxes.get(id)
    }

    pub(crate) fn get_mut(&mut self, id: &SandboxId) -> Option<&mut StandaloneSandbox> {
        self.sandboxes.get_mut(id)
    }

    pub(crate) fn exec(&self, id: &ExecId) -> Option<&SandboxExecRow> {
        self.execs.get(id).map(|exec| &exec.row)
    }

    /// Changes an exec, and notes when it ended.
    pub(crate) fn change_exec(
        &mut self,
        id: &ExecId,
        now: (u64, u64),
        change: impl FnOnce(&mut SandboxExecRow),
    ) {
        if let Some(exec) = self.execs.get_mut(id) {
            change(&mut exec.row);
            exec.ended = (!exec.row.progress.state.is_open()).then_some(now);
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &SandboxRow> {
        self.sandboxes.values().map(|sandbox| &sandbox.row)
    }

    pub(crate) fn exec_rows(&self) -> impl Iterator<Item = &SandboxExecRow> {
        self.execs.values().map(|exec| &exec.row)
    }

    /// The open execs of a sandbox.
    pub(crate) fn open_execs(&self, sandbox: &SandboxId) -> Vec<ExecId> {
        let open = self.exec_rows().filter(|row| row.sandbox == *sandbox && row.progress.state.is_open());
        open.map(|row| row.id.clone()).collect()
    }

    pub(crate) fn live(&self) -> usize {
        self.rows().filter(|row| row.state.is_live()).count()
    }

    /// Sandboxes that a restart would not load.
    pub(crate) fn resting(&self) -> BTreeSet<SandboxId> {
        let open: BTreeSet<&SandboxId> =
            self.exec_rows().filter(|row| row.progress.state.is_open()).map(|row| &row.sandbox).collect();
        let rests = |row: &&SandboxRow| !row.state.is_live() && !open.contains(&row.id);
        self.rows().filter(rests).map(|row| row.id.clone()).collect()
    }

    /// How many sandboxes, execs and waiting commands are in memory.
    pub(crate) fn sizes(&self) -> (usize, usize, usize) {
        (self.sandboxes.len(), self.execs.len(), self.lookups.len())
    }

    /// The callers of waiting commands, when no lookup will answer.
    pub(crate) fn into_callers(self) -> impl Iterator<Item = Caller> {
        self.lookups.into_values().map(|(caller, _)| caller)
    }
}

/// The ids that have to be known before a command can be decided.
struct NeededIds {
    sandbox: SandboxId,
    exec: Option<ExecId>,
}

impl Engine {
    /// What a command needs from the store before it can be decided.
    fn needed_ids(&self, command: &SandboxCommand) -> Option<NeededIds> {
        let is_known = |id: &SandboxId| self.standalones.sandboxes.contains_key(id);
        match command {
            SandboxCommand::Create(new) => {
                let id = new.id.as_ref().filter(|id| !is_known(id))?;
                Some(NeededIds { sandbox: id.clone(), exec: None })
            }
            SandboxCommand::Stop { id } | SandboxCommand::Resume { id } | SandboxCommand::Remove { id } => {
                (!is_known(id)).then(|| NeededIds { sandbox: id.clone(), exec: None })
            }
            SandboxCommand::RunExec(new) => {
                let exec = new.id.as_ref().filter(|id| self.standalones.exec(id).is_none());
                let needs = !is_known(&new.sandbox) || exec.is_some();
                needs.then(|| NeededIds { sandbox: new.sandbox.clone(), exec: exec.cloned() })
            }
            // An open exec is always in memory.
            SandboxCommand::CancelExec { .. } => None,
        }
    }

    /// Makes a command wait for a lookup of its ids, if they are not in memory. Returns any other command.
    pub(crate) fn wait_for_sandbox(&mut self, caller: Caller, command: Command) -> Option<(Caller, Command)> {
        let Command::Sandbox(command) = command else { return Some((caller, command)) };
        let Some(NeededIds { sandbox, exec }) = self.needed_ids(&command) else {
            return Some((caller, Command::Sandbox(command)));
        };
        if self.standalones.lookups.len() >= LOOKUPS_MAX {
            self.step.refuse(caller.ticket, Refusal::Unread);
            return None;
        }
        self.asks += 1;
        self.standalones.lookups.insert(self.asks, (caller, command));
        self.step.act_early(EarlyEffect::LookUpSandbox { ask: self.asks, sandbox, exec });
        None
    }

    pub(crate) fn finish_sandbox_lookup(&mut self, ask: u64, found: SandboxLookup) {
        let Some((caller, command)) = self.standalones.lookups.remove(&ask) else { return };
        let (fact, exec_is_taken) = match found {
            SandboxLookup::Read { sandbox, exec_is_taken } => (sandbox, exec_is_taken),
            SandboxLookup::Unreadable => return self.step.refuse(caller.ticket, Refusal::Unread),
        };
        if let Some(fact) = fact
            // Another command may have loaded it meanwhile, and changed it.
            && !self.standalones.sandboxes.contains_key(&fact.row.id)
        {
            self.streams.insert(fact.row.id.to_string(), StreamHead { head: fact.head, seq: 0 });
            self.standalones.insert(fact.row);
        }
        if let SandboxCommand::RunExec(new) = &command
            && exec_is_taken
            && let Some(id) = &new.id
            && caller.request.as_ref().is_none_or(|key| self.requests.known(key).is_none())
        {
            let taken = ExecRefusal::IdTaken { id: id.clone() };
            self.step.mark_urgent();
            return self.step.refuse(caller.ticket, taken.into());
        }
        self.decide(caller, Command::Sandbox(command));
    }

    /// The sandbox that a command is about.
    pub(crate) fn known_sandbox(&self, id: &SandboxId) -> Result<&StandaloneSandbox, SandboxRefusal> {
        let known = self.standalones.get(id).filter(|known| known.row.state != SandboxState::Deleted);
        known.ok_or_else(|| SandboxRefusal::NotFound { given: id.to_string() })
    }

    /// Removes sandboxes at rest and ended execs from memory, if the store shows them as they are: it has the events up
    /// to `seq`, and no lookup is older than their last change.
    pub(crate) fn release_sandboxes(&mut self, seq: u64) {
        let oldest = self.standalones.lookups.keys().next().copied().unwrap_or(u64::MAX);
        let asks = self.asks;
        self.standalones
            .execs
            .retain(|_, exec| exec.ended.is_none_or(|(written, ask)| written > seq || ask >= oldest));
        for id in self.standalones.resting() {
            let on_disk = self.streams.get(id.as_str()).is_none_or(|stream| stream.seq <= seq);
            let Some(sandbox) = self.standalones.sandboxes.get_mut(&id) else { continue };
            if sandbox.rested == 0 {
                sandbox.rested = asks.max(1);
            }
            if on_disk && sandbox.rested < oldest {
                self.standalones.sandboxes.remove(&id);
                self.streams.remove(id.as_str());
            }
        }
    }
}

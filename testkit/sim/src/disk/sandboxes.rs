//! Standalone sandboxes and their execs in the simulated store.

use std::collections::BTreeMap;

use lodge_core::sandbox::{SandboxExecRow, SandboxRow, SandboxWrite};
use lodge_core::{ExecId, SandboxId};

use crate::laws::LawViolation;

#[derive(Debug, Default)]
pub struct SandboxTable {
    rows: BTreeMap<SandboxId, SandboxRow>,
    execs: BTreeMap<ExecId, SandboxExecRow>,
}

impl SandboxTable {
    /// An id is used once, and a row that is over never changes its outcome.
    pub fn apply(&mut self, write: &SandboxWrite) -> Result<(), LawViolation> {
        match write {
            SandboxWrite::New(row) => match self.rows.insert(row.id.clone(), row.as_ref().clone()) {
                Some(_) => Err(format!("the sandbox {} is created twice", row.id)),
                None => Ok(()),
            },
            SandboxWrite::Progress(row) => match self.rows.insert(row.id.clone(), row.as_ref().clone()) {
                Some(before) if before.deleted_at.is_some() => {
                    Err(format!("the deleted sandbox {} changes", row.id))
                }
                Some(_) => Ok(()),
                None => Err(format!("the sandbox {} is not stored", row.id)),
            },
            SandboxWrite::NewExec { row, .. } => {
                match self.execs.insert(row.id.clone(), row.as_ref().clone()) {
                    Some(_) => Err(format!("the exec {} is created twice", row.id)),
                    None => Ok(()),
                }
            }
            SandboxWrite::ExecProgress { id, progress } => {
                let row = self.execs.get_mut(id).ok_or_else(|| format!("the exec {id} is not stored"))?;
                if !row.progress.state.is_open() {
                    return Err(format!("the exec {id} is over and changes"));
                }
                row.progress = progress.as_ref().clone();
                Ok(())
            }
        }
    }

    pub fn uids(&self) -> impl Iterator<Item = u32> {
        self.rows.values().filter_map(|row| row.uid)
    }

    pub fn sandbox(&self, id: &SandboxId) -> Option<&SandboxRow> {
        self.rows.get(id)
    }

    pub fn exec(&self, id: &ExecId) -> Option<&SandboxExecRow> {
        self.execs.get(id)
    }

    /// As a boot loads them.
    pub fn load(&self, remembered: &[SandboxId]) -> (Vec<SandboxRow>, Vec<SandboxExecRow>) {
        let open: Vec<SandboxExecRow> =
            self.execs.values().filter(|row| row.progress.state.is_open()).cloned().collect();
        let is_loaded = |row: &&SandboxRow| {
            row.state.is_live()
                || remembered.contains(&row.id)
                || open.iter().any(|exec| exec.sandbox == row.id)
        };
        (self.rows.values().filter(is_loaded).cloned().collect(), open)
    }
}

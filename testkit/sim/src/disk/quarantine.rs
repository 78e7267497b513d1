//! Quarantined work in the simulated store.

use lodge_core::quarantine::QuarantineRow;
use lodge_core::{TurnId, WorkId};

use super::SimDisk;
use crate::laws::LawViolation;

impl SimDisk {
    pub(super) fn set_aside(&mut self, row: &QuarantineRow) -> Result<(), LawViolation> {
        if self.quarantine.values().any(|known| known.work == row.work) {
            return Err(format!("{:?} is set aside twice", row.work));
        }
        match self.quarantine.insert(row.id.clone(), row.clone()) {
            None => Ok(()),
            Some(_) => Err(format!("{} names two pieces of work", row.id)),
        }
    }

    pub(super) fn released(&mut self, id: &WorkId) -> Result<(), LawViolation> {
        let gone = self.quarantine.remove(id);
        gone.map(drop).ok_or_else(|| format!("{id} is not set aside, and is released"))
    }

    pub fn quarantine(&self) -> impl Iterator<Item = &QuarantineRow> {
        self.quarantine.values()
    }

    /// Whether work of this turn is quarantined.
    pub fn quarantined(&self, turn: &TurnId) -> bool {
        self.quarantine.values().any(|row| row.work.subject == turn.as_str())
    }
}

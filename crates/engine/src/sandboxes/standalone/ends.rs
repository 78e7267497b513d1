//! The end of a standalone sandbox: stopped, failed or deleted.
//!
//! The same order in all three cases: no process is left, then every exec has its outcome, then the files go. So an
//! outcome is never removed before it is recorded.

use lodge_core::SandboxId;
use lodge_core::sandbox::{SandboxEvent, SandboxFailReason, SandboxFailure, SandboxState};

use super::messages::{ExecOrder, StandaloneEffect};
use crate::Engine;

impl Engine {
    /// Orders the end of a sandbox. It is settled when its processes are gone.
    pub(super) fn sandbox_order_down(&mut self, id: &SandboxId) {
        let Some(known) = self.standalones.get_mut(id) else { return };
        known.down = false;
        let incarnation = known.row.incarnation;
        self.in_standalone(id, StandaloneEffect::Down { incarnation });
    }

    /// It could not be started, or is dead.
    pub(super) fn sandbox_lost(
        &mut self,
        id: &SandboxId,
        incarnation: u32,
        event: SandboxEvent,
        detail: String,
    ) {
        let Some(known) = self.current_sandbox(id, incarnation) else { return };
        // One that was ready and cannot be reached again is dead.
        let reason = match known.row.state {
            SandboxState::Pending => SandboxFailReason::Start,
            SandboxState::Ready
            | SandboxState::Stopping
            | SandboxState::Stopped
            | SandboxState::Failed
            | SandboxState::Deleting
            | SandboxState::Deleted => SandboxFailReason::Died,
        };
        // A sandbox that is being ended is dead as was wanted.
        let Ok(state) = known.row.state.next(event) else { return };
        self.fail_sandbox(id, state, SandboxFailure { reason, detail });
        // What is left of it is ended, and its execs are settled.
        self.sandbox_order_down(id);
    }

    pub(super) fn sandbox_down(&mut self, id: &SandboxId, incarnation: u32) {
        let Some(known) = self.standalones.get_mut(id) else { return };
        let is_ending = match known.row.state {
            SandboxState::Stopping
            | SandboxState::Stopped
            | SandboxState::Failed
            | SandboxState::Deleting => true,
            SandboxState::Pending | SandboxState::Ready | SandboxState::Deleted => false,
        };
        if !is_ending || known.row.incarnation != incarnation {
            return;
        }
        known.down = true;
        for exec in self.standalones.open_execs(id) {
            self.in_standalone(id, StandaloneEffect::Exec(ExecOrder::Kill { exec }));
        }
        self.settle_sandbox(id);
    }

    /// Continues the end of a sandbox once its processes are gone and its execs have their outcomes.
    pub(super) fn settle_sandbox(&mut self, id: &SandboxId) {
        let Some(known) = self.standalones.get(id) else { return };
        if !known.down || !self.standalones.open_execs(id).is_empty() {
            return;
        }
        match known.row.state {
            SandboxState::Stopping => {
                if let Ok(state) = known.row.state.next(SandboxEvent::Ended) {
                    self.sandbox_is_stopped(id, state);
                    self.in_standalone(id, StandaloneEffect::Tidy);
                }
            }
            SandboxState::Stopped | SandboxState::Failed => {
                self.in_standalone(id, StandaloneEffect::Tidy);
            }
            SandboxState::Deleting => self.in_standalone(id, StandaloneEffect::Remove),
            SandboxState::Pending | SandboxState::Ready | SandboxState::Deleted => {}
        }
    }

    pub(super) fn sandbox_not_down(&mut self, id: &SandboxId, incarnation: u32, detail: String) {
        let Some(known) = self.current_sandbox(id, incarnation) else { return };
        match known.row.state {
            SandboxState::Stopping => {
                if let Ok(state) = known.row.state.next(SandboxEvent::EndFailed) {
                    let reason = SandboxFailReason::NotEnded;
                    self.fail_sandbox(id, state, SandboxFailure { reason, detail });
                }
            }
            SandboxState::Deleting => self.note_not_removed(id, SandboxFailReason::NotEnded, detail),
            SandboxState::Pending
            | SandboxState::Ready
            | SandboxState::Stopped
            | SandboxState::Failed
            | SandboxState::Deleted => {}
        }
    }

    pub(super) fn sandbox_removed(&mut self, id: &SandboxId) {
        let Some(known) = self.standalones.get(id) else { return };
        if let Ok(state) = known.row.state.next(SandboxEvent::Cleared) {
            self.sandbox_is_deleted(id, state);
        }
    }

    pub(super) fn sandbox_not_removed(&mut self, id: &SandboxId, detail: String) {
        if self.standalones.get(id).is_some_and(|known| known.row.state == SandboxState::Deleting) {
            self.note_not_removed(id, SandboxFailReason::NotRemoved, detail);
        }
    }

    /// It stays `deleting`: another `rm`, and every start of the daemon, tries again.
    fn note_not_removed(&mut self, id: &SandboxId, reason: SandboxFailReason, detail: String) {
        self.change_sandbox(id, |row| row.failure = Some(SandboxFailure { reason, detail }));
    }
}

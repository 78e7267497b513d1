//! Standalone sandboxes: create, stop, resume, remove; and the only place that changes their state.
//!
//! `messages` has commands, observations and effects, `live` what is in memory, `ends` the end of a sandbox, `execs` its
//! execs, `refusal` the refusals.

mod ends;
mod execs;
pub(crate) mod live;
pub(crate) mod messages;
pub(crate) mod refusal;

use lodge_core::SandboxId;
use lodge_core::event::{
    EventBody, SandboxAccepted, SandboxDeleteRequested, SandboxDeleted, SandboxFailed, SandboxPreparing,
    SandboxReady, SandboxStopRequested, SandboxStopped,
};
use lodge_core::job_check::check_labels;
use lodge_core::limits::LIVE_SANDBOXES_MAX;
use lodge_core::sandbox::{SandboxEvent, SandboxFailure, SandboxRow, SandboxState, SandboxWrite};

use self::messages::{NewSandbox, SandboxCommand, StandaloneEffect, StandaloneObservation, StandalonePlan};
use self::refusal::SandboxRefusal;
use crate::{Answer, Caller, Effect, Engine, Refusal, SandboxSettings, StartMode, StreamHead};

impl StandalonePlan {
    fn of(row: &SandboxRow) -> StandalonePlan {
        let record = &row.record;
        StandalonePlan {
            sandbox: row.id.clone(),
            incarnation: row.incarnation,
            uid: row.uid,
            settings: SandboxSettings {
                env: record.env.clone(),
                mounts: record.mounts.clone(),
                tools: record.tools.clone(),
                limits: record.limits.unwrap_or_default(),
                network: record.network.clone(),
                ..SandboxSettings::default()
            },
        }
    }
}

impl Engine {
    pub(crate) fn sandbox_command(&mut self, caller: Caller, command: SandboxCommand) -> Result<(), Refusal> {
        match command {
            SandboxCommand::Create(new) => self.create_sandbox(caller, *new),
            SandboxCommand::Stop { id } => self.stop_sandbox(caller, &id),
            SandboxCommand::Resume { id } => self.resume_sandbox(caller, &id),
            SandboxCommand::Remove { id } => self.remove_sandbox(caller, &id),
            SandboxCommand::RunExec(new) => self.run_exec(caller, *new),
            SandboxCommand::CancelExec { id } => self.cancel_exec_on_request(caller, &id),
        }
    }

    pub(crate) fn observe_standalone(&mut self, seen: StandaloneObservation) {
        match seen {
            StandaloneObservation::Started { sandbox, incarnation } => {
                self.sandbox_started(&sandbox, incarnation);
            }
            StandaloneObservation::StartFailed { sandbox, incarnation, detail } => {
                self.sandbox_lost(&sandbox, incarnation, SandboxEvent::StartFailed, detail);
            }
            StandaloneObservation::Died { sandbox, incarnation, detail } => {
                self.sandbox_lost(&sandbox, incarnation, SandboxEvent::Died, detail);
            }
            StandaloneObservation::Down { sandbox, incarnation } => self.sandbox_down(&sandbox, incarnation),
            StandaloneObservation::NotDown { sandbox, incarnation, detail } => {
                self.sandbox_not_down(&sandbox, incarnation, detail);
            }
            StandaloneObservation::Removed { sandbox } => self.sandbox_removed(&sandbox),
            StandaloneObservation::NotRemoved { sandbox, detail } => {
                self.sandbox_not_removed(&sandbox, detail);
            }
            StandaloneObservation::ExecEnded { exec, end } => self.sandbox_exec_ended(&exec, end),
            StandaloneObservation::LookedUp { ask, found } => self.finish_sandbox_lookup(ask, found),
        }
    }

    fn create_sandbox(&mut self, caller: Caller, new: NewSandbox) -> Result<(), Refusal> {
        let NewSandbox { id, record } = new;
        if let Some(id) = id.as_ref().filter(|id| self.standalones.get(id).is_some()) {
            return Err(SandboxRefusal::IdTaken { id: id.clone() }.into());
        }
        check_labels(&record.labels).map_err(|fault| SandboxRefusal::Label { fault })?;
        if self.standalones.live() >= LIVE_SANDBOXES_MAX {
            return Err(SandboxRefusal::TooMany.into());
        }
        let now = self.step.now;
        let id = id.unwrap_or_else(|| SandboxId::new(&mut self.ids, now));
        let row = SandboxRow {
            id: id.clone(),
            state: SandboxState::Pending,
            incarnation: 1,
            uid: self.new_user(),
            created_at: now,
            changed_at: now,
            ready_at: None,
            deleted_at: None,
            failure: None,
            record,
        };
        self.step.write(SandboxWrite::New(Box::new(row.clone())));
        self.streams.insert(id.to_string(), StreamHead::default());
        self.standalones.insert(row);
        self.sandbox_event(&id, |sandbox| SandboxAccepted { sandbox });
        self.sandbox_up(&id, StartMode::Start);
        self.reply_sandbox(caller, &id)
    }

    fn resume_sandbox(&mut self, caller: Caller, id: &SandboxId) -> Result<(), Refusal> {
        let known = self.known_sandbox(id)?;
        match known.row.state {
            // It runs or is about to, which is what the caller wants.
            SandboxState::Pending | SandboxState::Ready => return self.reply_sandbox(caller, id),
            SandboxState::Stopping
            | SandboxState::Stopped
            | SandboxState::Failed
            | SandboxState::Deleting
            | SandboxState::Deleted => {}
        }
        let state = known.row.state.next(SandboxEvent::ResumeAsked).map_err(|_| wrong_state(&known.row))?;
        // The next processes must not be taken for those whose end is still being settled.
        if !self.standalones.open_execs(id).is_empty() {
            return Err(wrong_state(&known.row).into());
        }
        if self.standalones.live() >= LIVE_SANDBOXES_MAX {
            return Err(SandboxRefusal::TooMany.into());
        }
        self.change_sandbox(id, |row| {
            (row.state, row.failure) = (state, None);
            row.incarnation += 1;
        });
        self.sandbox_event(id, |sandbox| SandboxAccepted { sandbox });
        self.sandbox_up(id, StartMode::Start);
        self.reply_sandbox(caller, id)
    }

    fn stop_sandbox(&mut self, caller: Caller, id: &SandboxId) -> Result<(), Refusal> {
        let known = self.known_sandbox(id)?;
        match known.row.state {
            SandboxState::Stopping | SandboxState::Stopped => return self.reply_sandbox(caller, id),
            SandboxState::Pending
            | SandboxState::Ready
            | SandboxState::Failed
            | SandboxState::Deleting
            | SandboxState::Deleted => {}
        }
        let state = known.row.state.next(SandboxEvent::StopAsked).map_err(|_| wrong_state(&known.row))?;
        self.change_sandbox(id, |row| row.state = state);
        self.sandbox_event(id, |sandbox| SandboxStopRequested { sandbox });
        self.note_cancel_of_all(id, "its sandbox was stopped");
        self.sandbox_order_down(id);
        self.reply_sandbox(caller, id)
    }

    fn remove_sandbox(&mut self, caller: Caller, id: &SandboxId) -> Result<(), Refusal> {
        let known = self.known_sandbox(id)?;
        let state = known.row.state.next(SandboxEvent::DeleteAsked).map_err(|_| wrong_state(&known.row))?;
        if known.row.state != SandboxState::Deleting {
            self.change_sandbox(id, |row| row.state = state);
            self.sandbox_event(id, |sandbox| SandboxDeleteRequested { sandbox });
            self.note_cancel_of_all(id, "its sandbox was deleted");
        }
        self.sandbox_order_down(id);
        self.reply_sandbox(caller, id)
    }

    fn sandbox_started(&mut self, id: &SandboxId, incarnation: u32) {
        let Some(known) = self.current_sandbox(id, incarnation) else { return };
        let was = known.row.state;
        let Ok(state) = was.next(SandboxEvent::Started) else { return };
        if was != state {
            let now = self.step.now;
            self.change_sandbox(id, |row| (row.state, row.ready_at) = (state, Some(now)));
            self.sandbox_event(id, |sandbox| SandboxReady { sandbox });
        }
        self.resume_sandbox_execs(id);
    }

    /// Orders the start of a sandbox, or its adoption.
    fn sandbox_up(&mut self, id: &SandboxId, how: StartMode) {
        let Some(known) = self.standalones.get_mut(id) else { return };
        known.down = false;
        let plan = Box::new(StandalonePlan::of(&known.row));
        if how == StartMode::Start {
            self.sandbox_event(id, |sandbox| SandboxPreparing { sandbox });
        }
        self.in_standalone(id, StandaloneEffect::Up { plan, how });
    }

    /// After a start of the daemon: adopts sandboxes that should live, and continues what was begun.
    pub(crate) fn adopt_standalones(&mut self) {
        let known: Vec<(SandboxId, SandboxState)> =
            self.standalones.rows().map(|row| (row.id.clone(), row.state)).collect();
        for (id, state) in known {
            match state {
                SandboxState::Pending | SandboxState::Ready => {
                    let Some(known) = self.standalones.get(&id) else { continue };
                    let plan = Box::new(StandalonePlan::of(&known.row));
                    let was_ready = state == SandboxState::Ready;
                    let how = if was_ready { StartMode::Adopt } else { StartMode::Start };
                    self.in_standalone(&id, StandaloneEffect::Up { plan, how });
                }
                SandboxState::Stopping | SandboxState::Deleting => self.sandbox_order_down(&id),
                // Its execs are not settled, or it was remembered.
                SandboxState::Stopped | SandboxState::Failed => {
                    if !self.standalones.open_execs(&id).is_empty() {
                        self.sandbox_order_down(&id);
                    }
                }
                SandboxState::Deleted => {}
            }
        }
    }

    /// Orders work in a standalone sandbox, after the commit.
    fn in_standalone(&mut self, sandbox: &SandboxId, what: StandaloneEffect) {
        self.step.mark_urgent();
        self.step.act(Effect::Standalone { sandbox: sandbox.clone(), what });
    }

    /// A sandbox whose current processes an observation is about.
    fn current_sandbox(&self, id: &SandboxId, incarnation: u32) -> Option<&live::StandaloneSandbox> {
        self.standalones.get(id).filter(|known| known.row.incarnation == incarnation)
    }

    /// Changes a sandbox, and records all of it that can change.
    fn change_sandbox(&mut self, id: &SandboxId, change: impl FnOnce(&mut SandboxRow)) {
        let now = self.step.now;
        let Some(known) = self.standalones.get_mut(id) else { return };
        change(&mut known.row);
        (known.row.changed_at, known.rested) = (now, 0);
        let row = Box::new(known.row.clone());
        self.step.write(SandboxWrite::Progress(row));
    }

    /// Appends an event to the stream of a sandbox.
    fn sandbox_event<B: Into<EventBody>>(&mut self, id: &SandboxId, body: impl FnOnce(String) -> B) {
        self.event(id.as_str(), body(id.to_string()));
    }

    fn fail_sandbox(&mut self, id: &SandboxId, state: SandboxState, failure: SandboxFailure) {
        let (code, detail) = (failure.reason.word().to_owned(), Some(failure.detail.clone()));
        self.change_sandbox(id, |row| (row.state, row.failure) = (state, Some(failure)));
        self.sandbox_event(id, |sandbox| SandboxFailed { sandbox, code, detail });
    }

    fn sandbox_is_stopped(&mut self, id: &SandboxId, state: SandboxState) {
        self.change_sandbox(id, |row| row.state = state);
        self.sandbox_event(id, |sandbox| SandboxStopped { sandbox });
    }

    fn sandbox_is_deleted(&mut self, id: &SandboxId, state: SandboxState) {
        let now = self.step.now;
        self.change_sandbox(id, |row| {
            (row.state, row.failure, row.deleted_at) = (state, None, Some(now));
        });
        self.sandbox_event(id, |sandbox| SandboxDeleted { sandbox });
    }

    fn reply_sandbox(&mut self, caller: Caller, id: &SandboxId) -> Result<(), Refusal> {
        let row = self.known_sandbox(id)?.row.clone();
        self.reply(caller, Answer::Sandbox(Box::new(row)));
        Ok(())
    }
}

fn wrong_state(row: &SandboxRow) -> SandboxRefusal {
    let state = match row.state {
        SandboxState::Stopping => "being stopped",
        SandboxState::Deleting => "being deleted",
        state @ (SandboxState::Pending
        | SandboxState::Ready
        | SandboxState::Stopped
        | SandboxState::Failed
        | SandboxState::Deleted) => state.word(),
    };
    SandboxRefusal::WrongState { id: row.id.clone(), state }
}

//! Agents: create, start, stop, kill, remove; and the only place that changes their state.

pub(crate) mod ends;
pub(crate) mod lineages;
pub mod messages;
mod naming;
pub mod refusal;
mod rest;
mod retries;
mod starts;
mod state;
mod updates;
mod waiting;

use self::ends::OpenTurnsFate;
use self::lineages::new_lineage;
pub use self::refusal::{AgentRefusal, LineageRefusal};
pub(crate) use self::rest::Lookups;
use self::retries::counted;
pub(crate) use self::starts::RetryPauses;
pub(crate) use self::state::{Agent, EndWaiter};
pub use self::updates::UpdateTiming;
use crate::jobs::CancelScope;
use crate::{
    AgentAnswer, AgentCommand, AgentEffect, AgentObservation, AgentSnapshot, AutoRetry, Caller, Effect,
    Engine, NewAgent, PullEffect, Refusal, RunningJobs, SandboxEffect, StreamHead,
};
use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::event::{
    AgentFailed, AgentPulling, AgentReady, AgentRemoved, AgentRemoving, AgentStarting, AgentStopped,
    EventBody,
};
use lodge_core::lineage::{LineageEvent, LineageState};
use lodge_core::record::{AgentRow, AgentWrite, StartRetry};
use lodge_core::{AgentId, LineageId, SandboxId, Timestamp};

impl Engine {
    pub(crate) fn agent_command(&mut self, caller: Caller, command: AgentCommand) -> Result<(), Refusal> {
        match command {
            AgentCommand::Create(new) => self.create_agent(caller, *new),
            AgentCommand::Start { id } => self.start_agent(caller, &id),
            AgentCommand::Restart { id, jobs } => self.restart_agent(caller, &id, jobs),
            AgentCommand::Update(update) => self.update_agent(caller, *update),
            AgentCommand::Stop { id, jobs } => self.stop_agent(caller, &id, jobs),
            AgentCommand::Kill { id } => self.kill_agent(caller, &id),
            AgentCommand::Remove { id, force } => self.remove_agent(caller, &id, force),
            AgentCommand::SettleLineage(settlement) => self.settle_lineage(caller, *settlement),
        }
    }

    pub(crate) fn observe_agent(&mut self, seen: AgentObservation) {
        match seen {
            AgentObservation::RuntimeReady { agent, run, adopted, running } => {
                self.runtime_ready(&agent, run, adopted, &running);
            }
            AgentObservation::SpawnFailed { agent, run, detail } => {
                self.agent_not_started(&agent, run, detail)
            }
            AgentObservation::Lacks { agent, run, lack, detail } => {
                self.agent_lacks(&agent, run, lack, detail)
            }
            AgentObservation::RetryDue { agent, run } => self.retry_due(&agent, run),
            AgentObservation::ProbeTimedOut { agent, run } => {
                let detail = "the runtime did not answer its readiness probe in time".to_owned();
                self.agent_failed(&agent, run, AgentEvent::ProbeTimedOut, detail);
            }
            AgentObservation::Exited { agent, run, code, detail } => {
                self.agent_exited(&agent, run, code, detail)
            }
            AgentObservation::Died { agent, run, part, detail } => self.agent_died(&agent, run, part, detail),
            AgentObservation::OutOfMemory { agent, run, detail } => {
                self.agent_out_of_memory(&agent, run, detail)
            }
            AgentObservation::Silent { agent, run, level, part } => {
                self.agent_silent(&agent, run, level, part)
            }
            AgentObservation::RevivalDue { agent, run } => self.revival_due(&agent, run),
            AgentObservation::LookedUp { agent, ask, found } => self.finish_lookup(&agent, ask, found),
        }
    }

    pub(crate) fn create_agent(&mut self, caller: Caller, new: NewAgent) -> Result<(), Refusal> {
        let name = self.choose_name(new.name)?;
        self.check_refs(new.image.row.contents.kind(), &new.image.tags)?;
        let digest = new.image.row.digest.clone();
        let row = AgentRow {
            id: AgentId::new(&mut self.ids, self.step.now),
            name: name.clone(),
            image: new.called,
            image_digest: digest.clone(),
            lineage: LineageId::new(&mut self.ids, self.step.now),
            sandbox: SandboxId::new(&mut self.ids, self.step.now),
            state: AgentState::Pulling,
            failure_detail: None,
            incarnation: 1,
            runs: 0,
            uid: self.new_user(),
            created_at: self.step.now,
            started_at: None,
            spec: new.spec,
            retry: StartRetry::default(),
            next: None,
        };
        let id = row.id.clone();
        let put = self.put_image(new.image);
        let lineage = new_lineage(row.lineage.clone(), id.clone(), self.step.now);
        self.step.write(AgentWrite::New(Box::new(row.clone())));
        self.step.write(AgentWrite::Lineage(lineage.clone()));
        self.names.insert(name.into_boxed_str());
        self.streams.insert(id.to_string(), StreamHead::default());
        self.agents.insert(id.clone(), Agent::new(row, lineage));
        self.name_stored_image(put);
        self.agent_event(&id, |name| AgentPulling { name, attempt: None });
        self.fetch(&id);
        self.reply_agent(caller, &id);
        Ok(())
    }

    pub(crate) fn start_agent(&mut self, caller: Caller, id: &AgentId) -> Result<(), Refusal> {
        let agent = self.agent_to_change(id)?;
        if agent.row.state.takes_turns() {
            // The agent runs or is about to, which is what the caller wants. The start ends a pause before a revival.
            if agent.lineage.state == LineageState::Orphaned {
                self.revive(id);
            }
            self.reply_agent(caller, id);
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StartAsked)
            .map_err(|refused| AgentRefusal::wrong_state(&agent.row, refused.state))?;
        agent.row.incarnation += 1;
        agent.row.retry = StartRetry::default();
        self.open_lineage(id);
        self.set_state(id, next, None);
        self.fetch(id);
        self.reply_agent(caller, id);
        Ok(())
    }

    pub(crate) fn stop_agent(
        &mut self,
        caller: Caller,
        id: &AgentId,
        jobs: RunningJobs,
    ) -> Result<(), Refusal> {
        self.refuse_if_jobs_run(id, jobs)?;
        let agent = self.agent_to_change(id)?;
        if agent.row.state == AgentState::Stopped {
            // A second stop, or one while the first is in progress. All callers are answered at the end.
            self.cancel_jobs(id, CancelScope::All, "its agent was stopped");
            self.settle_open_turns(id, &OpenTurnsFate::Interrupt);
            self.answer_when_done(caller, id, AgentState::Stopped);
            self.down(id);
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StopAsked)
            .map_err(|refused| AgentRefusal::wrong_state(&agent.row, refused.state))?;
        self.take_next(id);
        self.move_lineage(id, LineageEvent::Stopped);
        self.cancel_jobs(id, CancelScope::All, "its agent was stopped");
        self.settle_open_turns(id, &OpenTurnsFate::Interrupt);
        self.set_state(id, next, None);
        self.answer_when_done(caller, id, next);
        self.down(id);
        Ok(())
    }

    /// A stop that also ends the lineage: its work never continues.
    pub(crate) fn kill_agent(&mut self, caller: Caller, id: &AgentId) -> Result<(), Refusal> {
        let agent = self.agent_mut(id)?;
        let next = match agent.row.state {
            AgentState::Stopped => AgentState::Stopped,
            state => state
                .next(AgentEvent::StopAsked)
                .map_err(|refused| AgentRefusal::wrong_state(&agent.row, refused.state))?,
        };
        let moved = next != agent.row.state;
        self.take_next(id);
        self.move_lineage(id, LineageEvent::Killed);
        self.cancel_jobs(id, CancelScope::All, "its agent was killed");
        self.settle_open_turns(id, &OpenTurnsFate::Interrupt);
        if moved {
            self.set_state(id, next, None);
        }
        self.answer_when_done(caller, id, next);
        self.down(id);
        Ok(())
    }

    pub(crate) fn remove_agent(&mut self, caller: Caller, id: &AgentId, force: bool) -> Result<(), Refusal> {
        let agent = if force { self.agent_mut(id)? } else { self.agent_to_change(id)? };
        let stops = force && agent.row.state.next(AgentEvent::StopAsked).is_ok();
        let from = if stops { AgentState::Stopped } else { agent.row.state };
        let next = from.next(AgentEvent::RemoveAsked).map_err(|refused| {
            if agent.row.state.takes_turns() {
                AgentRefusal::NotStopped { name: agent.row.name.clone(), state: refused.state }
            } else {
                AgentRefusal::wrong_state(&agent.row, refused.state)
            }
        })?;
        self.take_next(id);
        self.move_lineage(id, LineageEvent::Removed);
        self.revoke_tokens_of(id);
        self.cancel_jobs(id, CancelScope::All, "its agent was removed");
        self.settle_open_turns(id, &OpenTurnsFate::Interrupt);
        self.set_state(id, next, None);
        self.answer_when_done(caller, id, AgentState::Removed);
        self.down(id);
        self.clear_due(id);
        Ok(())
    }

    /// Moves an agent, records the change and appends its event.
    pub(crate) fn set_state(&mut self, id: &AgentId, next: AgentState, detail: Option<String>) {
        self.set_state_and_retry(id, next, detail, AutoRetry::Later);
    }

    /// As [`Engine::set_state`], with the decision whether a failure is retried.
    pub(crate) fn set_state_and_retry(
        &mut self,
        id: &AgentId,
        next: AgentState,
        detail: Option<String>,
        again: AutoRetry,
    ) {
        let backoff = self.host.settings.backoff;
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.row.retry = match again {
            AutoRetry::Later => counted(&agent.row, next, backoff, self.step.now),
            AutoRetry::Never => StartRetry::default(),
        };
        agent.row.state = next;
        agent.row.failure_detail.clone_from(&detail);
        if next != AgentState::Pulling && agent.pull.take().is_some() {
            self.step.act(Effect::Pull(PullEffect::Drop { agent: id.clone() }));
        }
        let (retry, run) = (agent.row.retry, agent.row.runs);
        self.step.write(AgentWrite::State {
            id: id.clone(),
            state: next,
            detail: detail.clone(),
            lineage: agent.row.lineage.clone(),
            incarnation: agent.row.incarnation,
            runs: agent.row.runs,
            started_at: agent.row.started_at,
            retry: agent.row.retry,
        });
        if let AgentState::Failed(reason) = next {
            self.note_failure(id, reason, detail.as_deref().unwrap_or_default());
        }
        let attempt = (retry.failures > 0).then_some(retry.failures);
        self.agent_event(id, |name| match next {
            AgentState::Pulling => AgentPulling { name, attempt }.into(),
            AgentState::Starting => AgentStarting { name }.into(),
            AgentState::Ready => AgentReady { name }.into(),
            AgentState::Stopped => AgentStopped { name }.into(),
            AgentState::Failed(reason) => {
                let (reason, retry_at_ms) = (reason.word().to_owned(), retry.at.map(Timestamp::ms));
                EventBody::from(AgentFailed { name, attempt, reason, detail, retry_at_ms })
            }
            AgentState::Removing => AgentRemoving { name }.into(),
            AgentState::Removed => AgentRemoved { name }.into(),
        });
        if let Some(at) = retry.at {
            let delay_ms = u64::try_from(at.ms() - self.step.now.ms()).unwrap_or(0);
            self.step.act(Effect::Agent(AgentEffect::RetryTimer { agent: id.clone(), run, delay_ms }));
        }
    }

    /// Every failure is also a line in the agent's log.
    fn note_failure(&mut self, id: &AgentId, reason: FailReason, detail: &str) {
        let detail: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let now_ms = self.step.now.ms();
        let line = format!("{now_ms} daemon: failed: {}: {detail}", reason.word());
        self.in_sandbox(id, SandboxEffect::NoteFailure { line });
    }

    /// The name of an agent, or its id if it is not in memory.
    pub(crate) fn agent_name(&self, id: &AgentId) -> String {
        self.agents.get(id).map_or_else(|| id.to_string(), |agent| agent.row.name.clone())
    }

    /// Appends an event about an agent, with its name.
    pub(crate) fn agent_event<B: Into<EventBody>>(&mut self, id: &AgentId, body: impl FnOnce(String) -> B) {
        let name = self.agents.get(id).map(|agent| agent.row.name.clone()).unwrap_or_default();
        self.event(id.as_str(), body(name));
    }

    pub(crate) fn reply_agent(&mut self, caller: Caller, id: &AgentId) {
        if let Some(answer) = self.agent_snapshot(id) {
            self.reply(caller, AgentAnswer::Agent(Box::new(answer)));
        }
    }

    fn agent_snapshot(&self, id: &AgentId) -> Option<AgentSnapshot> {
        let agent = self.agents.get(id)?;
        let quarantine = self.quarantine_of(id);
        Some(AgentSnapshot {
            row: agent.row.clone(),
            at_work: self.is_at_work(id),
            quarantine,
            in_force: None,
        })
    }

    pub(crate) fn agent_mut(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        self.agents.get_mut(id).ok_or_else(|| no_agent(id))
    }

    /// The agent, unless an operator has to decide about it first.
    pub(crate) fn agent_to_change(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        let agent = self.agent_mut(id)?;
        if agent.lineage.state == LineageState::AskPending {
            return Err(LineageRefusal::ask_pending(&agent.lineage, &agent.row.name).into());
        }
        Ok(agent)
    }

    /// The agent, unless the observation is about an earlier process.
    pub(crate) fn current(&mut self, id: &AgentId, run: u32) -> Option<&mut Agent> {
        self.agents.get_mut(id).filter(|agent| agent.row.runs == run)
    }
}

pub(crate) fn no_agent(id: &AgentId) -> Refusal {
    AgentRefusal::NotFound { given: id.to_string() }.into()
}

//! Agents: created, started, stopped, killed, removed; and the one place that moves them.

use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::lineage::{LineageEvent, LineageState};
use lodge_core::record::{AgentRow, Retry, Write};
use lodge_core::{AgentId, EventData, EventKind, LineageId, SandboxId, Timestamp};
use lodge_proto::{AgentView, ErrorBody};

use super::ends::BreakOff;
use super::jobs::Which;
use super::lineages::{ask_pending, new_lineage};
use super::retries::counted;
use super::state::Agent;
use super::{Again, Batch, Caller, Effect, Engine, NewAgent, Refusal, RunningJobs};
use crate::view;

impl Engine {
    pub(super) fn create_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        new: NewAgent,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let name = self.choose_name(new.name)?;
        self.check_refs(new.image.row.contents.kind(), &new.image.tags)?;
        let digest = new.image.row.digest.clone();
        let row = AgentRow {
            id: AgentId::new(&mut self.ids, now),
            name: name.clone(),
            image: new.called,
            image_digest: digest.clone(),
            lineage: LineageId::new(&mut self.ids, now),
            sandbox: SandboxId::new(&mut self.ids, now),
            state: AgentState::Pulling,
            failure_detail: None,
            incarnation: 1,
            runs: 0,
            uid: if self.host.own_uids { Some(self.next_uid()) } else { None },
            created_at: now,
            started_at: None,
            spec: new.spec,
            retry: Retry::default(),
            next: None,
        };
        let id = row.id.clone();
        let put = self.put_image(batch, new.image);
        let lineage = new_lineage(row.lineage.clone(), id.clone(), now);
        batch.write(Write::Agent(row.clone()));
        batch.write(Write::Lineage(lineage.clone()));
        self.names.insert(name, id.clone());
        self.agents.insert(id.clone(), Agent::new(row, lineage));
        self.name_put(batch, put, now);
        self.agent_event(batch, &id, EventKind::AgentPulling, EventData::default(), now);
        self.fetch(batch, &id, now);
        self.reply_agent(batch, caller, &id, now);
        Ok(())
    }

    pub(super) fn start_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let agent = self.unasked(id)?;
        if agent.row.state.takes_turns() {
            // It runs, or is about to: that is what was asked for. A pause before a revival ends here.
            if agent.lineage.state == LineageState::Orphaned {
                self.revive(batch, id, now);
            }
            self.reply_agent(batch, caller, id, now);
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StartAsked)
            .map_err(|refused| wrong_state(&agent.row, refused.state))?;
        agent.row.incarnation += 1;
        agent.row.retry = Retry::default();
        self.open_lineage(batch, id, now);
        self.set_state(batch, id, next, None, now);
        self.fetch(batch, id, now);
        self.reply_agent(batch, caller, id, now);
        Ok(())
    }

    pub(super) fn stop_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        jobs: RunningJobs,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.spare_jobs(id, jobs)?;
        let agent = self.unasked(id)?;
        if agent.row.state == AgentState::Stopped {
            // Asked twice, or while the first stop is under way: all hear of its end, and nothing is taken for granted.
            self.cancel_jobs(batch, id, Which::All, "its agent was stopped", now);
            self.break_off_turns(batch, id, &BreakOff::Interrupt, now);
            self.answer_when_done(batch, caller, id, AgentState::Stopped, now);
            self.down(batch, id);
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StopAsked)
            .map_err(|refused| wrong_state(&agent.row, refused.state))?;
        self.take_next(batch, id);
        self.move_lineage(batch, id, LineageEvent::Stopped, now);
        self.cancel_jobs(batch, id, Which::All, "its agent was stopped", now);
        self.break_off_turns(batch, id, &BreakOff::Interrupt, now);
        self.set_state(batch, id, next, None, now);
        self.answer_when_done(batch, caller, id, next, now);
        self.down(batch, id);
        Ok(())
    }

    /// As a stop, and the end of its lineage: nothing takes its work up again.
    pub(super) fn kill_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let agent = self.agent_mut(id)?;
        let next = match agent.row.state {
            AgentState::Stopped => AgentState::Stopped,
            state => {
                state.next(AgentEvent::StopAsked).map_err(|refused| wrong_state(&agent.row, refused.state))?
            }
        };
        let moved = next != agent.row.state;
        self.take_next(batch, id);
        self.move_lineage(batch, id, LineageEvent::Killed, now);
        self.cancel_jobs(batch, id, Which::All, "its agent was killed", now);
        self.break_off_turns(batch, id, &BreakOff::Interrupt, now);
        if moved {
            self.set_state(batch, id, next, None, now);
        }
        self.answer_when_done(batch, caller, id, next, now);
        self.down(batch, id);
        Ok(())
    }

    pub(super) fn remove_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        force: bool,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let agent = if force { self.agent_mut(id)? } else { self.unasked(id)? };
        let stops = force && agent.row.state.next(AgentEvent::StopAsked).is_ok();
        let from = if stops { AgentState::Stopped } else { agent.row.state };
        let next = from.next(AgentEvent::RemoveAsked).map_err(|refused| {
            let mut refusal = wrong_state(&agent.row, refused.state);
            if agent.row.state.takes_turns() {
                refusal.data.hint = Some(format!("stop it first, or run `lodge rm -f {}`", agent.row.name));
            }
            refusal
        })?;
        self.take_next(batch, id);
        self.move_lineage(batch, id, LineageEvent::Removed, now);
        self.revoke_tokens_of(batch, id, now);
        self.cancel_jobs(batch, id, Which::All, "its agent was removed", now);
        self.break_off_turns(batch, id, &BreakOff::Interrupt, now);
        self.set_state(batch, id, next, None, now);
        self.answer_when_done(batch, caller, id, AgentState::Removed, now);
        self.down(batch, id);
        self.clear_due(batch, id);
        Ok(())
    }

    /// Moves an agent, records it and says so.
    pub(super) fn set_state(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        next: AgentState,
        detail: Option<String>,
        now: Timestamp,
    ) {
        self.set_state_and_retry(batch, id, next, detail, Again::Later, now);
    }

    /// As [`Engine::set_state`]; a failure after which it is of no use is not tried again.
    pub(super) fn set_state_and_retry(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        next: AgentState,
        detail: Option<String>,
        again: Again,
        now: Timestamp,
    ) {
        let backoff = self.host.settings.backoff;
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.row.retry = match again {
            Again::Later => counted(&agent.row, next, backoff, now),
            Again::Never => Retry::default(),
        };
        agent.row.state = next;
        agent.row.failure_detail.clone_from(&detail);
        if next != AgentState::Pulling && agent.pull.take().is_some() {
            batch.act(Effect::DropPull { agent: id.clone() });
        }
        let (retry, run) = (agent.row.retry, agent.row.runs);
        batch.write(Write::AgentState {
            id: id.clone(),
            state: next,
            detail: detail.clone(),
            lineage: agent.row.lineage.clone(),
            incarnation: agent.row.incarnation,
            runs: agent.row.runs,
            started_at: agent.row.started_at,
            retry: agent.row.retry,
        });
        let again =
            EventData { attempt: (retry.failures > 0).then_some(retry.failures), ..EventData::default() };
        let (kind, data) = match next {
            AgentState::Pulling => (EventKind::AgentPulling, again),
            AgentState::Starting => (EventKind::AgentStarting, EventData::default()),
            AgentState::Ready => (EventKind::AgentReady, EventData::default()),
            AgentState::Stopped => (EventKind::AgentStopped, EventData::default()),
            AgentState::Failed(reason) => {
                self.note_failure(batch, id, reason, detail.as_deref().unwrap_or_default(), now);
                let (reason, retry_at_ms) = (Some(reason.word().to_owned()), retry.at.map(Timestamp::ms));
                (EventKind::AgentFailed, EventData { reason, detail, retry_at_ms, ..again })
            }
            AgentState::Removing => (EventKind::AgentRemoving, EventData::default()),
            AgentState::Removed => (EventKind::AgentRemoved, EventData::default()),
        };
        self.agent_event(batch, id, kind, data, now);
        if let Some(at) = retry.at {
            let delay_ms = u64::try_from(at.ms() - now.ms()).unwrap_or(0);
            batch.act(Effect::RetryLater { agent: id.clone(), run, delay_ms });
        }
    }

    /// Every failure is a line of the agent's own log.
    fn note_failure(
        &self,
        batch: &mut Batch,
        id: &AgentId,
        reason: FailReason,
        detail: &str,
        now: Timestamp,
    ) {
        let detail: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = format!("[{now}] failed: {}: {detail}", reason.word());
        batch.act(Effect::NoteFailure { agent: id.clone(), line });
    }

    pub(super) fn agent_event(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        kind: EventKind,
        mut data: EventData,
        now: Timestamp,
    ) {
        data.name = self.agents.get(id).map(|agent| agent.row.name.clone());
        self.event(batch, id.as_str(), kind, data, now);
    }

    pub(super) fn reply_agent(&mut self, batch: &mut Batch, caller: Caller, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get(id) else { return };
        let view = AgentView {
            quarantine: self.quarantine_of(id),
            ..view::agent(&agent.row, self.is_at_work(id), None)
        };
        self.reply(batch, caller, view::json(&view), now);
    }

    pub(super) fn agent_mut(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        self.agents.get_mut(id).ok_or_else(|| no_agent(id.as_str()))
    }

    /// The agent, unless an operator has to decide about it first.
    pub(super) fn unasked(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        let agent = self.agent_mut(id)?;
        if agent.lineage.state == LineageState::AskPending {
            return Err(ask_pending(&agent.lineage, &agent.row.name));
        }
        Ok(agent)
    }

    /// The agent, unless the observation is about an earlier process of it.
    pub(super) fn current(&mut self, id: &AgentId, run: u32) -> Option<&mut Agent> {
        self.agents.get_mut(id).filter(|agent| agent.row.runs == run)
    }
}

pub(crate) fn no_agent(given: &str) -> Refusal {
    Box::new(
        ErrorBody::new("agent.not_found", format!("no agent `{given}`"))
            .hint("`lodge ps -a` lists all agents"),
    )
}

pub(super) fn wrong_state(row: &AgentRow, state: AgentState) -> Refusal {
    let hint = match state {
        AgentState::Pulling | AgentState::Starting | AgentState::Ready => {
            format!("it runs already; `lodge agent inspect {}` shows it", row.name)
        }
        AgentState::Stopped | AgentState::Failed(_) => format!("start it with `lodge start {}`", row.name),
        AgentState::Removing | AgentState::Removed => "it is being removed".to_owned(),
    };
    Box::new(
        ErrorBody::new("agent.wrong_state", format!("agent `{}` is {}", row.name, state.word())).hint(hint),
    )
}

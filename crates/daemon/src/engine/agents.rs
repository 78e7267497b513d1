//! Agents: created, started, adopted, stopped, removed, failed.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::limits::NAME_BYTES_MAX;
use lodge_core::lineage::{LineageEvent, LineageState};
use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentRow, FailureRecord, Write};
use lodge_core::{AgentId, EventData, EventKind, LineageId, SandboxId, Timestamp, TurnId};
use lodge_proto::ErrorBody;

use super::lineages::{ask_pending, new_lineage};
use super::state::Agent;
use super::waiting::refuse;
use super::{Batch, Caller, Effect, Engine, NameChoice, NewAgent, Part, Refusal, Up};
use crate::view;

/// Users of sandboxes start here, above the ranges that distributions and systemd hand out.
const UID_BASE: u32 = 1_900_000_000;

/// What becomes of pauses before a revival when memory is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pauses {
    /// A daemon that starts makes its own beginning.
    Skip,
    /// The same daemon goes on: nothing is tried more often than it should be.
    Keep,
}

/// What becomes of the open turns of an agent whose process is gone.
#[derive(Debug)]
pub(super) enum BreakOff {
    /// They wait in the ledger.
    Nothing,
    Interrupt,
    Fail(FailureRecord),
}

impl Engine {
    pub(super) fn create_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        new: NewAgent,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let name = self.choose_name(new.name)?;
        let row = AgentRow {
            id: AgentId::new(&mut self.ids, now),
            name: name.clone(),
            image: new.image.clone(),
            image_digest: new.image_digest.clone(),
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
        };
        let id = row.id.clone();
        batch.write(Write::Image { digest: new.image_digest, name: new.image, record: new.record });
        let lineage = new_lineage(row.lineage.clone(), id.clone(), now);
        batch.write(Write::Agent(row.clone()));
        batch.write(Write::Lineage(lineage.clone()));
        self.names.insert(name, id.clone());
        self.agents.insert(id.clone(), Agent::new(row, lineage));
        self.agent_event(batch, &id, EventKind::AgentPulling, EventData::default(), now);
        self.image_ready(batch, &id, now);
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
        self.open_lineage(batch, id, now);
        self.set_state(batch, id, next, None, now);
        self.image_ready(batch, id, now);
        self.reply_agent(batch, caller, id, now);
        Ok(())
    }

    pub(super) fn stop_agent(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let agent = self.unasked(id)?;
        if agent.row.state == AgentState::Stopped {
            // Asked twice, or while the first stop is under way: all hear of its end, and nothing is taken for granted.
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
        self.move_lineage(batch, id, LineageEvent::Stopped, now);
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
        self.move_lineage(batch, id, LineageEvent::Killed, now);
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
        let sandbox = agent.row.sandbox.clone();
        self.move_lineage(batch, id, LineageEvent::Removed, now);
        self.break_off_turns(batch, id, &BreakOff::Interrupt, now);
        self.set_state(batch, id, next, None, now);
        self.answer_when_done(batch, caller, id, AgentState::Removed, now);
        self.down(batch, id);
        batch.act(Effect::Clear { agent: id.clone(), sandbox });
        Ok(())
    }

    /// After a start of the daemon: whatever should live is adopted or brought up, the rest is brought down.
    pub(super) fn adopt_all(&mut self, batch: &mut Batch, pauses: Pauses, now: Timestamp) {
        batch.urgent = true;
        let ids: Vec<AgentId> = self.agents.keys().cloned().collect();
        for id in ids {
            let Some(agent) = self.agents.get(&id) else { continue };
            match agent.row.state {
                AgentState::Pulling if agent.lineage.state == LineageState::Orphaned => match pauses {
                    Pauses::Skip => self.revive(batch, &id, now),
                    Pauses::Keep => self.pause_again(batch, &id, now),
                },
                AgentState::Pulling => self.image_ready(batch, &id, now),
                AgentState::Starting | AgentState::Ready => {
                    batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Adopt })
                }
                AgentState::Removing => {
                    let sandbox = agent.row.sandbox.clone();
                    self.down(batch, &id);
                    batch.act(Effect::Clear { agent: id, sandbox });
                }
                // Nothing of them should live; the host reports what does.
                AgentState::Stopped | AgentState::Failed(_) | AgentState::Removed => {}
            }
        }
    }

    /// The image is in the store, so a pull ends as it begins.
    pub(super) fn image_ready(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageReady) else { return };
        agent.row.runs += 1;
        self.set_state(batch, id, next, None, now);
        if let Some(agent) = self.agents.get(id) {
            batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Start });
        }
    }

    pub(super) fn runtime_ready(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        adopted: bool,
        running: &[TurnId],
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let (was, incarnation) = (agent.row.state, agent.row.incarnation);
        let Ok(next) = was.next(AgentEvent::ProbeAnswered) else { return };
        if was != next {
            agent.row.started_at = Some(now);
            let works = agent.running > 0;
            self.set_state(batch, id, next, None, now);
            if works {
                // Turns that an earlier process had go on.
                self.agent_event(batch, id, EventKind::AgentWorking, EventData::default(), now);
            }
        }
        if adopted {
            let data = EventData { incarnation: Some(incarnation), ..EventData::default() };
            self.agent_event(batch, id, EventKind::LineageAdopted, data, now);
        }
        self.set_liveness(batch, id, Liveness::Active, now);
        batch.urgent = true;
        self.resume_turns(batch, id, running, now);
    }

    pub(super) fn agent_failed(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        event: AgentEvent,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(event) else { return };
        self.set_state(batch, id, next, Some(detail), now);
        self.down(batch, id);
    }

    /// One that was to start has failed to. If it had work, or died before, that is one more death: whatever was in the
    /// way may be gone at the next try. One that was ready and cannot be reached is left alone, for an operator.
    pub(super) fn agent_not_started(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let has_work = agent.running > 0 || agent.lineage.deaths > 0;
        match agent.row.state {
            AgentState::Starting if has_work => {
                self.agent_died(batch, id, run, Part::Runtime, detail, now);
            }
            AgentState::Ready => {
                if let Ok(next) = AgentState::Ready.next(AgentEvent::SpawnFailed) {
                    self.set_state(batch, id, next, Some(detail), now);
                }
            }
            AgentState::Starting
            | AgentState::Pulling
            | AgentState::Stopped
            | AgentState::Failed(_)
            | AgentState::Removing
            | AgentState::Removed => {
                self.agent_failed(batch, id, run, AgentEvent::SpawnFailed, detail, now);
            }
        }
    }

    /// Whoever asked hears why; asking again tries again.
    ///
    /// One that nobody asked to end, and that cannot be ended, is not revived beside itself.
    pub(super) fn agent_not_down(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        detail: String,
        now: Timestamp,
    ) {
        if let Some(agent) = self.current(id, run)
            && let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false })
            && next != agent.row.state
        {
            self.set_state(batch, id, next, Some(detail.clone()), now);
        }
        let Some(agent) = self.agents.get_mut(id) else { return };
        let name = &agent.row.name;
        let refusal = ErrorBody::new("agent.not_ended", format!("agent `{name}` could not be ended"))
            .because(&detail)
            .hint(format!("look at its process with `lodge agent inspect {name}`, then ask again"));
        refuse(batch, agent, run, &refusal);
    }

    /// The sandbox is gone: whoever asked for that hears of it.
    pub(super) fn agent_down(&mut self, batch: &mut Batch, id: &AgentId, run: u32, now: Timestamp) {
        if self.agents.get(id).is_some_and(|agent| agent.row.state != AgentState::Removing) {
            self.tell_waiting(batch, id, run, now);
        }
    }

    pub(super) fn agent_cleared(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Cleared) else { return };
        let run = agent.row.runs;
        self.tell_waiting(batch, id, run, now);
        self.set_state(batch, id, next, None, now);
        if let Some(agent) = self.agents.remove(id) {
            self.names.remove(&agent.row.name);
        }
        self.streams.remove(id.as_str());
    }

    /// Whoever asked hears why; asking again tries again.
    pub(super) fn agent_not_cleared(&mut self, batch: &mut Batch, id: &AgentId, detail: &str) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let name = agent.row.name.clone();
        let refusal =
            ErrorBody::new("agent.not_cleared", format!("the files of agent `{name}` could not be removed"))
                .because(detail)
                .hint(format!("mend that, then run `lodge rm {name}` again"));
        let run = agent.row.runs;
        refuse(batch, agent, run, &refusal);
    }

    /// Has the sandbox ended that the agent has now.
    pub(super) fn down(&mut self, batch: &mut Batch, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else { return };
        let (sandbox, run) = (agent.row.sandbox.clone(), agent.row.runs);
        batch.act(Effect::Down { agent: id.clone(), sandbox, run });
    }

    /// Ends every live turn of an agent that is going away, or lets them wait.
    pub(super) fn break_off_turns(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        how: &BreakOff,
        now: Timestamp,
    ) {
        let mut live: Vec<(u32, TurnId)> = self
            .turns
            .values()
            .filter(|turn| turn.row.agent == *id)
            .map(|turn| (turn.row.number, turn.row.id.clone()))
            .collect();
        // The last of every session first, so that ending one never starts the next.
        live.sort_by(|a, b| b.cmp(a));
        for (_, turn) in live {
            match how {
                BreakOff::Nothing => {}
                BreakOff::Interrupt => self.interrupt(batch, &turn, now),
                BreakOff::Fail(failure) => self.fail_turn(batch, &turn, failure.clone(), now),
            }
        }
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
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.row.state = next;
        agent.row.failure_detail.clone_from(&detail);
        batch.write(Write::AgentState {
            id: id.clone(),
            state: next,
            detail: detail.clone(),
            lineage: agent.row.lineage.clone(),
            incarnation: agent.row.incarnation,
            runs: agent.row.runs,
            started_at: agent.row.started_at,
        });
        let (kind, data) = match next {
            AgentState::Pulling => (EventKind::AgentPulling, EventData::default()),
            AgentState::Starting => (EventKind::AgentStarting, EventData::default()),
            AgentState::Ready => (EventKind::AgentReady, EventData::default()),
            AgentState::Stopped => (EventKind::AgentStopped, EventData::default()),
            AgentState::Failed(reason) => (
                EventKind::AgentFailed,
                EventData { reason: Some(reason.word().to_owned()), detail, ..EventData::default() },
            ),
            AgentState::Removing => (EventKind::AgentRemoving, EventData::default()),
            AgentState::Removed => (EventKind::AgentRemoved, EventData::default()),
        };
        self.agent_event(batch, id, kind, data, now);
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

    fn reply_agent(&mut self, batch: &mut Batch, caller: Caller, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get(id) else { return };
        let view = view::agent(&agent.row, agent.running > 0, None);
        self.reply(batch, caller, view::json(&view), now);
    }

    fn agent_mut(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        self.agents.get_mut(id).ok_or_else(|| no_agent(id.as_str()))
    }

    /// The agent, unless an operator has to decide about it first.
    fn unasked(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
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

    fn choose_name(&self, choice: NameChoice) -> Result<String, Refusal> {
        match choice {
            NameChoice::Exactly(name) => {
                check_name(&name)?;
                if self.names.contains_key(&name) {
                    return Err(Box::new(
                        ErrorBody::new("agent.name_taken", format!("another agent is named `{name}`"))
                            .hint(format!("choose another name, or remove that one with `lodge rm {name}`")),
                    ));
                }
                Ok(name)
            }
            NameChoice::Like(name) => {
                check_name(&name)?;
                let taken = |name: &str| self.names.contains_key(name);
                let next = (2..).map(|n: u32| format!("{name}-{n}")).find(|name| !taken(name));
                Ok(if taken(&name) { next.unwrap_or(name) } else { name })
            }
        }
    }

    /// A user that no sandbox ever had: what an agent left behind in a mount is nobody else's.
    fn next_uid(&mut self) -> u32 {
        let uid = self.last_uid.map_or(UID_BASE, |uid| uid + 1);
        self.last_uid = Some(uid);
        uid
    }
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && !name.starts_with("agt_");
    if fits {
        return Ok(());
    }
    Err(Box::new(ErrorBody::new("agent.bad_name", format!("`{name}` cannot be an agent's name")).hint(
        "1 to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit, and not with `agt_`",
    )))
}

pub(crate) fn no_agent(given: &str) -> Refusal {
    Box::new(
        ErrorBody::new("agent.not_found", format!("no agent `{given}`"))
            .hint("`lodge ps -a` lists all agents"),
    )
}

fn wrong_state(row: &AgentRow, state: AgentState) -> Refusal {
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

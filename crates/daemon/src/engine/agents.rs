//! Agents: created, started, adopted, stopped, removed, failed.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::limits::NAME_BYTES_MAX;
use lodge_core::record::{AgentRow, RequestRow, Write};
use lodge_core::{AgentId, EventData, EventKind, LineageId, SandboxId, Timestamp, TurnId};
use lodge_proto::ErrorBody;

use super::state::Agent;
use super::{Batch, Caller, Effect, Engine, NameChoice, NewAgent, Out, Refusal, Up};
use crate::view;

/// Users of sandboxes start here, above the ranges that distributions and systemd hand out.
const UID_BASE: u32 = 1_900_000_000;

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
            incarnation: 0,
            uid: if self.host.own_uids { Some(self.next_uid()) } else { None },
            created_at: now,
            started_at: None,
            spec: new.spec,
        };
        let id = row.id.clone();
        batch.write(Write::Image { digest: new.image_digest, name: new.image, record: new.record });
        batch.write(Write::Agent(row.clone()));
        self.names.insert(name, id.clone());
        self.agents.insert(id.clone(), Agent::new(row));
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
        let agent = self.agent_mut(id)?;
        if agent.row.state.takes_turns() {
            // It runs, or is about to: that is what was asked for.
            self.reply_agent(batch, caller, id, now);
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StartAsked)
            .map_err(|refused| wrong_state(&agent.row, refused.state))?;
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
        let agent = self.agent_mut(id)?;
        if agent.row.state == AgentState::Stopped {
            // Asked twice, or while the first stop is under way: all hear of its end, and nothing is taken for granted.
            let sandbox = agent.row.sandbox.clone();
            self.answer_when_done(batch, caller, id, now);
            batch.act(Effect::Down { agent: id.clone(), sandbox });
            return Ok(());
        }
        let next = agent
            .row
            .state
            .next(AgentEvent::StopAsked)
            .map_err(|refused| wrong_state(&agent.row, refused.state))?;
        let sandbox = agent.row.sandbox.clone();
        self.end_turns(batch, id, now);
        self.set_state(batch, id, next, None, now);
        self.answer_when_done(batch, caller, id, now);
        batch.act(Effect::Down { agent: id.clone(), sandbox });
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
        let agent = self.agent_mut(id)?;
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
        self.end_turns(batch, id, now);
        self.set_state(batch, id, next, None, now);
        self.answer_when_done(batch, caller, id, now);
        batch.act(Effect::Down { agent: id.clone(), sandbox: sandbox.clone() });
        batch.act(Effect::Clear { agent: id.clone(), sandbox });
        Ok(())
    }

    /// After a start of the daemon: whatever should live is adopted or brought up, the rest is brought down.
    pub(super) fn adopt_all(&mut self, batch: &mut Batch, now: Timestamp) {
        batch.urgent = true;
        let ids: Vec<AgentId> = self.agents.keys().cloned().collect();
        for id in ids {
            let Some(agent) = self.agents.get(&id) else { continue };
            match agent.row.state {
                AgentState::Pulling => self.image_ready(batch, &id, now),
                AgentState::Starting | AgentState::Ready => {
                    batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Adopt })
                }
                AgentState::Removing => {
                    let sandbox = agent.row.sandbox.clone();
                    batch.act(Effect::Down { agent: id.clone(), sandbox: sandbox.clone() });
                    batch.act(Effect::Clear { agent: id, sandbox });
                }
                // Nothing of them should live; the host reports what does.
                AgentState::Stopped | AgentState::Failed(_) | AgentState::Removed => {}
            }
        }
    }

    /// The image is in the store, so a pull ends as it begins.
    fn image_ready(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageReady) else { return };
        agent.row.incarnation += 1;
        self.set_state(batch, id, next, None, now);
        if let Some(agent) = self.agents.get(id) {
            batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Start });
        }
    }

    pub(super) fn runtime_ready(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        incarnation: u32,
        adopted: bool,
        running: &[TurnId],
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, incarnation) else { return };
        let was = agent.row.state;
        let Ok(next) = was.next(AgentEvent::ProbeAnswered) else { return };
        if was != next {
            agent.row.started_at = Some(now);
            self.set_state(batch, id, next, None, now);
        }
        if adopted {
            let data = EventData { incarnation: Some(incarnation), ..EventData::default() };
            self.agent_event(batch, id, EventKind::LineageAdopted, data, now);
        }
        batch.urgent = true;
        self.resume_turns(batch, id, running, now);
    }

    pub(super) fn agent_failed(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        incarnation: u32,
        event: AgentEvent,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, incarnation) else { return };
        let Ok(next) = agent.row.state.next(event) else { return };
        let sandbox = agent.row.sandbox.clone();
        self.set_state(batch, id, next, Some(detail), now);
        batch.act(Effect::Down { agent: id.clone(), sandbox });
    }

    /// Its runtime or keeper ended unasked. Turns in flight wait in the ledger for the next start.
    pub(super) fn agent_exited(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        incarnation: u32,
        clean: bool,
        detail: String,
        now: Timestamp,
    ) {
        self.agent_failed(batch, id, incarnation, AgentEvent::Exited { clean }, detail, now);
    }

    /// The machine was restarted, or its keeper ended while no daemon was there: it is brought up anew, and its turns
    /// go on from their ledger.
    pub(super) fn agent_found_gone(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        incarnation: u32,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, incarnation) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::FoundGone) else { return };
        self.set_state(batch, id, next, None, now);
        self.image_ready(batch, id, now);
    }

    /// Whoever asked hears why; asking again tries again.
    pub(super) fn agent_not_down(&mut self, batch: &mut Batch, id: &AgentId, detail: &str) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let name = agent.row.name.clone();
        let refusal = ErrorBody::new("agent.not_ended", format!("agent `{name}` could not be ended"))
            .because(detail)
            .hint(format!("look at its process with `lodge agent inspect {name}`, then ask again"));
        refuse_all(batch, agent, &refusal);
    }

    /// The sandbox is gone: whoever asked for that hears of it.
    pub(super) fn agent_down(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        if agent.row.state == AgentState::Removing {
            return;
        }
        for caller in std::mem::take(&mut agent.stopping) {
            self.reply_agent(batch, caller, id, now);
        }
    }

    pub(super) fn agent_cleared(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Cleared) else { return };
        let callers = std::mem::take(&mut agent.stopping);
        self.set_state(batch, id, next, None, now);
        for caller in callers {
            self.reply_agent(batch, caller, id, now);
        }
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
        refuse_all(batch, agent, &refusal);
    }

    /// Ends every live turn of an agent that is going away.
    fn end_turns(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let mut live: Vec<(u32, TurnId)> = self
            .turns
            .values()
            .filter(|turn| turn.row.agent == *id)
            .map(|turn| (turn.row.number, turn.row.id.clone()))
            .collect();
        // The last of every session first, so that ending one never starts the next.
        live.sort_by(|a, b| b.cmp(a));
        for (_, turn) in live {
            self.interrupt(batch, &turn, now);
        }
    }

    /// Moves an agent, records it and says so.
    fn set_state(
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
            incarnation: agent.row.incarnation,
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

    /// Lets a caller wait for the end of what was decided. Should the daemon die before, a resend of the request is
    /// told what was decided, and decides nothing again.
    fn answer_when_done(&mut self, batch: &mut Batch, caller: Caller, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        if let Some(key) = &caller.request {
            let view = view::agent(&agent.row, false, None);
            batch.write(Write::Request(RequestRow {
                caller: key.caller.clone(),
                request_id: key.request_id.clone(),
                digest: key.digest,
                answer: view::json(&view).to_string().into_bytes(),
                at: now,
            }));
        }
        agent.stopping.push(caller);
    }

    fn reply_agent(&mut self, batch: &mut Batch, caller: Caller, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get(id) else { return };
        let view = view::agent(&agent.row, agent.running > 0, None);
        self.reply(batch, caller, view::json(&view), now);
    }

    fn agent_mut(&mut self, id: &AgentId) -> Result<&mut Agent, Refusal> {
        self.agents.get_mut(id).ok_or_else(|| no_agent(id.as_str()))
    }

    /// The agent, unless the observation is about an earlier incarnation of it.
    fn current(&mut self, id: &AgentId, incarnation: u32) -> Option<&mut Agent> {
        self.agents.get_mut(id).filter(|agent| agent.row.incarnation == incarnation)
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

/// Tells everybody who waits for the agent's end that it did not come.
fn refuse_all(batch: &mut Batch, agent: &mut Agent, refusal: &ErrorBody) {
    for caller in std::mem::take(&mut agent.stopping) {
        batch.after.push(Out::Reply { ticket: caller.ticket, reply: Err(refusal.clone()) });
    }
    batch.urgent = true;
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

//! Turns: accepted, started, resumed, finished, failed, interrupted. Turns of one session never interleave.

pub(crate) mod compact;
pub(crate) mod execs;
pub mod messages;
mod misfits;
pub(crate) mod models;
pub(crate) mod outages;
pub mod refusal;
mod retry;
mod runtime_calls;
mod slots;
mod state;

use lodge_core::agent::AgentState;
use lodge_core::event::{
    AgentWorking, EventBody, TurnAccepted, TurnFailed, TurnFinished, TurnInterrupted, TurnStarted,
};
use lodge_core::limits::{
    AGENT_TURNS_MAX, IDLE_SESSIONS_MAX, LIVE_TURNS_MAX, MESSAGE_BYTES_MAX, SESSION_QUEUE_MAX,
};
use lodge_core::lineage::LineageState;
use lodge_core::record::{
    FailureRecord, LiveTurn, MessageBody, MessageRow, Role, SessionRow, SessionWrite, TurnRow, TurnWrite,
    Usage,
};
use lodge_core::session::TurnLinks;
use lodge_core::summary::{TurnDetail, TurnExtras, WaitReasons};
use lodge_core::turn::{StepEvent, TurnEvent, TurnState};
use lodge_core::{AgentId, SessionId, TurnId};

pub use self::refusal::TurnRefusal;
pub(crate) use self::state::{ModelCallRequest, Phase, ToolCallState, Turn};
use crate::agents::refusal::{AgentRefusal, LineageRefusal};
use crate::agents::{Agent, no_agent};
use crate::sessions::Session;
use crate::sessions::refusal::SessionRefusal;
use crate::{Answer, Caller, Engine, NewTurn, Refusal, SandboxEffect, SessionChoice};

/// How a turn ended, for its event.
#[derive(Debug)]
enum TurnEnd {
    Finished,
    Interrupted,
    Failed(FailureRecord),
}

impl Engine {
    pub(crate) fn send_turn(&mut self, caller: Caller, new: NewTurn) -> Result<(), Refusal> {
        self.admit(&new)?;
        let session = self.open_session(&new)?;
        let turn = self.accept(&session, &new, TurnLinks::default(), None);
        self.begin(caller, &turn, &session);
        Ok(())
    }

    /// Starts a newly accepted turn if possible, and answers its caller.
    pub(crate) fn begin(&mut self, caller: Caller, turn: &TurnId, session: &SessionId) {
        self.start_next(session);
        if let Some(turn) = self.turns.get(turn) {
            let (row, wait_reasons) = (turn.row.clone(), self.wait_reasons(turn));
            self.reply(caller, new_turn(row, wait_reasons));
        }
    }

    /// All checks that can refuse a turn, before any change.
    pub(crate) fn admit(&self, new: &NewTurn) -> Result<(), Refusal> {
        let agent = self.agents.get(&new.agent).ok_or_else(|| no_agent(&new.agent))?;
        if new.text.trim().is_empty() {
            return Err(TurnRefusal::Empty.into());
        }
        if new.text.len() > MESSAGE_BYTES_MAX {
            return Err(TurnRefusal::TooLarge { bytes: new.text.len() }.into());
        }
        self.takes_work(agent)?;
        if self.turns.len() >= LIVE_TURNS_MAX {
            return Err(Refusal::Busy);
        }
        Ok(())
    }

    /// Whether new turns and jobs of an agent are accepted, even if they wait for its start.
    pub(crate) fn takes_work(&self, agent: &Agent) -> Result<(), Refusal> {
        if agent.row.state.takes_turns() {
            return Ok(());
        }
        if agent.lineage.state == LineageState::AskPending {
            return Err(LineageRefusal::ask_pending(&agent.lineage, &agent.row.name).into());
        }
        let (name, state, retry_at) = (agent.row.name.clone(), agent.row.state, agent.row.retry.at);
        let why = match state {
            AgentState::Failed(_) => agent.row.failure_detail.clone(),
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Stopped
            | AgentState::Removing
            | AgentState::Removed => None,
        };
        Err(AgentRefusal::NotRunning { name, state, why, retry_at }.into())
    }

    /// The session a turn goes to, created when it is new.
    fn open_session(&mut self, new: &NewTurn) -> Result<SessionId, Refusal> {
        let id = match &new.session {
            SessionChoice::Fresh => SessionId::new(&mut self.ids, self.step.now),
            SessionChoice::Named { id, fact } => {
                if self.sessions.get(id).is_some_and(|session| session.gone) {
                    // It was deleted, and starts again.
                    self.sessions.remove(id);
                } else if !self.sessions.contains_key(id)
                    && let Some(fact) = fact
                {
                    self.sessions.insert(id.clone(), Session::from_fact(fact));
                }
                id.clone()
            }
        };
        if let Some(session) = self.sessions.get(&id) {
            if session.row.agent != new.agent {
                let owner = self.agent_name(&session.row.agent);
                // The session may be in memory only for this request.
                self.rest_session(&id);
                return Err(SessionRefusal::OtherAgent { session: id, owner }.into());
            }
            if session.live.len() > SESSION_QUEUE_MAX {
                return Err(SessionRefusal::QueueFull { session: id }.into());
            }
            return Ok(id);
        }
        let row = SessionRow {
            id: id.clone(),
            agent: new.agent.clone(),
            sender: new.sender.clone(),
            created_at: self.step.now,
            forked: None,
        };
        self.step.write(SessionWrite::New(row.clone()));
        self.sessions.insert(id.clone(), Session::new(row));
        Ok(id)
    }

    /// Records a turn at the end of its session's path. `note` is the note of the turn that it replaces.
    pub(crate) fn accept(
        &mut self,
        id: &SessionId,
        new: &NewTurn,
        place: TurnLinks,
        note: Option<String>,
    ) -> TurnId {
        let turn = TurnId::new(&mut self.ids, self.step.now);
        let replaces = place.replaces.as_ref().map(ToString::to_string);
        let body = MessageBody {
            text: new.text.clone(),
            schema: new.schema.clone(),
            note: note.clone(),
            ..MessageBody::default()
        };
        let mut message = MessageRow {
            session: id.clone(),
            seq: 1,
            turn: turn.clone(),
            number: 1,
            step: 0,
            role: Role::User,
            at: self.step.now,
            body,
        };
        let row = self.append_turn(&turn, id, &new.agent, place, std::slice::from_mut(&mut message));
        self.turns.insert(turn.clone(), Turn { came: self.seq, note, ..Turn::new(row) });
        let sender = new.sender.clone();
        self.turn_event(&turn, |session, turn| TurnAccepted { session, turn, sender, replaces });
        turn
    }

    /// Records a turn and its messages at the end of its session's path, which gives the messages their places.
    fn append_turn(
        &mut self,
        turn: &TurnId,
        id: &SessionId,
        agent: &AgentId,
        mut place: TurnLinks,
        messages: &mut [MessageRow],
    ) -> TurnRow {
        let first_event = self.streams.get(agent.as_str()).map_or(1, |newest| newest.head + 1);
        let (mut number, mut first_message) = (1, 1);
        if let Some(session) = self.sessions.get_mut(id) {
            session.turns += 1;
            place.parent = session.tip.replace(turn.clone());
            session.live.push_back(turn.clone());
            (number, first_message) = (session.turns, session.messages + 1);
            for message in messages.iter_mut() {
                session.messages += 1;
                (message.seq, message.turn, message.number) = (session.messages, turn.clone(), number);
                session.epoch.add(number, message.body.weight());
            }
        }
        let row = TurnRow {
            id: turn.clone(),
            session: id.clone(),
            agent: agent.clone(),
            number,
            place,
            state: TurnState::Queued,
            first_event,
            first_message,
            created_at: self.step.now,
            ended_at: None,
            usage: Usage::default(),
            failure: None,
            park: None,
        };
        self.step.write(TurnWrite::New(row.clone()));
        messages.iter().for_each(|message| self.step.write(TurnWrite::Message(message.clone())));
        row
    }

    /// Starts or continues the first turn of a session, if its agent may work and the session has no running turn.
    pub(crate) fn start_next(&mut self, session: &SessionId) {
        let Some(id) = self.sessions.get(session).and_then(|session| session.live.front()).cloned() else {
            return;
        };
        let Some(turn) = self.turns.get(&id) else { return };
        let may_work = self.agents.get(&turn.row.agent).is_some_and(|agent| self.may_work(agent));
        let parked = turn.row.state == TurnState::Waiting;
        let event = if parked { TurnEvent::Resumed } else { TurnEvent::Started };
        let Ok(next) = turn.row.state.next(event) else { return };
        if !may_work || self.is_quarantined(&id) || self.is_held(turn) {
            return;
        }
        let agent = turn.row.agent.clone();
        if let Some(turn) = self.turns.get_mut(&id) {
            turn.row.state = next;
        }
        let first = self.count_running_turn(&agent);
        if !parked {
            self.note_jobs(&id);
        }
        self.write_turn(&id);
        if !parked {
            self.turn_event(&id, |session, turn| TurnStarted { session, turn });
        }
        if first {
            self.agent_event(&agent, |name| AgentWorking { name });
        }
        self.resume_execs(&id);
        self.run(&id);
        // A job of this session may have waited for a pending update. The turn may wait for that job, so the job starts
        // now.
        if self.agents.get(&agent).is_some_and(|agent| agent.row.next.is_some()) {
            self.start_pending_jobs();
        }
    }

    /// After the runtime answered its probe: it gets every running turn it does not have, and queued ones start.
    pub(crate) fn resume_turns(&mut self, agent: &AgentId, has: &[TurnId]) {
        // A turn that a later turn of its session starts here has been handed over with it.
        let mut turns: Vec<(TurnId, bool)> = self
            .turns
            .values()
            .filter(|turn| turn.row.agent == *agent)
            .map(|turn| (turn.row.id.clone(), turn.is_running()))
            .collect();
        turns.sort();
        for (id, ran) in &turns {
            let Some(turn) = self.turns.get(id) else { continue };
            if *ran {
                self.resume_execs(id);
                if !has.contains(id) {
                    self.run(id);
                }
            } else {
                let session = turn.row.session.clone();
                self.start_next(&session);
            }
        }
        // Turns of the runtime that have ended, or that may not run now.
        let unwanted = |id: &&TurnId| !self.turns.contains_key(id) || self.is_quarantined(id);
        let unwanted: Vec<&TurnId> = has.iter().filter(unwanted).collect();
        for id in unwanted {
            self.in_sandbox(agent, SandboxEffect::DropTurn { turn: id.clone() });
        }
    }

    /// Hands a running turn to the runtime, at the position that its ledger records.
    fn run(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get(id) else { return };
        let (step, calls) = turn.resume_point();
        let Some(session) = self.sessions.get(&turn.row.session) else { return };
        let Some(agent) = self.agents.get(&turn.row.agent) else { return };
        self.step.act(agent.in_sandbox(SandboxEffect::RunTurn {
            turn: id.clone(),
            session: turn.row.session.clone(),
            number: turn.row.number,
            step,
            calls,
            epoch: session.epoch.weight(turn.row.number),
        }));
    }

    /// Restores a turn that was live in an earlier daemon.
    pub(crate) fn take_over(&mut self, live: LiveTurn) {
        let turn = Turn::from_live(live);
        let id = turn.row.id.clone();
        if let Some(session) = self.sessions.get_mut(&turn.row.session) {
            session.live.push_back(id.clone());
        }
        if turn.is_running() {
            self.count_running_turn(&turn.row.agent);
        }
        if let Phase::Tools { calls } = &turn.phase {
            for exec in calls
                .iter()
                .filter(|call| call.result.is_none())
                .filter_map(|call| call.step.as_ref()?.target.exec().cloned())
            {
                self.execs.insert(exec, id.clone());
            }
        }
        self.turns.insert(id, turn);
    }

    pub(crate) fn interrupt_turn(&mut self, caller: Caller, id: &TurnId) -> Result<(), Refusal> {
        let Some(turn) = self.turns.get(id) else {
            return Err(TurnRefusal::Over { turn: id.clone() }.into());
        };
        let (agent, mut row) = (turn.row.agent.clone(), turn.row.clone());
        let was_running = turn.is_running();
        self.interrupt(id);
        if was_running {
            self.in_sandbox(&agent, SandboxEffect::DropTurn { turn: id.clone() });
        }
        row.state = TurnState::Interrupted;
        row.ended_at = Some(self.step.now);
        self.reply(caller, new_turn(row, None));
        Ok(())
    }

    /// Interrupts a turn: its model call is cancelled, its programs are killed, its partial text is kept.
    pub(crate) fn interrupt(&mut self, id: &TurnId) {
        self.cut_steps(id, StepEvent::Interrupted);
        self.end_turn(id, TurnEvent::InterruptAsked, None);
    }

    pub(crate) fn fail_turn(&mut self, id: &TurnId, failure: FailureRecord) {
        self.cut_steps(id, StepEvent::Failed);
        self.end_turn(id, TurnEvent::Failed, Some(failure));
    }

    /// Ends a turn in the given way, and releases its session and its agent.
    pub(crate) fn end_turn(&mut self, id: &TurnId, event: TurnEvent, failure: Option<FailureRecord>) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let was_running = turn.is_running();
        let Ok(next) = turn.row.state.next(event) else { return };
        let end = match next {
            TurnState::Done => TurnEnd::Finished,
            TurnState::Failed => TurnEnd::Failed(failure.clone().unwrap_or_default()),
            TurnState::Interrupted => TurnEnd::Interrupted,
            TurnState::Queued | TurnState::Running | TurnState::Waiting => return,
        };
        turn.row.state = next;
        turn.row.ended_at = Some(self.step.now);
        turn.row.failure = failure;
        self.forget_wait(id);
        let Some(turn) = self.turns.get(id) else { return };
        let (agent, session, usage) = (turn.row.agent.clone(), turn.row.session.clone(), turn.row.usage);
        self.write_turn(id);
        let Usage { input_tokens, output_tokens, cached_tokens, micro_usd } = usage;
        self.turn_event(id, |session, turn| match end {
            TurnEnd::Failed(FailureRecord { code, message, hint }) => EventBody::from(TurnFailed {
                session,
                turn,
                input_tokens,
                output_tokens,
                cached_tokens,
                micro_usd,
                code,
                message,
                hint,
            }),
            TurnEnd::Interrupted => {
                TurnInterrupted { session, turn, input_tokens, output_tokens, cached_tokens, micro_usd }
                    .into()
            }
            TurnEnd::Finished => {
                TurnFinished { session, turn, input_tokens, output_tokens, cached_tokens, micro_usd }.into()
            }
        });
        if next == TurnState::Done {
            self.lineage_progressed(&agent);
        }
        self.forget_turns_work(id);
        self.turns.remove(id);
        if let Some(session) = self.sessions.get_mut(&session) {
            session.live.retain(|live| live != id);
        }
        if was_running {
            self.release_running_turn(&agent);
        }
        self.start_next(&session);
        // Other turns may have waited for the agent's limit of parallel turns.
        if self.agents.get(&agent).is_some_and(|agent| agent.running + 1 == AGENT_TURNS_MAX) {
            self.start_waiting(&agent);
        }
        self.rest_session(&session);
    }

    /// Keeps an idle session in memory for a while, and releases the one that has been idle longest.
    pub(crate) fn rest_session(&mut self, id: &SessionId) {
        if self.sessions.get(id).is_none_or(|session| !session.live.is_empty()) {
            return;
        }
        self.idle_sessions.push_back(id.clone());
        while self.idle_sessions.len() > IDLE_SESSIONS_MAX {
            let Some(oldest) = self.idle_sessions.pop_front() else { return };
            let again = self.idle_sessions.contains(&oldest);
            if !again && self.sessions.get(&oldest).is_some_and(|session| session.live.is_empty()) {
                self.sessions.remove(&oldest);
            }
        }
    }

    pub(crate) fn write_turn(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get(id) else { return };
        self.step.write(TurnWrite::State {
            id: id.clone(),
            state: turn.row.state,
            ended_at: turn.row.ended_at,
            usage: turn.row.usage,
            failure: turn.row.failure.clone(),
        });
    }

    /// Appends an event about a turn, in its agent's stream.
    pub(crate) fn turn_event<B: Into<EventBody>>(
        &mut self,
        id: &TurnId,
        body: impl FnOnce(String, String) -> B,
    ) {
        let Some(turn) = self.turns.get(id) else { return };
        let (session, stream) = (turn.row.session.to_string(), turn.row.agent.to_string());
        self.event(&stream, body(session, id.to_string()));
    }

    /// Appends a message to a turn's session.
    pub(crate) fn message(&mut self, id: &TurnId, role: Role, body: MessageBody) {
        let Some(turn) = self.turns.get(id) else { return };
        let Some(session) = self.sessions.get_mut(&turn.row.session) else { return };
        session.messages += 1;
        session.epoch.add(turn.row.number, body.weight());
        self.step.write(TurnWrite::Message(MessageRow {
            session: turn.row.session.clone(),
            seq: session.messages,
            turn: id.clone(),
            number: turn.row.number,
            step: turn.step,
            role,
            at: self.step.now,
            body,
        }));
    }
}

/// A turn without text, or with partial text.
fn new_turn(row: TurnRow, wait_reasons: Option<WaitReasons>) -> Answer {
    Answer::Turn(Box::new(TurnDetail {
        row,
        steps: Vec::new(),
        text: String::new(),
        partial: true,
        wait_reasons,
        extras: TurnExtras::default(),
    }))
}

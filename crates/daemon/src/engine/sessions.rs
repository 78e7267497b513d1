//! Changes of whole sessions: rewound, forked, another branch made active, a turn done again, deleted.
//!
//! Each is decided on what the store had at one moment; if the session moved on since, that is refused and read again.

use lodge_core::limits::FORK_BYTES_MAX;
use lodge_core::record::{SessionFact, SessionRow, Write};
use lodge_core::session::{Fork, ForkPlan, ForkPoint, PathChange, PathPlan, TurnPlace};
use lodge_core::summary::{LiveTurns, SessionSummary};
use lodge_core::{EventData, EventKind, SessionId, Timestamp, TurnId};
use lodge_proto::{ErrorBody, SessionDeleted};

use super::agents::no_agent;
use super::state::Session;
use super::{
    Batch, Caller, DAEMON_STREAM, Engine, NewTurn, Refusal, SessionChange, SessionChoice, SessionWhat,
    TurnAgain,
};
use crate::view;

/// Who owns a session, for the answer.
struct Owner {
    name: String,
    removed: bool,
}

impl Engine {
    pub(super) fn change_session(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        change: SessionChange,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let SessionChange { fact, agent_name, agent_removed, what } = change;
        let (id, owner) = (fact.row.id.clone(), Owner { name: agent_name, removed: agent_removed });
        self.settle_fact(&fact)?;
        let answer = match what {
            SessionWhat::Rewind(plan) => {
                let number = plan.turns;
                if self.cut_path(batch, &id, plan, now) {
                    let data = EventData { number: Some(number), ..EventData::default() };
                    self.session_event(batch, &id, EventKind::SessionRewound, data, now);
                }
                self.session_answer(&id, owner, now)
            }
            SessionWhat::Activate { turn, plan } => {
                if self.cut_path(batch, &id, plan, now) {
                    let data = EventData { turn: Some(turn.to_string()), ..EventData::default() };
                    self.session_event(batch, &id, EventKind::SessionBranchActivated, data, now);
                }
                self.session_answer(&id, owner, now)
            }
            SessionWhat::Fork { to, plan } => {
                let to = to.unwrap_or_else(|| SessionId::new(&mut self.ids, now));
                if let Err(refused) = self.fork(batch, &fact.row, &to, plan, now) {
                    self.rest_session(&id);
                    return Err(refused);
                }
                self.session_answer(&to, owner, now)
            }
            SessionWhat::Delete => {
                self.session_event(batch, &id, EventKind::SessionDeleted, EventData::default(), now);
                batch.write(Write::SessionDeleted { id: id.clone() });
                self.session_gone(batch, &id);
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.gone = true;
                }
                Some(view::json(&SessionDeleted { session: id.to_string(), deleted: true }))
            }
            SessionWhat::Regenerate(again) => return self.regenerate(batch, caller, &id, *again, now),
        };
        self.rest_session(&id);
        self.reply(batch, caller, answer.unwrap_or_default(), now);
        Ok(())
    }

    /// Makes sure that what was read of a session is what it is, and that nothing of it is in flight.
    fn settle_fact(&mut self, fact: &SessionFact) -> Result<(), Refusal> {
        let id = &fact.row.id;
        let Some(session) = self.sessions.get(id) else {
            self.sessions.insert(id.clone(), Session::from_fact(fact));
            return Ok(());
        };
        if session.gone {
            return Err(Box::new(view::no_session(id)));
        }
        if !session.live.is_empty() {
            return Err(Box::new(
                ErrorBody::new(
                    "session.busy",
                    format!("{} turns of session `{id}` wait or run", session.live.len()),
                )
                .hint("ask again when they are over, or break them off with `turn/interrupt`"),
            ));
        }
        if !session.is(fact) {
            return Err(Box::new(
                ErrorBody::new("session.changed", format!("session `{id}` changed while it was read"))
                    .hint("ask again"),
            ));
        }
        Ok(())
    }

    /// Changes the path of a session. False: it is that already.
    fn cut_path(&mut self, batch: &mut Batch, id: &SessionId, plan: PathPlan, now: Timestamp) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return false };
        if plan.from > session.turns && plan.restored.is_empty() {
            return false;
        }
        session.cuts += 1;
        (session.turns, session.tip, session.epoch) = (plan.turns, plan.tip, plan.epoch);
        batch.write(Write::SessionPath(PathChange {
            session: id.clone(),
            cut: session.cuts,
            from: plan.from,
            restored: plan.restored,
            at: now,
        }));
        true
    }

    fn fork(
        &mut self,
        batch: &mut Batch,
        from: &SessionRow,
        id: &SessionId,
        plan: ForkPlan,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        if !self.agents.contains_key(&from.agent) {
            return Err(no_agent(from.agent.as_str()));
        }
        if plan.bytes > FORK_BYTES_MAX {
            let bytes = plan.bytes;
            return Err(Box::new(
                ErrorBody::new(
                    "session.too_large",
                    format!("up to there the conversation has {bytes} bytes; {FORK_BYTES_MAX} is the most"),
                )
                .hint("fork it at an earlier turn"),
            ));
        }
        if self.sessions.get(id).is_some_and(|session| !session.gone) {
            return Err(Box::new(view::session_exists(id)));
        }
        let turn = u32::try_from(plan.turns.len()).unwrap_or(u32::MAX);
        let copies: Vec<(TurnId, TurnId)> =
            plan.turns.into_iter().map(|turn| (turn, TurnId::new(&mut self.ids, now))).collect();
        // A sender goes on in the session that it had.
        let row = SessionRow {
            id: id.clone(),
            agent: from.agent.clone(),
            sender: None,
            created_at: now,
            forked: Some(ForkPoint { session: from.id.clone(), turn }),
        };
        let fact = SessionFact {
            row: row.clone(),
            turns: turn,
            messages: plan.messages,
            cuts: 0,
            tip: copies.last().map(|(_, copy)| copy.clone()),
            epoch: plan.epoch,
        };
        self.sessions.insert(id.clone(), Session::from_fact(&fact));
        batch.write(Write::SessionFork(Box::new(Fork { row, turns: copies })));
        let data =
            EventData { origin: Some(from.id.to_string()), number: Some(turn), ..EventData::default() };
        self.session_event(batch, id, EventKind::SessionForked, data, now);
        self.rest_session(id);
        Ok(())
    }

    /// Takes a turn and what followed it off the path, and asks the same again in its place.
    fn regenerate(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &SessionId,
        again: TurnAgain,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let Some(row) = self.sessions.get(id).map(|session| session.row.clone()) else { return Ok(()) };
        let new = NewTurn {
            agent: row.agent,
            session: SessionChoice::Named { id: id.clone(), fact: None },
            sender: row.sender,
            text: again.text,
            schema: again.schema,
        };
        if let Err(refused) = self.admit(&new) {
            self.rest_session(id);
            return Err(refused);
        }
        self.cut_path(batch, id, again.plan, now);
        let place = TurnPlace { replaces: Some(again.turn), ..TurnPlace::default() };
        let turn = self.accept(batch, id, &new, place, again.note, now);
        self.begin(batch, caller, &turn, id, now);
        Ok(())
    }

    fn session_answer(&self, id: &SessionId, owner: Owner, now: Timestamp) -> Option<serde_json::Value> {
        let session = self.sessions.get(id)?;
        Some(view::json(&view::session(&SessionSummary {
            row: session.row.clone(),
            // It is in the store, where nobody looks for the answer to a change.
            title: None,
            turns: session.turns,
            last_active: now,
            epoch: session.epoch.number,
            agent_name: owner.name,
            agent_removed: owner.removed,
            live: LiveTurns::default(),
            // What is changed has no open turns.
            quarantine: Vec::new(),
        })))
    }

    /// Appends an event about a session, in its agent's stream; the stream of a removed agent is over.
    fn session_event(
        &mut self,
        batch: &mut Batch,
        id: &SessionId,
        kind: EventKind,
        mut data: EventData,
        now: Timestamp,
    ) {
        let Some(session) = self.sessions.get(id) else { return };
        data.session = Some(id.to_string());
        let agent = &session.row.agent;
        let stream = if self.agents.contains_key(agent) { agent.as_str() } else { DAEMON_STREAM }.to_owned();
        self.event(batch, &stream, kind, data, now);
    }
}

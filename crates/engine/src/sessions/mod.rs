//! Changes of whole sessions: rewind, fork, activate a branch, regenerate a turn, delete.
//!
//! Each is based on a snapshot of the store. If the session changed since, the change is refused and read again.

pub mod messages;
pub mod refusal;
mod state;

use lodge_core::event::{EventBody, SessionBranchActivated, SessionDeleted, SessionForked, SessionRewound};
use lodge_core::limits::FORK_BYTES_MAX;
use lodge_core::record::{SessionFact, SessionRow, SessionWrite};
use lodge_core::session::{Fork, ForkPlan, ForkPoint, PathChange, PathPlan, TurnLinks};
use lodge_core::summary::{LiveTurns, SessionSummary};
use lodge_core::{SessionId, Timestamp, TurnId};

pub use self::refusal::SessionRefusal;
pub(crate) use self::state::Session;
use crate::agents::no_agent;
use crate::{
    Caller, Engine, NewTurn, Refusal, SessionAnswer, SessionChange, SessionChoice, SessionOperation,
    TurnRegeneration,
};

/// The owner of a session, for the answer.
struct SessionOwner {
    name: String,
    removed: bool,
}

impl Engine {
    pub(crate) fn change_session(&mut self, caller: Caller, change: SessionChange) -> Result<(), Refusal> {
        let SessionChange { fact, agent_name, agent_removed, what } = change;
        let (id, owner) = (fact.row.id.clone(), SessionOwner { name: agent_name, removed: agent_removed });
        self.check_session_fact(&fact)?;
        let answer = match what {
            SessionOperation::Rewind(plan) => {
                let number = plan.turns;
                if self.cut_path(&id, plan) {
                    self.session_event(&id, |session| SessionRewound { session, number });
                }
                self.session_answer(&id, owner, self.step.now)
            }
            SessionOperation::Activate { turn, plan } => {
                if self.cut_path(&id, plan) {
                    let turn = turn.to_string();
                    self.session_event(&id, |session| SessionBranchActivated { session, turn });
                }
                self.session_answer(&id, owner, self.step.now)
            }
            SessionOperation::Fork { to, plan } => {
                let to = to.unwrap_or_else(|| SessionId::new(&mut self.ids, self.step.now));
                if let Err(refused) = self.fork(&fact.row, &to, plan) {
                    self.rest_session(&id);
                    return Err(refused);
                }
                self.session_answer(&to, owner, self.step.now)
            }
            SessionOperation::Delete => {
                self.session_event(&id, |session| SessionDeleted { session });
                self.step.write(SessionWrite::Deleted { id: id.clone() });
                self.session_gone(&id);
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.gone = true;
                }
                Some(SessionAnswer::Deleted(id.clone()))
            }
            SessionOperation::Regenerate(again) => return self.regenerate(caller, &id, *again),
            SessionOperation::Retry(again) => return self.retry_turn(caller, &id, *again),
        };
        self.rest_session(&id);
        if let Some(answer) = answer {
            self.reply(caller, answer);
        }
        Ok(())
    }

    /// Checks that the snapshot of a session is current, and that the session has no turn in flight.
    fn check_session_fact(&mut self, fact: &SessionFact) -> Result<(), Refusal> {
        let id = &fact.row.id;
        let Some(session) = self.sessions.get(id) else {
            self.sessions.insert(id.clone(), Session::from_fact(fact));
            return Ok(());
        };
        if session.gone {
            return Err(SessionRefusal::NotFound { given: id.to_string() }.into());
        }
        if !session.live.is_empty() {
            return Err(SessionRefusal::Busy { session: id.clone(), turns: session.live.len() }.into());
        }
        if !session.is(fact) {
            return Err(SessionRefusal::Changed { session: id.clone() }.into());
        }
        Ok(())
    }

    /// Changes the path of a session. False: it is unchanged.
    pub(crate) fn cut_path(&mut self, id: &SessionId, plan: PathPlan) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return false };
        if plan.from > session.turns && plan.restored.is_empty() {
            return false;
        }
        session.cuts += 1;
        (session.turns, session.tip, session.epoch) = (plan.turns, plan.tip, plan.epoch);
        self.step.write(SessionWrite::Path(PathChange {
            session: id.clone(),
            cut: session.cuts,
            from: plan.from,
            restored: plan.restored,
            at: self.step.now,
        }));
        true
    }

    fn fork(&mut self, from: &SessionRow, id: &SessionId, plan: ForkPlan) -> Result<(), Refusal> {
        if !self.agents.contains_key(&from.agent) {
            return Err(no_agent(&from.agent));
        }
        if plan.bytes > FORK_BYTES_MAX {
            return Err(SessionRefusal::TooLarge { bytes: plan.bytes }.into());
        }
        if self.sessions.get(id).is_some_and(|session| !session.gone) {
            return Err(SessionRefusal::Exists { session: id.clone() }.into());
        }
        let turn = u32::try_from(plan.turns.len()).unwrap_or(u32::MAX);
        let copies: Vec<(TurnId, TurnId)> =
            plan.turns.into_iter().map(|turn| (turn, TurnId::new(&mut self.ids, self.step.now))).collect();
        // The caller continues in the session that it used before.
        let row = SessionRow {
            id: id.clone(),
            agent: from.agent.clone(),
            sender: None,
            created_at: self.step.now,
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
        self.step.write(SessionWrite::Fork(Box::new(Fork { row, turns: copies })));
        let origin = from.id.to_string();
        self.session_event(id, |session| SessionForked { session, origin, number: turn });
        self.rest_session(id);
        Ok(())
    }

    /// Removes a turn and its successors from the path, and sends the same message in a new turn.
    fn regenerate(&mut self, caller: Caller, id: &SessionId, again: TurnRegeneration) -> Result<(), Refusal> {
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
        self.cut_path(id, again.plan);
        let place = TurnLinks { replaces: Some(again.turn), ..TurnLinks::default() };
        let turn = self.accept(id, &new, place, again.note);
        self.begin(caller, &turn, id);
        Ok(())
    }

    fn session_answer(&self, id: &SessionId, owner: SessionOwner, now: Timestamp) -> Option<SessionAnswer> {
        let session = self.sessions.get(id)?;
        Some(SessionAnswer::Session(Box::new(SessionSummary {
            row: session.row.clone(),
            // The title is in the store. Answers to changes do not contain it.
            title: None,
            turns: session.turns,
            last_active: now,
            epoch: session.epoch.number,
            agent_name: owner.name,
            agent_removed: owner.removed,
            live: LiveTurns::default(),
            // A changed session has no open turns.
            quarantine: Vec::new(),
        })))
    }

    /// Appends an event about a session, in its agent's stream.
    fn session_event<B: Into<EventBody>>(&mut self, id: &SessionId, body: impl FnOnce(String) -> B) {
        let Some(session) = self.sessions.get(id) else { return };
        let agent = session.row.agent.clone();
        self.event(agent.as_str(), body(id.to_string()));
    }
}

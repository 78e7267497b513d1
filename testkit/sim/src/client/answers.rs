//! Replies to callers, compared with the disk.

use lodge_core::agent::AgentState;
use lodge_core::record::AgentSpec;
use lodge_core::turn::TurnState;
use lodge_core::{SessionId, TokenId, TurnId};
use lodge_proto::ErrorBody;
use serde_json::Value;

use super::{AnsweredRequest, PendingRequest, SimRequest, SimSessionEdit};
use crate::disk::StoredTurn;
use crate::world::SimWorld;

impl SimWorld {
    /// The keeper that a stop or kill targets.
    pub(super) fn target_keeper(&self, what: &SimRequest) -> Option<(u64, u32)> {
        let (SimRequest::Stop(agent) | SimRequest::Kill(agent)) = what else { return None };
        let row = self.disk.agent(agent)?;
        let keeper = self.machine.sandboxes.get(&row.sandbox)?.keeper.as_ref()?;
        Some((keeper.serial, row.incarnation))
    }

    /// The session that a deletion targets, as the number of its creations.
    pub(super) fn target_session_begun(&self, what: &SimRequest) -> u32 {
        let SimRequest::Edit { session, edit: SimSessionEdit::Delete } = what else { return 0 };
        self.disk.begun(session)
    }

    /// Nothing survives a stop: its caller gets the reply when it is complete.
    pub(super) fn check_gone(&mut self, caller: usize, reply: &Result<Value, ErrorBody>) {
        let Some(asks) = self.clients.callers[caller].asks.as_ref() else { return };
        let (SimRequest::Stop(agent) | SimRequest::Kill(agent)) = &asks.what else { return };
        let lives = asks.keeper.is_some() && self.target_keeper(&asks.what) == asks.keeper;
        let stopped = self.disk.agent(agent).is_some_and(|row| row.state == AgentState::Stopped);
        if reply.is_ok() && stopped && lives {
            self.fail(format!("{agent} is told to be stopped, and its sandbox lives"));
        }
    }

    /// Acknowledged means durable, and a request has one answer.
    pub(super) fn check_answer(&mut self, caller: usize, asks: &PendingRequest, answer: &Value) {
        if let Err(broken) = self.answer_holds(caller, asks, answer) {
            self.fail(format!("caller {caller} was told {answer} about {:?}: {broken}", asks.what));
        }
    }

    fn answer_holds(&self, caller: usize, asks: &PendingRequest, answer: &Value) -> Result<(), String> {
        let id = answer["id"].as_str().unwrap_or_default();
        if let Some(request_id) = &asks.request_id {
            let row = self.disk.request(&format!("caller-{caller}"), request_id);
            let row = row.ok_or("the request is not on disk")?;
            if row.digest != [asks.digest; 32] {
                return Err("the request was made with other words".into());
            }
            if let Some(before) = self.clients.answers.get(request_id).filter(|before| *before != answer) {
                return Err(format!("the same request was answered with {before}"));
            }
        }
        match &asks.what {
            SimRequest::Create { text } => {
                // The agent may have been updated to another image.
                let there = self.disk.agent(&id.parse().map_err(|_| "no id")?).is_some();
                if there && self.disk.accepted(text) > 0 {
                    Ok(())
                } else {
                    Err("that agent is not on disk".into())
                }
            }
            SimRequest::Send { text, agent, .. } => self.turn_holds(id, |turn| {
                turn.row.agent == *agent
                    && turn.messages.first().is_some_and(|first| first.body.text == *text)
            }),
            SimRequest::Interrupt(turn) => {
                self.turn_holds(turn.as_str(), |turn| turn.row.state == TurnState::Interrupted)
            }
            SimRequest::Submit { .. } => self.submission_holds(&asks.what, answer),
            SimRequest::CancelJob(job) => self.cancellation_holds(job),
            SimRequest::Release { id: work, .. } => {
                let aside = self.disk.quarantine().any(|row| row.id == *work);
                if aside { Err("that work is still set aside".into()) } else { Ok(()) }
            }
            SimRequest::Edit { session, edit } => self.edit_holds(asks, session, edit, answer),
            SimRequest::Issue { text, .. } => {
                let row = self.disk.token(&id.parse().map_err(|_| "no id")?);
                let row = row.filter(|row| row.name.as_ref() == Some(text)).ok_or("it is not on disk")?;
                if row.revoked_at.is_none() && !self.opens(&row.id) {
                    return Err("that token opens nothing".into());
                }
                Ok(())
            }
            SimRequest::Revoke(token) => match self.disk.token(token) {
                Some(row) if row.revoked_at.is_some() && !self.opens(token) => Ok(()),
                other => Err(format!("that token is {other:?}")),
            },
            SimRequest::Build { .. } | SimRequest::RemoveImage(_) | SimRequest::Tag { .. } => Ok(()),
            SimRequest::Settle { lineage, .. } if id == lineage.as_str() => Ok(()),
            SimRequest::Settle { .. } => Err("that is another lineage".into()),
            SimRequest::Update { agent, text } => {
                let row = self.disk.agent(agent).ok_or("that agent is not on disk")?;
                let has = |spec: &AgentSpec| spec.env.contains_key(text) || spec.labels.contains_key(text);
                let there = has(&row.spec) || row.next.as_ref().is_some_and(|next| has(&next.spec));
                if there { Ok(()) } else { Err("that change is not on disk".into()) }
            }
            SimRequest::Start(agent)
            | SimRequest::Restart(agent)
            | SimRequest::Stop(agent)
            | SimRequest::Kill(agent)
            | SimRequest::Remove(agent)
            | SimRequest::RemoveByForce(agent) => {
                if id == agent.as_str() && self.disk.agent(agent).is_some() {
                    Ok(())
                } else {
                    Err("that agent is not on disk".into())
                }
            }
        }
    }

    /// A turn that a reply named exists, unless it was deleted with its session.
    fn turn_holds(&self, id: &str, holds: impl FnOnce(&StoredTurn) -> bool) -> Result<(), String> {
        let id: TurnId = id.parse().map_err(|_| "no id")?;
        let there = self.disk.turn(&id).map_or_else(|| self.disk.was_deleted(&id), holds);
        if there { Ok(()) } else { Err("that turn is not so on disk".into()) }
    }

    fn edit_holds(
        &self,
        asks: &PendingRequest,
        session: &SessionId,
        edit: &SimSessionEdit,
        answer: &Value,
    ) -> Result<(), String> {
        let id = answer["id"].as_str().unwrap_or_default();
        match edit {
            SimSessionEdit::Rewind(turns) if id == session.as_str() && answer["turns"] == *turns => Ok(()),
            SimSessionEdit::Activate(_) if id == session.as_str() => Ok(()),
            SimSessionEdit::Rewind(_) | SimSessionEdit::Activate(_) => Err("that is another path".into()),
            SimSessionEdit::Fork { to, turns } => {
                let copy: SessionId = id.parse().map_err(|_| "no id")?;
                let named = to.as_ref().is_none_or(|to| *to == copy);
                let there = self.disk.begun(&copy) > 0;
                let copied =
                    answer["turns"] == *turns && answer["forked_from"]["session"] == session.as_str();
                if named && there && copied { Ok(()) } else { Err("that is no such copy".into()) }
            }
            SimSessionEdit::Regenerate(turn) | SimSessionEdit::Retry(turn) => {
                self.turn_holds(id, |again| again.row.place.replaces.as_ref() == Some(turn))
            }
            SimSessionEdit::Delete => {
                let there = self.disk.session(session).is_some() && self.disk.begun(session) == asks.begun;
                if there { Err("that session is still there".into()) } else { Ok(()) }
            }
        }
    }

    /// Whether the daemon accepts this token.
    fn opens(&self, token: &TokenId) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| daemon.access.enter(token).is_some())
    }

    /// A session that was reported as deleted stays deleted.
    pub fn check_deleted(&mut self) {
        let is_back = |answered: &&AnsweredRequest| {
            let SimRequest::Edit { session, edit: SimSessionEdit::Delete } = &answered.asks.what else {
                return false;
            };
            self.disk.session(session).is_some() && self.disk.begun(session) == answered.asks.begun
        };
        let back = self.clients.answered.iter().find(is_back).map(|answered| answered.asks.what.clone());
        if let Some(what) = back {
            self.fail(format!("deleted, and there again: {what:?}"));
        }
    }

    pub(super) fn check_refusal(&mut self, caller: usize, asks: &PendingRequest, refusal: &ErrorBody) {
        let Some(request_id) = &asks.request_id else { return };
        let row = self.disk.request(&format!("caller-{caller}"), request_id);
        let same = row.is_some_and(|row| row.digest == [asks.digest; 32]);
        if same && refusal.data.code == "request.reused" {
            self.fail(format!("caller {caller} made {request_id} as before, and is refused: {refusal:?}"));
        }
    }

    /// A request that was made once has at most one effect.
    pub fn check_once(&mut self, text: &str) {
        if text.starts_with("once-") && self.disk.accepted(text) > 1 {
            self.fail(format!("`{text}` was asked for once, and is there twice"));
        }
    }
}

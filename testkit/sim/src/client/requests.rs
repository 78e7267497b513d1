//! Random requests of callers, and the engine's commands for them.

use std::collections::BTreeMap;

use lodge_core::agent::AgentState;
use lodge_core::lineage::Policy;
use lodge_core::record::{AgentSpec, ToolRecord};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId};
use lodge_daemon::view;
use lodge_engine::{
    AgentCommand, AgentImageChange, Change, Command, ImageCommand, ImageSelector, JobCommand,
    LineageResolution, NameChoice, NewAgent, NewImage, NewToken, NewTokenHolder, NewTurn, SessionChange,
    SessionChoice, SessionOperation, TokenCommand, TurnCommand, TurnRegeneration, Update, WorkCommand,
};
use lodge_proto::{ErrorBody, SessionDeleted};

use super::{AnswerFit, SimRequest, SimSessionEdit};
use crate::images;
use crate::world::SimWorld;

/// Longer than any run, so that no token expires.
const TOKEN_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1_000;

impl SimWorld {
    pub(super) fn choose_request(&mut self, once: bool) -> SimRequest {
        // The text is unique, so that the effects of one request can be counted.
        let text = self.name(if once { "once-" } else { "maybe-" });
        let agent = self.rng.pick(&self.clients.agents).cloned();
        let Some(agent) = agent else { return SimRequest::Create { text } };
        if self.rng.chance(self.plan.changes) {
            let restarts = self.rng.chance(300);
            return if restarts { SimRequest::Restart(agent) } else { SimRequest::Update { agent, text } };
        }
        if self.rng.chance(self.plan.edits)
            && let Some(what) = self.some_edit()
        {
            return what;
        }
        let aside = self.disk.quarantine().next().map(|row| row.id.clone());
        if let Some(id) = aside
            && self.rng.chance(20)
        {
            return SimRequest::Release { id, how: self.some_release() };
        }
        if self.rng.chance(self.plan.jobs) {
            return self.some_job_wish(agent, text);
        }
        if self.rng.chance(self.plan.token_requests) {
            return self.some_token_or_image(agent, text);
        }
        match self.rng.below(100) {
            0..3 if self.clients.agents.len() < self.plan.agents_max => SimRequest::Create { text },
            3..9 => SimRequest::Start(agent),
            9..11 => SimRequest::Stop(agent),
            18 => SimRequest::Kill(agent),
            19..23 => match self.disk.lineage(&agent).map(|row| row.id.clone()) {
                Some(lineage) => {
                    let policy = self.rng.pick(&Policy::ALL).copied().unwrap_or(Policy::Revive);
                    SimRequest::Settle { agent, lineage, policy }
                }
                None => SimRequest::Start(agent),
            },
            11 => SimRequest::Remove(agent),
            12 if self.rng.chance(300) => SimRequest::RemoveByForce(agent),
            13..18 => match self.rng.pick(&self.clients.turns) {
                Some(turn) => SimRequest::Interrupt(turn.clone()),
                None => SimRequest::Start(agent),
            },
            _ => {
                let session = if self.rng.chance(50) { None } else { self.some_session(&agent) };
                let fit =
                    if self.rng.chance(self.plan.schemas) { AnswerFit::Schema } else { AnswerFit::Anything };
                SimRequest::Send { agent, session, text, fit }
            }
        }
    }

    /// A change of a session with turns, whether it is allowed or not.
    fn some_edit(&mut self) -> Option<SimRequest> {
        let session = self.rng.pick(&self.clients.sessions)?.clone();
        let turns = u64::from(self.disk.session(&session)?.turns);
        let edit = match self.rng.below(10) {
            0..3 => {
                let back = if self.rng.chance(900) { turns.min(3) } else { turns };
                let left = turns - self.rng.below(back + 1);
                SimSessionEdit::Rewind(u32::try_from(left).unwrap_or(0))
            }
            3..5 => SimSessionEdit::Activate(self.rng.pick(&self.disk.branches(&session))?.clone()),
            5..7 => {
                let to = if self.rng.chance(500) { Some(self.fork_name(&session)?) } else { None };
                SimSessionEdit::Fork {
                    to,
                    turns: u32::try_from(self.rng.between(1, turns.max(1))).unwrap_or(1),
                }
            }
            7..9 => {
                let tip = self.disk.session(&session)?.tip.clone();
                let turn = if self.rng.chance(800) { tip } else { None };
                let turn = turn.or_else(|| self.rng.pick(&self.disk.path(&session)).cloned())?;
                match self.disk.turn(&turn)?.row.state {
                    TurnState::Failed | TurnState::Interrupted if self.rng.chance(800) => {
                        SimSessionEdit::Retry(turn)
                    }
                    TurnState::Done if self.rng.chance(50) => SimSessionEdit::Retry(turn),
                    TurnState::Failed
                    | TurnState::Interrupted
                    | TurnState::Done
                    | TurnState::Queued
                    | TurnState::Running
                    | TurnState::Waiting => SimSessionEdit::Regenerate(turn),
                }
            }
            _ => SimSessionEdit::Delete,
        };
        Some(SimRequest::Edit { session, edit })
    }

    /// A new name, or one that is taken.
    fn fork_name(&mut self, session: &SessionId) -> Option<SessionId> {
        if self.rng.chance(200) {
            return self.rng.pick(&self.clients.sessions).cloned();
        }
        let name = self.name("f");
        format!("{}.{name}", session.as_str().split('.').next()?).parse().ok()
    }

    /// A request about tokens or images.
    fn some_token_or_image(&mut self, agent: AgentId, text: String) -> SimRequest {
        let (number, name) = (self.rng.below(images::AGENTS), self.rng.below(images::BINS));
        match self.rng.below(14) {
            0..3 => {
                let agent = if self.rng.chance(600) { Some(agent) } else { None };
                SimRequest::Issue { agent, text }
            }
            3..6 => match self.rng.pick(&self.clients.tokens) {
                Some(token) => SimRequest::Revoke(token.clone()),
                None => SimRequest::Issue { agent: None, text },
            },
            6..8 => SimRequest::Build { text },
            8 => SimRequest::RemoveImage(ImageSelector::Ref(format!("a:{number}"))),
            9 => SimRequest::RemoveImage(ImageSelector::Ref(format!("b:{name}"))),
            10 => SimRequest::RemoveImage(ImageSelector::Digest(format!("sha256:bin-{name}"))),
            11 => SimRequest::Tag { digest: format!("sha256:{number}"), name: format!("a:{name}") },
            12 => SimRequest::Tag { digest: format!("sha256:bin-{name}"), name: format!("b:{name}") },
            _ => SimRequest::RemoveImage(ImageSelector::Digest(format!("sha256:{number}"))),
        }
    }

    /// A change that needs a new runtime, or one that does not.
    fn some_change(&mut self, text: &str) -> (Change, Option<NewImage>) {
        // No request removes a key, so it must always exist.
        let key = BTreeMap::from([(text.to_owned(), Some(String::new()))]);
        match self.rng.below(10) {
            0..2 => {
                let new = self.some_arrival(new_image(text));
                let old = Box::new(AgentSpec::default());
                let (tools, runtime) = (tools(text), images::runtime(number(text)));
                let spec = Box::new(AgentSpec { tools, runtime, ..AgentSpec::default() });
                let image = Some(AgentImageChange {
                    name: text.to_owned(),
                    digest: new.row.digest.clone(),
                    old,
                    new: spec,
                });
                (Change { image, env: key, ..Change::default() }, Some(new))
            }
            2..7 => (Change { env: key, ..Change::default() }, None),
            _ => (Change { labels: key, ..Change::default() }, None),
        }
    }

    pub(super) fn some_session(&mut self, agent: &AgentId) -> Option<SessionId> {
        let number = self.rng.below(self.plan.sessions);
        // Sometimes the session of another agent.
        let owner = if self.rng.chance(10) { "anybody" } else { agent.as_str() };
        format!("{owner}.{number}").parse().ok()
    }

    /// The engine's command for a request, from the current state of the store.
    pub(super) fn command(&mut self, what: &SimRequest) -> Result<Command, ErrorBody> {
        Ok(match what {
            SimRequest::Create { text } => {
                let own = self.rng.chance(self.plan.own_policies);
                let policy = self.rng.pick(&Policy::ALL).copied().filter(|_| own);
                let image = self.some_arrival(new_image(text));
                Command::Agent(AgentCommand::Create(Box::new(new_agent(text, policy, image))))
            }
            SimRequest::Start(id) => Command::Agent(AgentCommand::Start { id: id.clone() }),
            SimRequest::Restart(id) => {
                Command::Agent(AgentCommand::Restart { id: id.clone(), jobs: self.some_fate() })
            }
            SimRequest::Update { agent, text } => {
                let (change, image) = self.some_change(text);
                Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image })))
            }
            SimRequest::Stop(id) => {
                Command::Agent(AgentCommand::Stop { id: id.clone(), jobs: self.some_fate() })
            }
            SimRequest::Kill(id) => Command::Agent(AgentCommand::Kill { id: id.clone() }),
            SimRequest::Settle { agent, lineage, policy } => {
                Command::Agent(AgentCommand::SettleLineage(Box::new(LineageResolution {
                    agent: agent.clone(),
                    lineage: lineage.clone(),
                    policy: *policy,
                    last_turn: None,
                })))
            }
            SimRequest::Remove(id) => Command::Agent(AgentCommand::Remove { id: id.clone(), force: false }),
            SimRequest::RemoveByForce(id) => {
                Command::Agent(AgentCommand::Remove { id: id.clone(), force: true })
            }
            SimRequest::Interrupt(id) => Command::Turn(TurnCommand::Interrupt { id: id.clone() }),
            SimRequest::Send { agent, session, text, fit } => {
                let session = match session {
                    None => SessionChoice::Fresh,
                    Some(id) => SessionChoice::Named { id: id.clone(), fact: self.disk.session(id).cloned() },
                };
                Command::Turn(TurnCommand::Send(Box::new(NewTurn {
                    agent: agent.clone(),
                    session,
                    sender: None,
                    text: text.clone(),
                    schema: match fit {
                        AnswerFit::Anything => None,
                        AnswerFit::Schema => Some("{}".to_owned()),
                    },
                })))
            }
            SimRequest::Submit { .. } => self.submission(what)?,
            SimRequest::CancelJob(id) => Command::Job(JobCommand::Cancel { id: id.clone() }),
            SimRequest::Release { id, how } => {
                Command::Work(WorkCommand::Release { id: id.clone(), how: *how })
            }
            SimRequest::Edit { session, edit } => self.edit(session, edit)?,
            SimRequest::Issue { agent, text } => Command::Token(TokenCommand::Issue(Box::new(NewToken {
                holder: agent.clone().map_or(NewTokenHolder::Operator, NewTokenHolder::Agent),
                name: Some(text.clone()),
                expires_at: self.wall().plus_ms(TOKEN_MS),
            }))),
            SimRequest::Revoke(token) => {
                let row = self.disk.token(token).ok_or_else(|| refusal("token.not_found"))?;
                Command::Token(TokenCommand::Revoke { row: Box::new(row.clone()) })
            }
            SimRequest::Build { text } => {
                let new = if self.rng.chance(300) {
                    images::bin_image(self.rng.below(images::BINS))
                } else {
                    self.some_arrival(new_image(text))
                };
                Command::Image(ImageCommand::Add(Box::new(new)))
            }
            SimRequest::Tag { digest, .. } if !self.disk.has_image(digest) => {
                return Err(refusal("image.not_found"));
            }
            SimRequest::Tag { digest, name } => {
                Command::Image(ImageCommand::Tag { digest: digest.clone(), tags: vec![name.clone()] })
            }
            SimRequest::RemoveImage(given) => match given {
                ImageSelector::Digest(digest) if !self.disk.has_image(digest) => {
                    return Err(refusal("image.not_found"));
                }
                ImageSelector::Digest(_) | ImageSelector::Ref(_) => {
                    Command::Image(ImageCommand::Remove { given: given.clone(), used_by: Vec::new() })
                }
            },
        })
    }

    /// The command that changes a session, planned from the store.
    fn edit(&self, session: &SessionId, edit: &SimSessionEdit) -> Result<Command, ErrorBody> {
        let gone = || refusal("session.not_found");
        let Some(fact) = self.disk.session(session) else {
            return match edit {
                SimSessionEdit::Delete => {
                    let answer = SessionDeleted { session: session.to_string(), deleted: false };
                    Ok(Command::Keep { answer: view::text(&answer) })
                }
                SimSessionEdit::Rewind(_)
                | SimSessionEdit::Activate(_)
                | SimSessionEdit::Fork { .. }
                | SimSessionEdit::Regenerate(_)
                | SimSessionEdit::Retry(_) => Err(gone()),
            };
        };
        let no_turn = || refusal("turn.not_found");
        let what = match edit {
            SimSessionEdit::Rewind(turns) if *turns > fact.turns => return Err(no_turn()),
            SimSessionEdit::Rewind(turns) => {
                SessionOperation::Rewind(self.disk.rewind_plan(session, *turns).ok_or_else(gone)?.1)
            }
            SimSessionEdit::Activate(turn) => {
                let (_, plan) = self.disk.branch_plan(session, turn).ok_or_else(no_turn)?;
                SessionOperation::Activate { turn: turn.clone(), plan }
            }
            SimSessionEdit::Fork { to: Some(to), .. } if self.disk.session(to).is_some() => {
                return Err(refusal("session.exists"));
            }
            SimSessionEdit::Fork { turns, .. } if *turns > fact.turns => return Err(no_turn()),
            SimSessionEdit::Fork { to, turns } => {
                let (_, plan) = self.disk.fork_plan(session, *turns).ok_or_else(gone)?;
                SessionOperation::Fork { to: to.clone(), plan }
            }
            SimSessionEdit::Regenerate(turn) => {
                let kept = self.disk.turn(turn).ok_or_else(no_turn)?;
                if kept.row.place.dropped > 0 || kept.row.session != *session {
                    return Err(refusal("turn.inactive"));
                }
                let (_, plan) = self.disk.rewind_plan(session, kept.row.number - 1).ok_or_else(gone)?;
                let body = &kept.messages.first().ok_or_else(no_turn)?.body;
                let (turn, text) = (turn.clone(), body.text.clone());
                let (schema, note) = (body.schema.clone(), body.note.clone());
                SessionOperation::Regenerate(Box::new(TurnRegeneration { turn, text, schema, note, plan }))
            }
            SimSessionEdit::Retry(turn) => self.retry(fact, turn)?,
            SimSessionEdit::Delete => SessionOperation::Delete,
        };
        let owner = self.disk.agent(&fact.row.agent);
        Ok(Command::Session(Box::new(SessionChange {
            fact: fact.clone(),
            agent_name: owner.map(|row| row.name.clone()).unwrap_or_default(),
            agent_removed: owner.is_none_or(|row| row.state == AgentState::Removed),
            what,
        })))
    }
}

fn new_agent(text: &str, policy: Option<Policy>, image: NewImage) -> NewAgent {
    let spec = AgentSpec {
        model: "p/m".into(),
        env: BTreeMap::new(),
        tools: tools(text),
        runtime: images::runtime(number(text)),
        revival_policy: policy.map(Policy::code),
        ..AgentSpec::default()
    };
    NewAgent { name: NameChoice::Like("a".into()), called: text.to_owned(), image, spec }
}

/// The number in the text of a request.
fn number(text: &str) -> u64 {
    u64::from(text.bytes().last().unwrap_or_default()) % images::AGENTS
}

fn tools(text: &str) -> Vec<ToolRecord> {
    images::tools(number(text), text.bytes().last().unwrap_or_default())
}

fn new_image(text: &str) -> NewImage {
    images::agent_image(number(text), u64::from(text.bytes().last().unwrap_or_default()) % 3)
}

pub(super) fn refusal(code: &str) -> ErrorBody {
    ErrorBody::new(code, "the API refuses that by itself")
}

//! Callers: they send requests of all kinds, lose replies, and repeat requests.
//!
//! Owns: every reply that a caller received, which must stay true.

mod answers;
mod jobs;
mod requests;
mod retries;

use std::collections::{BTreeSet, HashMap};

use lodge_core::lineage::Policy;
use lodge_core::{AgentId, JobId, LineageId, SessionId, TokenId, TurnId, WorkId};
use lodge_daemon::view;
use lodge_engine::{Answer, Command, ImageSelector, Input, Release, RequestKey, Ticket};
use lodge_proto::ErrorBody;
use serde_json::Value;

use crate::world::{SimEvent, SimWorld};

/// How long a caller waits for an answer before it counts as lost.
const PATIENCE_MS: u64 = 30_000;
/// The pause before a retry to a daemon that refuses requests.
const BUSY_MS: u64 = 100;
/// The pause before a session that changed meanwhile is read again.
const CHANGED_MS: u64 = 10;
/// The most recent items that callers remember, so that they choose among new ones.
const RECENT_MAX: usize = 16;

#[derive(Debug, Default)]
pub struct SimClients {
    pub callers: Vec<SimCaller>,
    tickets: u64,
    names: u64,
    /// Requests whose answer a caller received, and the answers by request id.
    pub answered: Vec<AnsweredRequest>,
    answers: HashMap<String, Value>,
    /// How often each tool call had its effect.
    pub effects: HashMap<(TurnId, u32, u32), u32>,
    pub agents: Vec<AgentId>,
    /// The newest ones that a caller knows.
    pub turns: Vec<TurnId>,
    sessions: Vec<SessionId>,
    pub jobs: Vec<JobId>,
    tokens: Vec<TokenId>,
    /// Turns that their own runtime refused to run.
    pub refused: BTreeSet<TurnId>,
    /// Turns about which a runtime lied.
    pub harmed: BTreeSet<TurnId>,
    /// Turns that callers asked to continue, and to regenerate.
    pub retrying: BTreeSet<TurnId>,
    pub regenerating: BTreeSet<TurnId>,
    /// Turns that continue others.
    pub continuations: BTreeSet<TurnId>,
    /// Requests that are sent before random ones.
    pub errands: Vec<SimRequest>,
    pub idle: bool,
}

#[derive(Debug, Default)]
pub struct SimCaller {
    pub asks: Option<PendingRequest>,
    /// Raised with every action. Earlier timers are ignored.
    turn: u64,
}

/// The request that a caller waits for.
#[derive(Debug, Clone)]
pub struct PendingRequest {
    what: SimRequest,
    request_id: Option<String>,
    /// The time of the first attempt.
    digest: u8,
    /// The keeper and the incarnation at the first attempt of a stop or kill. This keeper must be gone, unless the agent was
    /// started since.
    keeper: Option<(u64, u32)>,
    /// How often a session of that name had been created at the first attempt of its deletion. That session must be gone.
    begun: u32,
}

/// A request whose answer was received.
#[derive(Debug, Clone)]
pub struct AnsweredRequest {
    caller: usize,
    asks: PendingRequest,
}

#[derive(Debug, Clone)]
pub enum SimRequest {
    Create { text: String },
    Start(AgentId),
    Restart(AgentId),
    Update { agent: AgentId, text: String },
    Stop(AgentId),
    Kill(AgentId),
    Settle { agent: AgentId, lineage: LineageId, policy: Policy },
    Remove(AgentId),
    RemoveByForce(AgentId),
    Send { agent: AgentId, session: Option<SessionId>, text: String, fit: AnswerFit },
    Interrupt(TurnId),
    Submit { agent: AgentId, session: Option<SessionId>, text: String },
    CancelJob(JobId),
    Release { id: WorkId, how: Release },
    Edit { session: SessionId, edit: SimSessionEdit },
    Issue { agent: Option<AgentId>, text: String },
    Revoke(TokenId),
    Build { text: String },
    RemoveImage(ImageSelector),
    Tag { digest: String, name: String },
}

/// The kind of answer that a request requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerFit {
    Anything,
    Schema,
}

/// A change of a session.
#[derive(Debug, Clone)]
pub enum SimSessionEdit {
    /// Keeps this many turns.
    Rewind(u32),
    Activate(TurnId),
    Fork {
        to: Option<SessionId>,
        turns: u32,
    },
    Regenerate(TurnId),
    /// Continue a turn that failed or was interrupted.
    Retry(TurnId),
    Delete,
}

impl SimClients {
    pub fn new(callers: usize) -> Self {
        let mut clients = SimClients::default();
        clients.callers.resize_with(callers, SimCaller::default);
        clients
    }

    pub fn is_waiting(&self) -> bool {
        self.callers.iter().any(|caller| caller.asks.is_some())
    }
}

impl SimWorld {
    pub fn caller_later(&mut self, caller: usize, delay_ms: u64) {
        self.clients.callers[caller].turn += 1;
        let turn = self.clients.callers[caller].turn;
        self.after(delay_ms, SimEvent::Client { caller, turn });
    }

    /// A caller sends its next request, or gives up on the last one.
    pub fn client_acts(&mut self, caller: usize, turn: u64) {
        if self.clients.callers[caller].turn != turn {
            return;
        }
        if self.daemon.is_none() {
            return self.caller_later(caller, 50);
        }
        match self.clients.callers[caller].asks.clone() {
            // A request without an id is not repeated: a repetition would be a new request.
            Some(asks) if asks.request_id.is_none() => {
                self.clients.callers[caller].asks = None;
                self.caller_later(caller, 0);
            }
            Some(asks) => self.ask(caller, asks),
            None => {
                let Some(asks) = self.choose(caller) else { return };
                self.clients.callers[caller].asks = Some(asks.clone());
                self.ask(caller, asks);
            }
        }
    }

    fn choose(&mut self, caller: usize) -> Option<PendingRequest> {
        if let Some(what) = self.clients.errands.pop() {
            let request_id = Some(self.name("r"));
            return Some(self.asks(what, request_id));
        }
        if self.clients.idle {
            return None;
        }
        // The caller repeats an answered request, sometimes with other parameters under the same id.
        if self.rng.chance(60)
            && let Some(answered) = self.rng.pick(&self.clients.answered).cloned()
            && answered.caller == caller
        {
            let digest = if self.rng.chance(200) { answered.asks.digest + 1 } else { answered.asks.digest };
            return Some(PendingRequest { digest, ..answered.asks });
        }
        let request_id = if self.rng.chance(750) { Some(self.name("r")) } else { None };
        let what = self.choose_request(request_id.is_some());
        Some(self.asks(what, request_id))
    }

    fn asks(&self, what: SimRequest, request_id: Option<String>) -> PendingRequest {
        let (keeper, begun) = (self.target_keeper(&what), self.target_session_begun(&what));
        PendingRequest { what, request_id, digest: 0, keeper, begun }
    }

    fn name(&mut self, prefix: &str) -> String {
        self.clients.names += 1;
        format!("{prefix}{}", self.clients.names)
    }

    /// The part of the API: it answers repeated requests from the store, and reads sessions there.
    fn ask(&mut self, caller: usize, asks: PendingRequest) {
        let patience = if self.rng.chance(self.plan.impatient) { self.rng.delay(20) } else { PATIENCE_MS };
        self.caller_later(caller, patience);
        let key = asks.request_id.as_ref().map(|request_id| RequestKey {
            caller: format!("caller-{caller}"),
            request_id: request_id.clone(),
            digest: [asks.digest; 32],
        });
        if let Some(key) = &key
            && let Some(row) = self.disk.request(&key.caller, &key.request_id)
        {
            if row.digest != key.digest {
                return self
                    .handle_reply(caller, Err(ErrorBody::new("request.reused", "it was used before")));
            }
            let answer: Value = serde_json::from_slice(&row.answer).unwrap_or_default();
            match asks.what {
                SimRequest::Stop(_)
                | SimRequest::Kill(_)
                | SimRequest::Remove(_)
                | SimRequest::RemoveByForce(_)
                | SimRequest::Issue { .. }
                | SimRequest::Revoke(_) => {
                    return self.put(caller, Some(key.clone()), again(&answer));
                }
                SimRequest::Create { .. }
                | SimRequest::Start(_)
                | SimRequest::Restart(_)
                | SimRequest::Update { .. }
                | SimRequest::Settle { .. }
                | SimRequest::Interrupt(_)
                | SimRequest::Submit { .. }
                | SimRequest::CancelJob(_)
                | SimRequest::Release { .. }
                | SimRequest::Edit { .. }
                | SimRequest::Build { .. }
                | SimRequest::RemoveImage(_)
                | SimRequest::Tag { .. }
                | SimRequest::Send { .. } => return self.handle_reply(caller, Ok(answer)),
            }
        }
        match self.command(&asks.what) {
            // An answer that needs no decision is recorded only if the request has an id and can be repeated.
            Ok(Command::Keep { answer }) if key.is_none() => {
                self.handle_reply(caller, Ok(shown(&Answer::Rendered(answer))));
            }
            Ok(command) => self.put(caller, key, command),
            Err(refusal) => self.handle_reply(caller, Err(refusal)),
        }
    }

    fn put(&mut self, caller: usize, key: Option<RequestKey>, command: Command) {
        self.clients.tickets += 1;
        let ticket = self.clients.tickets;
        let Some(daemon) = &mut self.daemon else { return };
        daemon.tickets.insert(ticket, (caller, self.clients.callers[caller].turn));
        self.pin_contents(ticket, &command);
        // Queued at once: the API does not wait between the read of the store and the queue of the engine.
        self.input(Input::Api { ticket, request: key, command });
    }

    /// A reply leaves the daemon. A caller that gave up does not receive it.
    pub fn answer(&mut self, ticket: Ticket, reply: Result<Value, ErrorBody>) {
        let Some(daemon) = &mut self.daemon else { return };
        daemon.pulls.answered(ticket);
        let Some((caller, turn)) = daemon.tickets.remove(&ticket) else { return };
        self.trace.trace_line(self.now, || format!("caller {caller} gets {}", crate::words::reply(&reply)));
        if self.clients.callers[caller].turn == turn {
            self.check_gone(caller, &reply);
            self.handle_reply(caller, reply);
        }
    }

    pub fn callers_lose_daemon(&mut self) {
        for caller in 0..self.clients.callers.len() {
            if self.clients.callers[caller].asks.is_some() {
                let pause = self.rng.delay(50);
                self.caller_later(caller, pause);
            }
        }
    }

    fn handle_reply(&mut self, caller: usize, reply: Result<Value, ErrorBody>) {
        let Some(asks) = self.clients.callers[caller].asks.take() else { return };
        self.tally.answers += 1;
        match reply {
            Ok(answer) => {
                self.check_answer(caller, &asks, &answer);
                self.learn(&asks.what, &answer);
                if let Some(request_id) = asks.request_id.clone() {
                    self.clients.answers.insert(request_id, answer);
                    self.clients.answered.push(AnsweredRequest { caller, asks });
                }
            }
            Err(refusal) => {
                self.check_refusal(caller, &asks, &refusal);
                if refusal.data.code.starts_with("daemon.") {
                    return self.caller_later(caller, BUSY_MS);
                }
                if refusal.data.code == "session.changed" {
                    self.tally.changed += 1;
                    self.clients.callers[caller].asks = Some(asks);
                    return self.caller_later(caller, CHANGED_MS);
                }
            }
        }
        let pause = self.rng.delay(self.plan.pause_ms);
        self.caller_later(caller, pause);
    }

    fn learn(&mut self, what: &SimRequest, answer: &Value) {
        let id = answer["id"].as_str().unwrap_or_default();
        match what {
            SimRequest::Create { .. } => {
                if let Ok(agent) = id.parse()
                    && !self.clients.agents.contains(&agent)
                {
                    self.clients.agents.push(agent);
                }
            }
            SimRequest::Send { .. }
            | SimRequest::Edit { edit: SimSessionEdit::Regenerate(_) | SimSessionEdit::Retry(_), .. } => {
                self.tally.turns += 1;
                self.tally.waited += u64::from(answer["waits_for"] == "slot");
                remember(&mut self.clients.turns, id.parse().ok());
                let session = answer["session"].as_str().unwrap_or_default().parse().ok();
                remember(&mut self.clients.sessions, session);
            }
            SimRequest::Edit { edit: SimSessionEdit::Fork { .. }, .. } => {
                remember(&mut self.clients.sessions, id.parse().ok());
            }
            SimRequest::Issue { .. } => remember(&mut self.clients.tokens, id.parse().ok()),
            SimRequest::Submit { .. } => remember(&mut self.clients.jobs, id.parse().ok()),
            SimRequest::Remove(agent) | SimRequest::RemoveByForce(agent) => {
                self.clients.agents.retain(|known| known != agent);
            }
            SimRequest::Start(_)
            | SimRequest::Restart(_)
            | SimRequest::Update { .. }
            | SimRequest::Stop(_)
            | SimRequest::Kill(_)
            | SimRequest::Settle { .. }
            | SimRequest::Edit { .. }
            | SimRequest::Revoke(_)
            | SimRequest::Build { .. }
            | SimRequest::RemoveImage(_)
            | SimRequest::Tag { .. }
            | SimRequest::CancelJob(_)
            | SimRequest::Release { .. }
            | SimRequest::Interrupt(_) => {}
        }
    }
}

fn remember<T: PartialEq>(recent: &mut Vec<T>, new: Option<T>) {
    let Some(new) = new.filter(|new| !recent.contains(new)) else { return };
    if recent.len() >= RECENT_MAX {
        recent.remove(0);
    }
    recent.push(new);
}

/// A request that was decided before, with its recorded answer.
fn again(answer: &Value) -> Command {
    let agent = answer["id"].as_str().and_then(|id| id.parse().ok());
    Command::Again { agent, answer: view::text(answer) }
}

/// The JSON of an answer.
pub fn shown(answer: &Answer) -> Value {
    serde_json::from_str(&view::rendered(answer).0).unwrap_or_default()
}

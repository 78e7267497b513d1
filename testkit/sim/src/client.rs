//! Callers: they create, start, stop, remove, send, interrupt; they lose answers and ask again.
//!
//! Owns: what every caller was told, which is what has to be true for ever.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use lodge_core::agent::AgentState;
use lodge_core::lineage::Policy;
use lodge_core::record::{AgentSpec, ImageRecord, ToolRecord};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, LineageId, SessionId, TurnId};
use lodge_daemon::engine::{
    Command, Input, NameChoice, NewAgent, NewTurn, RequestKey, SessionChoice, Settlement, Ticket,
};
use lodge_proto::ErrorBody;
use serde_json::Value;

use crate::world::{Next, World};

/// How long a caller waits for an answer before it believes that it was lost.
const PATIENCE_MS: u64 = 30_000;
/// Before a caller comes back to a daemon that takes nothing.
const BUSY_MS: u64 = 100;

#[derive(Debug, Default)]
pub struct Clients {
    pub callers: Vec<Caller>,
    tickets: u64,
    names: u64,
    /// Requests whose answer somebody heard, and the answers by the request's id.
    pub told: Vec<Told>,
    answers: HashMap<String, Value>,
    /// How often each tool call had its effect.
    pub effects: HashMap<(TurnId, u32, u32), u32>,
    pub agents: Vec<AgentId>,
    pub turns: Vec<TurnId>,
    /// Turns that their own runtime refused to run.
    pub refused: BTreeSet<TurnId>,
    /// Turns about which a runtime lied.
    pub harmed: BTreeSet<TurnId>,
    /// What is asked for whatever chance says, before anything else.
    pub errands: Vec<What>,
    pub idle: bool,
}

#[derive(Debug, Default)]
pub struct Caller {
    pub asks: Option<Asks>,
    /// Raised with everything it does, so that an earlier alarm means nothing.
    turn: u64,
}

/// What a caller waits for.
#[derive(Debug, Clone)]
pub struct Asks {
    what: What,
    request_id: Option<String>,
    /// Of the request as it was first made.
    digest: u8,
    /// The keeper that lived when a stop or kill was first asked for, and the incarnation that its agent had: that one must
    /// be gone, unless the agent was started since.
    keeper: Option<(u64, u32)>,
}

/// A request whose answer was heard.
#[derive(Debug, Clone)]
pub struct Told {
    caller: usize,
    asks: Asks,
}

#[derive(Debug, Clone)]
pub enum What {
    Create { text: String },
    Start(AgentId),
    Stop(AgentId),
    Kill(AgentId),
    Settle { agent: AgentId, lineage: LineageId, policy: Policy },
    Remove(AgentId),
    RemoveByForce(AgentId),
    Send { agent: AgentId, session: Option<SessionId>, text: String },
    Interrupt(TurnId),
}

impl Clients {
    pub fn new(callers: usize) -> Self {
        let mut clients = Clients::default();
        clients.callers.resize_with(callers, Caller::default);
        clients
    }

    pub fn is_waiting(&self) -> bool {
        self.callers.iter().any(|caller| caller.asks.is_some())
    }
}

impl World {
    pub fn caller_later(&mut self, caller: usize, delay_ms: u64) {
        self.clients.callers[caller].turn += 1;
        let turn = self.clients.callers[caller].turn;
        self.after(delay_ms, Next::Client { caller, turn });
    }

    /// A caller does the next thing, or loses patience with the last.
    pub fn client_acts(&mut self, caller: usize, turn: u64) {
        if self.clients.callers[caller].turn != turn {
            return;
        }
        if self.daemon.is_none() {
            return self.caller_later(caller, 50);
        }
        match self.clients.callers[caller].asks.clone() {
            // Without an id of its own a request is not made again: nobody could tell it from another one.
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

    fn choose(&mut self, caller: usize) -> Option<Asks> {
        if let Some(what) = self.clients.errands.pop() {
            let request_id = Some(self.name("r"));
            let keeper = self.keeper_meant(&what);
            return Some(Asks { what, request_id, digest: 0, keeper });
        }
        if self.clients.idle {
            return None;
        }
        // An answer is forgotten, and asked for again; now and then with other words under the same id.
        if self.rng.chance(60)
            && let Some(told) = self.rng.pick(&self.clients.told).cloned()
            && told.caller == caller
        {
            let digest = if self.rng.chance(200) { told.asks.digest + 1 } else { told.asks.digest };
            return Some(Asks { digest, ..told.asks });
        }
        let request_id = if self.rng.chance(750) { Some(self.name("r")) } else { None };
        let what = self.wish(request_id.is_some());
        let keeper = self.keeper_meant(&what);
        Some(Asks { what, request_id, digest: 0, keeper })
    }

    fn name(&mut self, prefix: &str) -> String {
        self.clients.names += 1;
        format!("{prefix}{}", self.clients.names)
    }

    fn wish(&mut self, once: bool) -> What {
        // What is asked for once is counted once: the text tells.
        let text = self.name(if once { "once-" } else { "maybe-" });
        let agent = self.rng.pick(&self.clients.agents).cloned();
        let Some(agent) = agent else { return What::Create { text } };
        match self.rng.below(100) {
            0..3 if self.clients.agents.len() < self.plan.agents_max => What::Create { text },
            3..9 => What::Start(agent),
            9..11 => What::Stop(agent),
            18 => What::Kill(agent),
            19..23 => match self.disk.lineage(&agent).map(|row| row.id.clone()) {
                Some(lineage) => {
                    let policy = self.rng.pick(&Policy::ALL).copied().unwrap_or(Policy::Revive);
                    What::Settle { agent, lineage, policy }
                }
                None => What::Start(agent),
            },
            11 => What::Remove(agent),
            12 if self.rng.chance(300) => What::RemoveByForce(agent),
            13..18 => match self.rng.pick(&self.clients.turns) {
                Some(turn) => What::Interrupt(turn.clone()),
                None => What::Start(agent),
            },
            _ => {
                let session = if self.rng.chance(50) { None } else { self.some_session(&agent) };
                What::Send { agent, session, text }
            }
        }
    }

    fn some_session(&mut self, agent: &AgentId) -> Option<SessionId> {
        let number = self.rng.below(self.plan.sessions);
        // Now and then the session of another agent.
        let owner = if self.rng.chance(10) { "anybody" } else { agent.as_str() };
        format!("{owner}.{number}").parse().ok()
    }

    /// The API's own part: a known answer is given from the store, and sessions are looked up there.
    fn ask(&mut self, caller: usize, asks: Asks) {
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
                return self.heard(caller, Err(ErrorBody::new("request.reused", "it was used before")));
            }
            let answer: Value = serde_json::from_slice(&row.answer).unwrap_or_default();
            match asks.what {
                What::Stop(_) | What::Kill(_) | What::Remove(_) | What::RemoveByForce(_) => {
                    return self.put(caller, Some(key.clone()), Command::Again { answer });
                }
                What::Create { .. }
                | What::Start(_)
                | What::Settle { .. }
                | What::Interrupt(_)
                | What::Send { .. } => return self.heard(caller, Ok(answer)),
            }
        }
        let command = self.command(&asks.what);
        self.put(caller, key, command);
    }

    fn put(&mut self, caller: usize, key: Option<RequestKey>, command: Command) {
        self.clients.tickets += 1;
        let ticket = self.clients.tickets;
        let Some(daemon) = &mut self.daemon else { return };
        daemon.tickets.insert(ticket, (caller, self.clients.callers[caller].turn));
        // At once: between the look into the store and the engine's queue nothing is waited for.
        self.input(Input::Api { ticket, request: key, command });
    }

    fn command(&mut self, what: &What) -> Command {
        match what {
            What::Create { text } => {
                let own = self.rng.chance(700);
                let policy = self.rng.pick(&Policy::ALL).copied().filter(|_| own);
                Command::CreateAgent(Box::new(new_agent(text, policy)))
            }
            What::Start(id) => Command::StartAgent { id: id.clone() },
            What::Stop(id) => Command::StopAgent { id: id.clone() },
            What::Kill(id) => Command::KillAgent { id: id.clone() },
            What::Settle { agent, lineage, policy } => Command::SettleLineage(Box::new(Settlement {
                agent: agent.clone(),
                lineage: lineage.clone(),
                policy: *policy,
                last_turn: None,
            })),
            What::Remove(id) => Command::RemoveAgent { id: id.clone(), force: false },
            What::RemoveByForce(id) => Command::RemoveAgent { id: id.clone(), force: true },
            What::Interrupt(id) => Command::InterruptTurn { id: id.clone() },
            What::Send { agent, session, text } => {
                let session = match session {
                    None => SessionChoice::Fresh,
                    Some(id) => SessionChoice::Named { id: id.clone(), fact: self.disk.session(id).cloned() },
                };
                Command::SendTurn(Box::new(NewTurn {
                    agent: agent.clone(),
                    session,
                    sender: None,
                    text: text.clone(),
                }))
            }
        }
    }

    /// An answer leaves the daemon. Whoever lost patience does not hear it.
    pub fn answer(&mut self, ticket: Ticket, reply: Result<Value, ErrorBody>) {
        let Some(daemon) = &mut self.daemon else { return };
        let Some((caller, turn)) = daemon.tickets.remove(&ticket) else { return };
        self.trace.say(self.now, || format!("caller {caller} is told {}", crate::words::reply(&reply)));
        if self.clients.callers[caller].turn == turn {
            self.check_gone(caller, &reply);
            self.heard(caller, reply);
        }
    }

    /// The keeper that a stop or kill is about.
    fn keeper_meant(&self, what: &What) -> Option<(u64, u32)> {
        let (What::Stop(agent) | What::Kill(agent)) = what else { return None };
        let row = self.disk.agent(agent)?;
        let keeper = self.machine.sandboxes.get(&row.sandbox)?.keeper.as_ref()?;
        Some((keeper.serial, row.incarnation))
    }

    /// Nothing survives a stop: whoever waited for it to be done hears of it when it is.
    fn check_gone(&mut self, caller: usize, reply: &Result<Value, ErrorBody>) {
        let Some(asks) = self.clients.callers[caller].asks.as_ref() else { return };
        let (What::Stop(agent) | What::Kill(agent)) = &asks.what else { return };
        let lives = asks.keeper.is_some() && self.keeper_meant(&asks.what) == asks.keeper;
        let stopped = self.disk.agent(agent).is_some_and(|row| row.state == AgentState::Stopped);
        if reply.is_ok() && stopped && lives {
            self.fail(format!("{agent} is told to be stopped, and its sandbox lives"));
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

    fn heard(&mut self, caller: usize, reply: Result<Value, ErrorBody>) {
        let Some(asks) = self.clients.callers[caller].asks.take() else { return };
        self.tally.told += 1;
        match reply {
            Ok(answer) => {
                self.check_answer(caller, &asks, &answer);
                self.learn(&asks.what, &answer);
                if let Some(request_id) = asks.request_id.clone() {
                    self.clients.answers.insert(request_id, answer);
                    self.clients.told.push(Told { caller, asks });
                }
            }
            Err(refusal) => {
                self.check_refusal(caller, &asks, &refusal);
                if refusal.data.code.starts_with("daemon.") {
                    return self.caller_later(caller, BUSY_MS);
                }
            }
        }
        let pause = self.rng.delay(self.plan.pause_ms);
        self.caller_later(caller, pause);
    }

    fn learn(&mut self, what: &What, answer: &Value) {
        let id = answer["id"].as_str().unwrap_or_default();
        match what {
            What::Create { .. } => {
                if let Ok(agent) = id.parse()
                    && !self.clients.agents.contains(&agent)
                {
                    self.clients.agents.push(agent);
                }
            }
            What::Send { .. } => {
                if let Ok(turn) = id.parse() {
                    self.tally.turns += 1;
                    // Only recent turns are worth interrupting.
                    if self.clients.turns.len() > 16 {
                        self.clients.turns.remove(0);
                    }
                    self.clients.turns.push(turn);
                }
            }
            What::Remove(agent) | What::RemoveByForce(agent) => {
                self.clients.agents.retain(|known| known != agent);
            }
            What::Start(_) | What::Stop(_) | What::Kill(_) | What::Settle { .. } | What::Interrupt(_) => {}
        }
    }

    /// Acknowledged means durable, and a request has one answer.
    fn check_answer(&mut self, caller: usize, asks: &Asks, answer: &Value) {
        if let Err(broken) = self.answer_holds(caller, asks, answer) {
            self.fail(format!("caller {caller} was told {answer} about {:?}: {broken}", asks.what));
        }
    }

    fn answer_holds(&self, caller: usize, asks: &Asks, answer: &Value) -> Result<(), String> {
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
            What::Create { text } => {
                let agent = self.disk.agent(&id.parse().map_err(|_| "no id")?);
                let same = agent.is_some_and(|row| row.image == *text);
                if same { Ok(()) } else { Err("that agent is not on disk".into()) }
            }
            What::Send { text, agent, .. } => {
                let turn = self.disk.turn(&id.parse().map_err(|_| "no id")?);
                let same = |turn: &crate::disk::Kept| {
                    turn.row.agent == *agent
                        && turn.messages.first().is_some_and(|first| first.body.text == *text)
                };
                if turn.is_some_and(same) { Ok(()) } else { Err("that turn is not on disk".into()) }
            }
            What::Interrupt(turn) => {
                let over = self.disk.turn(turn).map(|turn| turn.row.state);
                let over = over == Some(TurnState::Interrupted);
                if over { Ok(()) } else { Err("that turn was not interrupted on disk".into()) }
            }
            What::Settle { lineage, .. } if id == lineage.as_str() => Ok(()),
            What::Settle { .. } => Err("that is another lineage".into()),
            What::Start(agent)
            | What::Stop(agent)
            | What::Kill(agent)
            | What::Remove(agent)
            | What::RemoveByForce(agent) => {
                if id == agent.as_str() && self.disk.agent(agent).is_some() {
                    Ok(())
                } else {
                    Err("that agent is not on disk".into())
                }
            }
        }
    }

    fn check_refusal(&mut self, caller: usize, asks: &Asks, refusal: &ErrorBody) {
        let Some(request_id) = &asks.request_id else { return };
        let row = self.disk.request(&format!("caller-{caller}"), request_id);
        let same = row.is_some_and(|row| row.digest == [asks.digest; 32]);
        if same && refusal.data.code == "request.reused" {
            self.fail(format!("caller {caller} made {request_id} as before, and is refused: {refusal:?}"));
        }
    }

    /// What was asked for once is there at most once.
    pub fn check_once(&mut self, text: &str) {
        if text.starts_with("once-") && self.disk.accepted(text) > 1 {
            self.fail(format!("`{text}` was asked for once, and is there twice"));
        }
    }
}

fn new_agent(text: &str, policy: Option<Policy>) -> NewAgent {
    let tool = |name: &str, safe| ToolRecord {
        name: name.into(),
        path: format!("/usr/bin/{name}"),
        safe,
        ..ToolRecord::default()
    };
    let spec = AgentSpec {
        model: "p/m".into(),
        env: BTreeMap::new(),
        tools: vec![tool("sh", false), tool("date", true)],
        revival_policy: policy.map(Policy::code),
        ..AgentSpec::default()
    };
    NewAgent {
        name: NameChoice::Like("a".into()),
        image: text.to_owned(),
        image_digest: "sha256:0".into(),
        record: ImageRecord::default(),
        spec,
    }
}

//! The engine: one synchronous step from inputs to records and effects.
//!
//! Owns: the memory of all live state, and the order of events. Never: I/O, clocks, tasks. It decides ahead of the
//! disk; everything that leaves the daemon waits for the commit of its batch.

mod agents;
mod answer;
mod batch;
mod boot;
mod facts;
mod images;
mod io;
pub mod jobs;
mod quarantine;
mod rebuild;
mod refusal;
mod requests;
mod sandboxes;
mod sessions;
mod tokens;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use lodge_core::event::{DaemonReloaded, EventBody};
use lodge_core::lineage::Policy;
use lodge_core::quarantine::{QuarantineRow, Suspect};
use lodge_core::record::{EventRow, ImageFact, ImageRefRow, ImageWrite, Write};
use lodge_core::retry::Backoff;
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, ExecId, IdSource, SessionId, Timestamp, TokenId, TurnId, WorkId};

pub use agents::UpdateTiming;
pub use agents::messages::*;
use agents::{Agent, Lookups};
pub use answer::*;
use batch::Step;
pub use batch::{Batch, BatchOutput};
pub use facts::*;
pub use images::messages::*;
pub use images::refusal::quoted;
pub use io::*;
pub use jobs::JobCommand;
pub use lodge_core::record::DAEMON_STREAM;
pub use quarantine::{Release, ReleasedWork, WorkCommand, WorkEffect, turn_of};
pub use rebuild::RequestName;
pub use refusal::*;
use requests::Requests;
pub use sandboxes::messages::*;
use sandboxes::standalone::live::Standalones;
pub use sandboxes::standalone::messages::*;
use sessions::Session;
pub use sessions::messages::*;
pub use tokens::messages::*;
use turns::Turn;
pub use turns::messages::*;
pub use turns::models::pieces;

/// What the engine needs to know about its host.
#[derive(Debug, Clone)]
pub struct Host {
    /// The boot in which intents are written.
    pub boot: String,
    /// Whether every sandbox gets its own user.
    pub own_uids: bool,
    pub settings: Settings,
    pub render: AnswerRenderer,
}

/// Settings of the operator. They may change while the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// The default revival policy.
    pub policy: Policy,
    pub backoff: Backoff,
    /// Agents that may work at the same time.
    pub max_concurrent: usize,
    /// Jobs that may run at the same time.
    pub max_jobs: usize,
    /// The default number of bytes that are kept of each stream of a job.
    pub job_output: u64,
}

#[derive(Debug)]
pub struct Engine {
    /// The current step.
    step: Step,
    epoch: u64,
    started: Option<StartEvent>,
    host: Host,
    ids: IdSource,
    seq: u64,
    /// Of the daemon, and of the agents and the standalone sandboxes in memory.
    streams: BTreeMap<String, StreamHead>,
    /// Agents at rest come and go, see `agents::rest`.
    agents: BTreeMap<AgentId, Agent>,
    /// The names of all agents, in memory or not.
    names: HashSet<Box<str>>,
    /// How many agents that are not in memory have each image.
    resting_images: BTreeMap<String, u64>,
    lookups: Lookups,
    sessions: HashMap<SessionId, Session>,
    turns: HashMap<TurnId, Turn>,
    /// Agents with a running turn.
    working: usize,
    execs: HashMap<ExecId, TurnId>,
    jobs: jobs::LiveJobs,
    /// Sandboxes that belong to no agent.
    standalones: Standalones,
    requests: Requests,
    /// Sessions without a live turn, the longest idle first.
    idle_sessions: VecDeque<SessionId>,
    /// Providers that do not answer, by name.
    outages: turns::outages::Outages,
    last_uid: Option<u32>,
    /// Tokens that are not revoked.
    tokens: BTreeMap<TokenId, TokenRow>,
    image_refs: BTreeMap<String, ImageRefRow>,
    images: BTreeMap<String, ImageFact>,
    /// Pulls, lookups and attempts at providers that were ordered since the daemon started.
    asks: u64,
    /// Work in quarantine.
    quarantine: BTreeMap<WorkId, QuarantineRow>,
    /// What this daemon quarantined, each with the newest event then: a store without that event lost the decision.
    quarantined: Vec<(u64, Suspect)>,
}

/// The end of one stream of events.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamHead {
    /// The newest number within the stream.
    head: u64,
    /// The number of that event in the whole log; 0 if an earlier daemon wrote it, or if it was on disk when it was read.
    seq: u64,
}

/// The event about the start of this daemon.
#[derive(Debug)]
struct StartEvent {
    seq: u64,
    body: EventBody,
}

/// The caller that waits for the answer to a command.
#[derive(Debug)]
pub(crate) struct Caller {
    ticket: Ticket,
    request: Option<RequestKey>,
}

impl Engine {
    /// Decides: inputs in, one batch out.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>, now: Timestamp) -> Batch {
        self.step.now = now;
        for input in inputs {
            // Text arrives often and changes no slot.
            let is_text = matches!(input, Input::Seen(Observation::Turn(TurnObservation::ModelText { .. })));
            match input {
                Input::Api { ticket, request, command } => {
                    self.command(Caller { ticket, request }, command);
                }
                Input::Seen(seen) => self.observe(seen),
            }
            if !is_text {
                self.yield_slots();
                self.tend_outages();
            }
        }
        if self.step.writes().iter().any(|write| matches!(write, Write::Image(ImageWrite::Gone { .. }))) {
            self.step.act(Effect::Pull(PullEffect::Collect));
        }
        self.step.take()
    }

    fn command(&mut self, caller: Caller, command: Command) {
        match self.absent_agent(&command) {
            Some(agent) => self.order_lookup(caller, command, agent),
            None => {
                if let Some((caller, command)) = self.wait_for_sandbox(caller, command) {
                    self.decide(caller, command);
                }
            }
        }
    }

    /// Decides a command whose agent is in memory, or does not exist.
    fn decide(&mut self, caller: Caller, command: Command) {
        // A caller waits for every answer.
        self.step.mark_urgent();
        if let Some(key) = &caller.request
            && let Some(known) = self.requests.known(key)
        {
            return match known {
                Ok(answer) => self.resend(caller, &command, answer),
                Err(refusal) => self.step.refuse(caller.ticket, refusal),
            };
        }
        let ticket = caller.ticket;
        let refused = match command {
            Command::Agent(command) => self.agent_command(caller, command),
            Command::Turn(TurnCommand::Send(new)) => self.send_turn(caller, *new),
            Command::Turn(TurnCommand::Interrupt { id }) => self.interrupt_turn(caller, &id),
            Command::Session(change) => self.change_session(caller, *change),
            Command::Token(TokenCommand::Issue(new)) => self.issue_token(caller, *new),
            Command::Token(TokenCommand::Revoke { row }) => {
                self.revoke_token(caller, *row);
                Ok(())
            }
            Command::Image(command) => self.image_command(caller, command),
            Command::Job(JobCommand::Submit(new)) => self.submit_job(caller, *new),
            Command::Job(JobCommand::Cancel { id }) => self.cancel_job(caller, &id),
            Command::Sandbox(command) => self.sandbox_command(caller, command),
            Command::Work(WorkCommand::Release { id, how }) => self.release_work(caller, &id, how),
            Command::Reloaded { keys, answer } => {
                self.event(DAEMON_STREAM, DaemonReloaded { keys });
                self.reply(caller, Answer::Rendered(answer));
                Ok(())
            }
            Command::Again { agent, answer } => {
                self.answer_again(caller, agent.as_ref(), answer);
                Ok(())
            }
            Command::Keep { answer } => {
                self.reply(caller, Answer::Rendered(answer));
                Ok(())
            }
        };
        if let Err(refusal) = refused {
            self.step.refuse(ticket, refusal);
        }
    }

    fn observe(&mut self, seen: Observation) {
        match seen {
            Observation::Agent(seen) => self.observe_agent(seen),
            Observation::Sandbox(seen) => self.observe_sandbox(seen),
            Observation::Standalone(seen) => self.observe_standalone(seen),
            Observation::Turn(seen) => self.observe_turn(seen),
            Observation::Pull(seen) => self.observe_pull(seen),
            Observation::Job(seen) => self.observe_job(seen),
            Observation::Configured(settings) => self.configured(settings),
            Observation::ProvidersChanged => self.providers_changed(),
            Observation::Settled { requests, seq, rest } => {
                self.settled(requests, rest);
                self.release_resting_agents(seq);
                self.release_sandboxes(seq);
            }
        }
    }

    /// Appends an event, numbered globally and within its stream. A removed agent's stream has ended: later events go
    /// into the daemon's stream.
    fn event(&mut self, stream: &str, body: impl Into<EventBody>) {
        self.seq += 1;
        let stream = if self.streams.contains_key(stream) { stream } else { DAEMON_STREAM };
        let newest = match self.streams.get_mut(stream) {
            Some(newest) => newest,
            None => self.streams.entry(stream.to_owned()).or_default(),
        };
        *newest = StreamHead { head: newest.head + 1, seq: self.seq };
        let (seq, stream_seq) = (self.seq, newest.head);
        let row =
            EventRow { seq, stream: stream.to_owned(), stream_seq, at: self.step.now, body: body.into() };
        self.step.write_with_next_commit(row);
    }
}

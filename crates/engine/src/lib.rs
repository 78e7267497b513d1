//! The engine: one synchronous step from inputs to what is recorded and what is done about it.
//!
//! Owns: the memory of everything live, and the order of events. Never: I/O, clocks, tasks; tokio is its shell.
//! Decides ahead of the disk; whatever leaves the daemon waits for the commit of its batch.

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

use std::collections::{BTreeMap, HashMap, VecDeque};

use lodge_core::event::{DaemonReloaded, EventBody};
use lodge_core::lineage::Policy;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{EventRow, ImageHeld, ImageRefRow, ImageWrite, Write};
use lodge_core::retry::Backoff;
use lodge_core::token::TokenRow;
use lodge_core::{AgentId, ExecId, IdSource, SessionId, Timestamp, TokenId, TurnId, WorkId};

use agents::Agent;
pub use agents::InForce;
pub use agents::messages::*;
pub use answer::*;
use batch::Step;
pub use batch::{Batch, Out};
pub use facts::*;
pub use images::messages::*;
pub use images::refusal::quoted;
pub use io::*;
pub use jobs::JobCommand;
pub use quarantine::{Release, turn_of};
pub use rebuild::RequestName;
pub use refusal::*;
use requests::Requests;
pub use sandboxes::messages::*;
use sessions::Session;
pub use sessions::messages::*;
pub use tokens::messages::*;
use turns::Turn;
pub use turns::messages::*;
pub use turns::models::pieces;

/// The stream of events that belong to no agent.
pub const DAEMON_STREAM: &str = "daemon";

/// What the engine must be told about the host it runs on.
#[derive(Debug, Clone)]
pub struct Host {
    /// Names the boot in which intents are written.
    pub boot: String,
    /// Whether every sandbox gets a user of its own.
    pub own_uids: bool,
    pub settings: Settings,
    pub render: Render,
}

/// What people set, and may set anew while the daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What happens to the work of a process that died, where its agent does not say.
    pub policy: Policy,
    pub backoff: Backoff,
    /// Agents that work at the same time.
    pub max_concurrent: usize,
    /// Jobs that run at the same time.
    pub max_jobs: usize,
    /// Most bytes that are kept of each stream of a job that does not say.
    pub job_output: u64,
}

#[derive(Debug)]
pub struct Engine {
    /// The step under way.
    step: Step,
    epoch: u64,
    started: Option<StartEvent>,
    host: Host,
    ids: IdSource,
    seq: u64,
    streams: BTreeMap<String, u64>,
    agents: BTreeMap<AgentId, Agent>,
    names: HashMap<String, AgentId>,
    sessions: HashMap<SessionId, Session>,
    turns: HashMap<TurnId, Turn>,
    /// Agents with a turn that runs.
    working: usize,
    execs: HashMap<ExecId, TurnId>,
    jobs: jobs::Jobs,
    requests: Requests,
    /// Sessions without a live turn, the longest idle first.
    idle_sessions: VecDeque<SessionId>,
    last_uid: Option<u32>,
    /// Those that nobody revoked.
    tokens: BTreeMap<TokenId, TokenRow>,
    image_refs: BTreeMap<String, ImageRefRow>,
    images: BTreeMap<String, ImageHeld>,
    /// Pulls that were ordered since the daemon started.
    asks: u64,
    /// Work that is set aside.
    quarantine: BTreeMap<WorkId, QuarantineRow>,
    /// The newest event when it was set aside by this daemon: a store that does not have it lost the decision.
    quarantine_seqs: BTreeMap<WorkId, u64>,
}

/// The event that says that this daemon started.
#[derive(Debug)]
struct StartEvent {
    seq: u64,
    body: EventBody,
}

/// Who waits for the answer to a command.
#[derive(Debug)]
pub(crate) struct Caller {
    ticket: Ticket,
    request: Option<RequestKey>,
}

impl Engine {
    /// The whole of deciding: inputs in, one batch out.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>, now: Timestamp) -> Batch {
        self.step.now = now;
        for input in inputs {
            // Text comes often, and changes nobody's slot.
            let is_text = matches!(input, Input::Seen(Seen::Turn(TurnSeen::ModelText { .. })));
            match input {
                Input::Api { ticket, request, command } => {
                    self.command(Caller { ticket, request }, command);
                }
                Input::Seen(seen) => self.observe(seen),
            }
            if !is_text {
                self.yield_slots();
            }
        }
        if self.step.writes().iter().any(|write| matches!(write, Write::Image(ImageWrite::Gone { .. }))) {
            self.step.act(Effect::Pull(PullEffect::Collect));
        }
        self.step.take()
    }

    fn command(&mut self, caller: Caller, command: Command) {
        // Somebody waits for the answer, whatever it is.
        self.step.hurry();
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
            Command::ReleaseWork { id, how } => self.release_work(caller, &id, how),
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

    fn observe(&mut self, seen: Seen) {
        match seen {
            Seen::Agent(seen) => self.agent_seen(seen),
            Seen::Sandbox(seen) => self.sandbox_seen(seen),
            Seen::Turn(seen) => self.turn_seen(seen),
            Seen::Pull(seen) => self.pull_seen(seen),
            Seen::Job(seen) => self.job_seen(seen),
            Seen::Configured(settings) => self.configured(settings),
            Seen::ProvidersChanged => self.providers_changed(),
            Seen::Settled { requests, rest } => self.settled(requests, rest),
        }
    }

    /// Appends an event, numbered globally and within its stream.
    fn event(&mut self, stream: &str, body: impl Into<EventBody>) {
        self.seq += 1;
        let head = match self.streams.get_mut(stream) {
            Some(head) => head,
            None => self.streams.entry(stream.to_owned()).or_insert(0),
        };
        *head += 1;
        let (seq, stream_seq) = (self.seq, *head);
        let row =
            EventRow { seq, stream: stream.to_owned(), stream_seq, at: self.step.now, body: body.into() };
        self.step.ride(row);
    }
}

pub fn failure(code: &str, message: &str) -> lodge_core::record::FailureRecord {
    lodge_core::record::FailureRecord { code: code.to_owned(), message: message.to_owned(), hint: None }
}

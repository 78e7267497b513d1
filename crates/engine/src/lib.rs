//! The engine: one synchronous step from inputs to what is recorded and what is done about it.
//!
//! Owns: the memory of everything live, and the order of events. Never: I/O, clocks, tasks; tokio is its shell.
//! Decides ahead of the disk; whatever leaves the daemon waits for the commit of its batch.

mod agents;
mod answer;
mod batch;
mod boot;
mod commands;
mod facts;
mod images;
mod io;
pub mod jobs;
mod quarantine;
mod rebuild;
mod refusal;
mod requests;
mod sessions;
mod tokens;
mod turns;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};

use lodge_core::agent::AgentEvent;
use lodge_core::lineage::Policy;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{EventRow, ImageHeld, ImageRefRow, Write};
use lodge_core::retry::Backoff;
use lodge_core::token::TokenRow;
use lodge_core::{
    AgentId, EventData, EventKind, ExecId, IdSource, SessionId, Timestamp, TokenId, TurnId, WorkId,
};
use serde_json::Value;

use agents::Agent;
pub use agents::InForce;
pub use answer::*;
use batch::Step;
pub use batch::{Batch, Out};
pub use commands::*;
pub use facts::*;
use images::PulledImages;
pub use images::refusal::quoted;
pub use io::*;
pub use quarantine::{Release, turn_of};
pub use rebuild::RequestName;
pub use refusal::*;
use requests::Requests;
use sessions::Session;
pub use turns::models::pieces;
use turns::{Turn, Wish, compact, execs};

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
    started: Option<Started>,
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
struct Started {
    seq: u64,
    data: EventData,
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
            let is_text = matches!(input, Input::Seen(Seen::ModelText { .. }));
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
        if self.step.writes().iter().any(|write| matches!(write, Write::ImageGone { .. })) {
            self.step.act(Effect::CollectImages);
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
            Command::CreateAgent(new) => self.create_agent(caller, *new),
            Command::StartAgent { id } => self.start_agent(caller, &id),
            Command::RestartAgent { id, jobs } => self.restart_agent(caller, &id, jobs),
            Command::UpdateAgent(update) => self.update_agent(caller, *update),
            Command::StopAgent { id, jobs } => self.stop_agent(caller, &id, jobs),
            Command::KillAgent { id } => self.kill_agent(caller, &id),
            Command::RemoveAgent { id, force } => self.remove_agent(caller, &id, force),
            Command::SendTurn(new) => self.send_turn(caller, *new),
            Command::InterruptTurn { id } => self.interrupt_turn(caller, &id),
            Command::SettleLineage(settlement) => self.settle_lineage(caller, *settlement),
            Command::ChangeSession(change) => self.change_session(caller, *change),
            Command::IssueToken(new) => self.issue_token(caller, *new),
            Command::AddImage(new) => self.add_image(caller, *new),
            Command::AddImageBesides(new) => self.add_image_besides(caller, *new),
            Command::TagImage { digest, tags } => self.tag_image(caller, &digest, tags),
            Command::RemoveImage(given) => self.remove_image(caller, given),
            Command::SubmitJob(new) => self.submit_job(caller, *new),
            Command::CancelJob { id } => self.cancel_job(caller, &id),
            Command::ReleaseWork { id, how } => self.release_work(caller, &id, how),
            Command::RevokeToken { row } => {
                self.revoke_token(caller, *row);
                Ok(())
            }
            Command::Reloaded { keys, answer } => {
                let data = EventData { keys, ..EventData::default() };
                self.event(DAEMON_STREAM, EventKind::DaemonReloaded, data);
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
            Seen::RuntimeReady { agent, run, adopted, running } => {
                self.runtime_ready(&agent, run, adopted, &running);
            }
            Seen::SpawnFailed { agent, run, detail } => {
                self.agent_not_started(&agent, run, detail);
            }
            Seen::Lacks { agent, run, lack, detail } => {
                self.agent_lacks(&agent, run, lack, detail);
            }
            Seen::Pulled { agent, ask, rows, tools, runtime } => {
                self.pulled(&agent, ask, PulledImages { rows, tools, runtime });
            }
            Seen::PullFailed { agent, ask, detail, again } => {
                self.pull_failed(&agent, ask, detail, again);
            }
            Seen::RetryDue { agent, run } => self.retry_due(&agent, run),
            Seen::Configured(settings) => self.configured(settings),
            Seen::ProvidersChanged => self.providers_changed(),
            Seen::ProbeTimedOut { agent, run } => {
                let detail = "the runtime did not answer its readiness probe in time".to_owned();
                self.agent_failed(&agent, run, AgentEvent::ProbeTimedOut, detail);
            }
            Seen::Exited { agent, run, code, detail } => {
                self.agent_exited(&agent, run, code, detail);
            }
            Seen::Died { agent, run, part, detail } => {
                self.agent_died(&agent, run, part, detail);
            }
            Seen::OutOfMemory { agent, run, detail } => {
                self.agent_out_of_memory(&agent, run, detail);
            }
            Seen::Silent { agent, run, level, part } => {
                self.agent_silent(&agent, run, level, part);
            }
            Seen::RevivalDue { agent, run } => self.revival_due(&agent, run),
            // A runtime has a say about turns of its own agent alone.
            Seen::TurnRefused { agent, turn, .. } if !self.is_live(&agent, &turn) => {}
            Seen::TurnRefused { turn, why, .. } => {
                self.fail_turn(&turn, failure("runtime.refused", &why));
            }
            Seen::NotDown { agent, run, detail } => self.agent_not_down(&agent, run, detail),
            Seen::Down { agent, run } => self.agent_down(&agent, run),
            Seen::Cleared { agent } => self.agent_cleared(&agent),
            Seen::NotCleared { agent, detail } => self.agent_not_cleared(&agent, detail),
            Seen::Asked { agent, id, ask } => self.asked(&agent, id, ask),
            Seen::ExecsFound { agent, running, ended } => self.execs_found(&agent, running, ended),
            Seen::ExecEnded { exec, end } => self.exec_ended(&exec, end),
            Seen::ModelText { turn, step, attempt, offset, text } => {
                self.model_text(&turn, (step, attempt), offset, text);
            }
            Seen::ModelAnswered { turn, step, attempt, answer } => {
                self.model_answered(&turn, (step, attempt), answer);
            }
            Seen::ModelFailed { turn, step, attempt, failure } => {
                self.model_failed(&turn, (step, attempt), failure);
            }
            Seen::Job(seen) => self.job_seen(seen),
            Seen::Settled { requests, rest } => self.settled(requests, rest),
        }
    }

    /// Routes what a runtime asks, when the turn is still its business.
    fn asked(&mut self, agent: &AgentId, id: Value, ask: Ask) {
        if !self.is_live(agent, ask.turn()) {
            let gone = failure("turn.gone", "that turn is over");
            self.step.act(Effect::Answer { agent: agent.clone(), id, answer: Err(gone) });
            self.step.hurry();
            return;
        }
        match ask {
            Ask::Model { turn, step, context, from_turn } => {
                self.ask_model(&turn, step, Wish { id, context, from_turn });
            }
            Ask::Exec { turn, step, call, bin, args, stdin, timeout_ms } => {
                let wanted = execs::Wanted { turn, step, call, bin, args, stdin, timeout_ms };
                self.ask_exec(id, &wanted);
            }
            Ask::Compact { turn, from_turn, strategy } => {
                self.ask_compact(id, &compact::Wanted { turn, from_turn, strategy });
            }
            Ask::Answer { turn, step, call, text, error } => {
                self.tool_answered(id, &turn, step, &call, text, error);
            }
            Ask::Job { turn, step, call, wish } => {
                self.ask_job(id, &jobs::Asked { turn, step, call }, wish);
            }
            Ask::Finish { turn, code, message } => {
                self.fail_turn(&turn, failure(&code, &message));
                self.step.act(Effect::Answer {
                    agent: agent.clone(),
                    id,
                    answer: Ok(Value::Object(serde_json::Map::new())),
                });
            }
        }
    }

    /// Whether a turn is this agent's, and running.
    fn is_live(&self, agent: &AgentId, turn: &TurnId) -> bool {
        self.turns.get(turn).is_some_and(|turn| turn.row.agent == *agent && turn.is_running())
    }

    /// Appends an event, numbered globally and within its stream.
    fn event(&mut self, stream: &str, kind: EventKind, data: EventData) {
        self.seq += 1;
        let head = match self.streams.get_mut(stream) {
            Some(head) => head,
            None => self.streams.entry(stream.to_owned()).or_insert(0),
        };
        *head += 1;
        let (seq, stream_seq) = (self.seq, *head);
        let row = EventRow { seq, stream: stream.to_owned(), stream_seq, at: self.step.now, kind, data };
        self.step.ride(Write::Event(row));
    }
}

pub fn failure(code: &str, message: &str) -> lodge_core::record::FailureRecord {
    lodge_core::record::FailureRecord { code: code.to_owned(), message: message.to_owned(), hint: None }
}

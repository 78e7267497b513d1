//! The engine: one synchronous step from inputs to what is recorded and what is done about it.
//!
//! Owns: the memory of everything live, and the order of events. Never: I/O, clocks, tasks; tokio is its shell.
//! Decides ahead of the disk; whatever leaves the daemon waits for the commit of its batch.

mod agents;
mod batch;
mod boot;
mod commands;
mod compact;
mod ends;
mod execs;
mod facts;
pub(crate) mod images;
mod io;
pub mod jobs;
mod lineages;
mod misfits;
mod models;
mod naming;
mod pulls;
mod quarantine;
mod rebuild;
mod retries;
mod sessions;
mod slots;
mod starts;
mod state;
mod tokens;
mod turns;
mod updates;
mod waiting;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use lodge_core::agent::AgentEvent;
use lodge_core::limits::RECENT_REQUESTS_MAX;
use lodge_core::lineage::Policy;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{EventRow, ImageHeld, ImageRefRow, RequestRow, Write};
use lodge_core::retry::Backoff;
use lodge_core::token::TokenRow;
use lodge_core::{
    AgentId, EventData, EventKind, ExecId, IdSource, SessionId, Timestamp, TokenId, TurnId, WorkId,
};
use lodge_proto::ErrorBody;
use serde_json::Value;

pub use batch::{Batch, Out};
pub use commands::*;
pub use facts::*;
pub use io::*;
pub(crate) use models::pieces;
use pulls::Brought;
pub use quarantine::Release;
pub(crate) use quarantine::{no_work, turn_of};
pub use rebuild::RequestName;
use starts::Pauses;
use state::{Agent, Session, Turn};
pub(crate) use updates::InForce;

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
    recent: HashMap<Arc<(String, String)>, Recent>,
    /// With the number of the request, counted from the start of the daemon.
    recent_order: VecDeque<(u64, Arc<(String, String)>)>,
    requests: u64,
    /// How many of them are known to be on disk.
    settled: u64,
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

/// A request that was decided since the daemon started.
#[derive(Debug)]
struct Recent {
    digest: [u8; 32],
    /// As text: thousands are kept, and a parsed answer is many times as large.
    answer: Box<str>,
}

/// Who waits for the answer to a command.
#[derive(Debug)]
pub(crate) struct Caller {
    ticket: Ticket,
    request: Option<RequestKey>,
}

type Refusal = Box<ErrorBody>;

impl Engine {
    /// The whole of deciding: inputs in, one batch out.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>, now: Timestamp) -> Batch {
        let mut batch = Batch::default();
        for input in inputs {
            // Text comes often, and changes nobody's slot.
            let is_text = matches!(input, Input::Seen(Seen::ModelText { .. }));
            match input {
                Input::Api { ticket, request, command } => {
                    self.command(&mut batch, Caller { ticket, request }, command, now);
                }
                Input::Seen(seen) => self.observe(&mut batch, seen, now),
            }
            if !is_text {
                self.yield_slots(&mut batch, now);
            }
        }
        if batch.writes.iter().any(|write| matches!(write, Write::ImageGone { .. })) {
            batch.act(Effect::CollectImages);
        }
        batch
    }

    fn command(&mut self, batch: &mut Batch, caller: Caller, command: Command, now: Timestamp) {
        // Somebody waits for the answer, whatever it is.
        batch.urgent = true;
        if let Some(key) = &caller.request
            && let Some(known) = self.recent.get(&(key.caller.clone(), key.request_id.clone()))
        {
            if known.digest != key.digest {
                let reply = Err(*reused(&key.request_id));
                return batch.after.push(Out::Reply { ticket: caller.ticket, reply });
            }
            let answer = serde_json::from_str(&known.answer).unwrap_or_default();
            return self.resent(batch, caller, &command, answer);
        }
        let ticket = caller.ticket;
        let refused = match command {
            Command::CreateAgent(new) => self.create_agent(batch, caller, *new, now),
            Command::StartAgent { id } => self.start_agent(batch, caller, &id, now),
            Command::RestartAgent { id, jobs } => self.restart_agent(batch, caller, &id, jobs, now),
            Command::UpdateAgent(update) => self.update_agent(batch, caller, *update, now),
            Command::StopAgent { id, jobs } => self.stop_agent(batch, caller, &id, jobs, now),
            Command::KillAgent { id } => self.kill_agent(batch, caller, &id, now),
            Command::RemoveAgent { id, force } => self.remove_agent(batch, caller, &id, force, now),
            Command::SendTurn(new) => self.send_turn(batch, caller, *new, now),
            Command::InterruptTurn { id } => self.interrupt_turn(batch, caller, &id, now),
            Command::SettleLineage(settlement) => self.settle_lineage(batch, caller, *settlement, now),
            Command::ChangeSession(change) => self.change_session(batch, caller, *change, now),
            Command::IssueToken(new) => self.issue_token(batch, caller, *new, now),
            Command::AddImage(new) => self.add_image(batch, caller, *new, now),
            Command::AddImageBesides(new) => self.add_image_besides(batch, caller, *new, now),
            Command::TagImage { digest, tags } => self.tag_image(batch, caller, &digest, tags, now),
            Command::RemoveImage(given) => self.remove_image(batch, caller, given, now),
            Command::SubmitJob(new) => self.submit_job(batch, caller, *new, now),
            Command::CancelJob { id } => self.cancel_job(batch, caller, &id, now),
            Command::ReleaseWork { id, how } => self.release_work(batch, caller, &id, how, now),
            Command::RevokeToken { row } => {
                self.revoke_token(batch, caller, *row, now);
                Ok(())
            }
            Command::Reloaded { keys, answer } => {
                let data = EventData { keys, ..EventData::default() };
                self.event(batch, DAEMON_STREAM, EventKind::DaemonReloaded, data, now);
                self.reply(batch, caller, answer, now);
                Ok(())
            }
            Command::Again { answer } => {
                self.answer_again(batch, caller, answer);
                Ok(())
            }
            Command::Keep { answer } => {
                self.reply(batch, caller, answer, now);
                Ok(())
            }
        };
        if let Err(refusal) = refused {
            batch.after.push(Out::Reply { ticket, reply: Err(*refusal) });
        }
    }

    /// Answers a request that was decided since the daemon started as it was answered then.
    fn resent(&mut self, batch: &mut Batch, caller: Caller, command: &Command, answer: Value) {
        match command {
            Command::StopAgent { .. }
            | Command::KillAgent { .. }
            | Command::RemoveAgent { .. }
            | Command::Again { .. } => self.answer_again(batch, caller, answer),
            Command::CreateAgent(_)
            | Command::StartAgent { .. }
            | Command::RestartAgent { .. }
            | Command::UpdateAgent(_)
            | Command::Reloaded { .. }
            | Command::SendTurn(_)
            | Command::InterruptTurn { .. }
            | Command::SettleLineage(_)
            | Command::ChangeSession(_)
            | Command::IssueToken(_)
            | Command::AddImage(_)
            | Command::AddImageBesides(_)
            | Command::TagImage { .. }
            | Command::RemoveImage(_)
            | Command::RevokeToken { .. }
            | Command::SubmitJob(_)
            | Command::CancelJob { .. }
            | Command::ReleaseWork { .. }
            | Command::Keep { .. } => {
                batch.after.push(Out::Reply { ticket: caller.ticket, reply: Ok(answer) });
            }
        }
    }

    fn observe(&mut self, batch: &mut Batch, seen: Seen, now: Timestamp) {
        match seen {
            Seen::RuntimeReady { agent, run, adopted, running } => {
                self.runtime_ready(batch, &agent, run, adopted, &running, now);
            }
            Seen::SpawnFailed { agent, run, detail } => {
                self.agent_not_started(batch, &agent, run, detail, now);
            }
            Seen::Lacks { agent, run, lack, detail } => {
                self.agent_lacks(batch, &agent, run, lack, detail, now);
            }
            Seen::Pulled { agent, ask, rows, tools, runtime } => {
                self.pulled(batch, &agent, ask, Brought { rows, tools, runtime }, now);
            }
            Seen::PullFailed { agent, ask, detail, again } => {
                self.pull_failed(batch, &agent, ask, detail, again, now);
            }
            Seen::RetryDue { agent, run } => self.retry_due(batch, &agent, run, now),
            Seen::Configured(settings) => self.configured(batch, settings, now),
            Seen::ProvidersChanged => self.providers_changed(batch, now),
            Seen::ProbeTimedOut { agent, run } => {
                let detail = "the runtime did not answer its readiness probe in time".to_owned();
                self.agent_failed(batch, &agent, run, AgentEvent::ProbeTimedOut, detail, now);
            }
            Seen::Exited { agent, run, code, detail } => {
                self.agent_exited(batch, &agent, run, code, detail, now);
            }
            Seen::Died { agent, run, part, detail } => {
                self.agent_died(batch, &agent, run, part, detail, now);
            }
            Seen::OutOfMemory { agent, run, detail } => {
                self.agent_out_of_memory(batch, &agent, run, detail, now);
            }
            Seen::Silent { agent, run, level, part } => {
                self.agent_silent(batch, &agent, run, level, part, now);
            }
            Seen::RevivalDue { agent, run } => self.revival_due(batch, &agent, run, now),
            // A runtime has a say about turns of its own agent alone.
            Seen::TurnRefused { agent, turn, .. } if !self.is_live(&agent, &turn) => {}
            Seen::TurnRefused { turn, why, .. } => {
                self.fail_turn(batch, &turn, failure("runtime.refused", &why), now);
            }
            Seen::NotDown { agent, run, detail } => self.agent_not_down(batch, &agent, run, detail, now),
            Seen::Down { agent, run } => self.agent_down(batch, &agent, run, now),
            Seen::Cleared { agent } => self.agent_cleared(batch, &agent, now),
            Seen::NotCleared { agent, detail } => self.agent_not_cleared(batch, &agent, &detail),
            Seen::Asked { agent, id, ask } => self.asked(batch, &agent, id, ask, now),
            Seen::ExecsFound { agent, running, ended } => self.execs_found(batch, &agent, running, ended),
            Seen::ExecEnded { exec, end } => self.exec_ended(batch, &exec, end, now),
            Seen::ModelText { turn, step, attempt, offset, text } => {
                self.model_text(batch, &turn, (step, attempt), offset, text, now);
            }
            Seen::ModelAnswered { turn, step, attempt, answer } => {
                self.model_answered(batch, &turn, (step, attempt), answer, now);
            }
            Seen::ModelFailed { turn, step, attempt, failure } => {
                self.model_failed(batch, &turn, (step, attempt), failure, now);
            }
            Seen::Job(seen) => self.job_seen(batch, seen, now),
            Seen::Settled { requests, rest } => self.settled(requests, rest),
        }
    }

    /// Routes what a runtime asks, when the turn is still its business.
    fn asked(&mut self, batch: &mut Batch, agent: &AgentId, id: Value, ask: Ask, now: Timestamp) {
        if !self.is_live(agent, ask.turn()) {
            let gone = failure("turn.gone", "that turn is over");
            batch.act(Effect::Answer { agent: agent.clone(), id, answer: Err(gone) });
            batch.urgent = true;
            return;
        }
        match ask {
            Ask::Model { turn, step, context, from_turn } => {
                self.ask_model(batch, &turn, step, state::Wish { id, context, from_turn }, now);
            }
            Ask::Exec { turn, step, call, bin, args, stdin, timeout_ms } => {
                let wanted = execs::Wanted { turn, step, call, bin, args, stdin, timeout_ms };
                self.ask_exec(batch, id, &wanted, now);
            }
            Ask::Compact { turn, from_turn, strategy } => {
                self.ask_compact(batch, id, &compact::Wanted { turn, from_turn, strategy }, now);
            }
            Ask::Answer { turn, step, call, text, error } => {
                self.tool_answered(batch, id, &turn, step, &call, text, error, now);
            }
            Ask::Job { turn, step, call, wish } => {
                self.ask_job(batch, id, &jobs::Asked { turn, step, call }, wish, now);
            }
            Ask::Finish { turn, code, message } => {
                self.fail_turn(batch, &turn, failure(&code, &message), now);
                batch.act(Effect::Answer {
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
    fn event(&mut self, batch: &mut Batch, stream: &str, kind: EventKind, data: EventData, now: Timestamp) {
        self.seq += 1;
        let head = match self.streams.get_mut(stream) {
            Some(head) => head,
            None => self.streams.entry(stream.to_owned()).or_insert(0),
        };
        *head += 1;
        let (seq, stream_seq) = (self.seq, *head);
        let row = EventRow { seq, stream: stream.to_owned(), stream_seq, at: now, kind, data };
        batch.writes.push(Write::Event(row));
    }

    /// Answers a caller once the batch is on disk, and keeps the answer with its `request_id`.
    fn reply(&mut self, batch: &mut Batch, caller: Caller, answer: Value, now: Timestamp) {
        batch.urgent = true;
        if let Some(key) = caller.request {
            self.record_answer(batch, key, &answer, now);
        }
        batch.after.push(Out::Reply { ticket: caller.ticket, reply: Ok(answer) });
    }

    /// Records what a request is answered, now or later, and counts it as the writer does.
    fn record_answer(&mut self, batch: &mut Batch, key: RequestKey, answer: &Value, now: Timestamp) {
        let text = answer.to_string();
        self.requests += 1;
        batch.write(Write::Request(RequestRow {
            caller: key.caller.clone(),
            request_id: key.request_id.clone(),
            digest: key.digest,
            answer: text.clone().into_bytes(),
            at: now,
        }));
        self.remember(key, text.into_boxed_str());
    }

    /// Keeps a request in memory, for resends that arrive before its commit is readable.
    fn remember(&mut self, key: RequestKey, answer: Box<str>) {
        let name = Arc::new((key.caller, key.request_id));
        if self.recent.insert(name.clone(), Recent { digest: key.digest, answer }).is_none() {
            self.recent_order.push_back((self.requests, name));
        }
        self.forget_requests(RECENT_REQUESTS_MAX);
    }

    /// Forgets the oldest answers until so many are left. What may not be on disk is kept, however many they are.
    fn forget_requests(&mut self, keep: usize) {
        while self.recent_order.len() > keep
            && let Some((_, name)) = self.recent_order.pop_front_if(|(number, _)| *number <= self.settled)
        {
            self.recent.remove(&name);
        }
    }

    /// So many requests are on disk; at rest they have been for a while, and their answers need not be here too.
    fn settled(&mut self, requests: u64, rest: bool) {
        self.settled = requests;
        if !rest {
            return;
        }
        self.forget_requests(0);
        self.recent.shrink_to_fit();
        self.recent_order.shrink_to_fit();
        self.turns.shrink_to_fit();
        self.execs.shrink_to_fit();
    }
}

/// The refusal of a `request_id` that came with other parameters before.
pub(crate) fn reused(request_id: &str) -> Refusal {
    Box::new(
        ErrorBody::new(
            "request.reused",
            format!("the request_id `{request_id}` was used with other parameters"),
        )
        .hint("choose a new request_id for a new request"),
    )
}

pub(crate) fn failure(code: &str, message: &str) -> lodge_core::record::FailureRecord {
    lodge_core::record::FailureRecord { code: code.to_owned(), message: message.to_owned(), hint: None }
}

//! Requests since the daemon started, so that a repeated request is decided once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use lodge_core::AgentId;
use lodge_core::limits::RECENT_REQUESTS_MAX;
use lodge_core::record::{RequestRow, Write};

use crate::{
    AgentCommand, Answer, Caller, Command, Engine, Refusal, RenderedAnswer, RequestKey, RequestName,
};

/// Answers that may not be readable in the store yet, and some more.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    recent: HashMap<Arc<RequestName>, RecentRequest>,
    /// With the number of the request, counted from the start of the daemon.
    order: VecDeque<(u64, Arc<RequestName>)>,
    recorded: u64,
    /// How many of them are known to be on disk.
    settled: u64,
}

#[derive(Debug)]
struct RecentRequest {
    digest: [u8; 32],
    /// As text: thousands are kept, and a parsed answer is many times as large.
    answer: RenderedAnswer,
}

impl Requests {
    /// The answer to a request that was decided before, or the refusal of one with other parameters.
    pub(crate) fn known(&self, key: &RequestKey) -> Option<Result<RenderedAnswer, Refusal>> {
        let known = self.recent.get(&(key.caller.clone(), key.request_id.clone()))?;
        if known.digest != key.digest {
            return Some(Err(Refusal::RequestReused { request_id: key.request_id.clone() }));
        }
        Some(Ok(known.answer.clone()))
    }

    fn remember(&mut self, key: RequestKey, answer: RenderedAnswer) {
        let name = Arc::new((key.caller, key.request_id));
        if self.recent.insert(name.clone(), RecentRequest { digest: key.digest, answer }).is_none() {
            self.order.push_back((self.recorded, name));
        }
        self.forget(RECENT_REQUESTS_MAX);
    }

    /// Forgets the oldest answers until `keep` are left. Answers that may not be on disk are kept.
    fn forget(&mut self, keep: usize) {
        while self.order.len() > keep
            && let Some((_, name)) = self.order.pop_front_if(|(number, _)| *number <= self.settled)
        {
            self.recent.remove(&name);
        }
    }

    /// Forgets requests whose answers were never recorded.
    pub(crate) fn forget_unrecorded(&mut self, unrecorded: &HashSet<RequestName>) {
        self.recent.retain(|name, _| !unrecorded.contains(&**name));
        self.order.retain(|(_, name)| self.recent.contains_key(name));
    }

    pub(crate) fn len(&self) -> usize {
        self.recent.len().max(self.order.len())
    }

    /// This many requests are on disk. At rest, their answers leave memory.
    pub(crate) fn settle(&mut self, requests: u64, rest: bool) {
        self.settled = requests;
        if rest {
            self.forget(0);
            self.recent.shrink_to_fit();
            self.order.shrink_to_fit();
        }
    }
}

impl Engine {
    /// Answers a repeated request with its first answer.
    pub(crate) fn resend(&mut self, caller: Caller, command: &Command, answer: RenderedAnswer) {
        match ends_agent(command) {
            Some(agent) => self.answer_again(caller, agent, answer),
            None => self.step.answer(caller.ticket, Answer::Rendered(answer)),
        }
    }

    /// Answers a caller once the step is on disk, and keeps the answer with its `request_id`.
    pub(crate) fn reply(&mut self, caller: Caller, answer: impl Into<Answer>) {
        let answer = answer.into();
        self.step.mark_urgent();
        if let Some(key) = caller.request {
            self.record_answer(key, &answer);
        }
        self.step.answer(caller.ticket, answer);
    }

    /// Records the answer to a request, now or later, and counts it as the writer does.
    pub(crate) fn record_answer(&mut self, key: RequestKey, answer: &Answer) {
        let rendered = match answer {
            Answer::Rendered(rendered) => rendered.clone(),
            answer => (self.host.render)(answer),
        };
        self.requests.recorded += 1;
        self.step.write(Write::Request(RequestRow {
            caller: key.caller.clone(),
            request_id: key.request_id.clone(),
            digest: key.digest,
            answer: rendered.0.as_bytes().to_vec(),
            at: self.step.now,
        }));
        // For resends that arrive before its commit is readable.
        self.requests.remember(key, rendered);
    }

    /// The writer reports how many requests are on disk.
    pub(crate) fn settled(&mut self, requests: u64, rest: bool) {
        self.requests.settle(requests, rest);
        if rest {
            self.turns.shrink_to_fit();
            self.execs.shrink_to_fit();
            self.names.shrink_to_fit();
        }
    }
}

/// A request whose answer waits for the end of an agent, and that agent, if the command names it.
fn ends_agent(command: &Command) -> Option<Option<&AgentId>> {
    match command {
        Command::Agent(
            AgentCommand::Stop { id, .. } | AgentCommand::Kill { id } | AgentCommand::Remove { id, .. },
        ) => Some(Some(id)),
        Command::Again { agent, .. } => Some(agent.as_ref()),
        Command::Agent(_)
        | Command::Turn(_)
        | Command::Session(_)
        | Command::Token(_)
        | Command::Job(_)
        | Command::Sandbox(_)
        | Command::Image(_)
        | Command::Work(_)
        | Command::Reloaded { .. }
        | Command::Keep { .. } => None,
    }
}

//! Messages to the agents: sent, sent again, acknowledged, and waited for.

use std::collections::BTreeSet;
use std::time::Instant;

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{Event, EventBody, GetTurn, SendTurn, TurnRef, TurnSendParams, TurnView, error_code};
use serde_json::Value;

use super::plan::{TurnPlan, TurnShape};
use super::report::BrokenPromise;
use super::world::{CrashWorld, LOOK};
use crate::trouble::{Trouble, refused};
use tokio::task::JoinSet;

/// Conversations with each agent.
const SESSIONS: u64 = 2;

/// How a message names its conversation.
#[derive(Debug, Clone)]
pub enum ConversationRef {
    Session(String),
    Sender(String),
    Fresh,
}

/// One message, from the first attempt to send it.
#[derive(Debug)]
pub struct SentMessage {
    pub plan: TurnPlan,
    pub agent: usize,
    pub talk: ConversationRef,
    /// Known once a send was answered, except where the sender chose it.
    pub session: Option<String>,
    pub request_id: String,
    /// The turn's id, once a send was answered.
    pub turn: Option<String>,
}

impl CrashWorld {
    /// Plans a message for some agent and session, and starts to send it.
    pub fn send_new(&mut self) {
        let shape = *self.rng.pick(TurnShape::usual(self.setup.model));
        self.send_shape(shape);
    }

    pub fn send_shape(&mut self, shape: TurnShape) {
        let agent = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        self.send_to(agent, shape);
    }

    pub fn send_to(&mut self, agent: usize, shape: TurnShape) {
        let (which, number) = (self.rng.below(8), self.rng.below(SESSIONS));
        let talk = match which {
            0 => ConversationRef::Fresh,
            1 | 2 => ConversationRef::Sender(format!("peer {number}")),
            _ => ConversationRef::Session(format!("talk-{agent}-{number}")),
        };
        self.send_in(agent, shape, talk);
    }

    pub fn send_in(&mut self, agent: usize, shape: TurnShape, talk: ConversationRef) {
        let token = format!("T{}x{:06x}", self.sent.len(), self.rng.next() & 0xff_ffff);
        let lines = self.lines();
        let plan = TurnPlan::new(self.setup.model, shape, &token, &lines, &mut self.rng);
        let request_id = format!("send-{token}");
        self.sent.push(SentMessage { plan, agent, talk, session: None, request_id, turn: None });
        self.send(self.sent.len() - 1);
    }

    /// Sends again what was never answered and, now and then, what was.
    pub fn send_again(&mut self) {
        for at in 0..self.sent.len() {
            if self.sent[at].turn.is_none() || self.rng.percent(3) {
                self.report.resent += 1;
                self.send(at);
            }
        }
        self.submit_again();
    }

    fn send(&mut self, at: usize) {
        let sent = &self.sent[at];
        let (session, sender) = match sent.talk.clone() {
            ConversationRef::Session(session) => (Some(session), None),
            ConversationRef::Sender(sender) => (None, Some(sender)),
            ConversationRef::Fresh => (None, None),
        };
        let params = TurnSendParams {
            schema: None,
            agent: self.agents[sent.agent].id.clone(),
            session,
            sender,
            text: sent.plan.text.clone(),
            request_id: Some(sent.request_id.clone()),
        };
        let (target, token) = (self.lodge.target(), self.lodge.bearer());
        self.sending.spawn(async move {
            let answer = async { Client::connect(&target, &token).await?.call::<SendTurn>(&params).await };
            (at, answer.await)
        });
    }

    /// Waits until every open send was answered, or lost its connection.
    pub async fn gather(&mut self) {
        while let Some(joined) = self.sending.join_next().await {
            match joined {
                Ok((at, Ok(view))) => self.acknowledged(at, view),
                Ok((_, Err(error))) if is_absence(&error) => {}
                Ok((at, Err(error))) => {
                    let what = format!("message {} was refused: {error:?}", self.sent[at].plan.token);
                    self.report.add(BrokenPromise::Wrong, what);
                }
                Err(error) => {
                    self.report.add(BrokenPromise::Wrong, format!("a send was interrupted: {error}"))
                }
            }
        }
        self.gather_jobs().await;
    }

    fn acknowledged(&mut self, at: usize, view: TurnView) {
        let sent = &mut self.sent[at];
        match &sent.turn {
            None => {
                self.report.acknowledged += 1;
                self.setup.progress.add_acknowledged();
                (sent.turn, sent.session) = (Some(view.id), Some(view.session));
            }
            Some(known) if *known == view.id => {}
            Some(known) => {
                let what = format!("message {} is turn {known} and {}", sent.plan.token, view.id);
                self.report.add(BrokenPromise::Duplicated, what);
            }
        }
    }

    /// Acknowledged turns of which no end was seen.
    pub fn open_turns(&self) -> usize {
        let ended: BTreeSet<String> =
            self.follower.with(|events| events.iter().filter_map(ended_turn).collect());
        self.sent.iter().filter_map(|sent| sent.turn.as_ref()).filter(|turn| !ended.contains(*turn)).count()
    }

    /// Sends until everything was answered, and waits for the end of every turn.
    pub async fn settle(&mut self) -> Result<(), Trouble> {
        let until = Instant::now() + self.setup.patience;
        self.gather().await;
        let broken = self.report.broken.len();
        while (self.sent.iter().any(|sent| sent.turn.is_none())
            || self.jobs.iter().any(|job| job.id.is_none()))
            && self.report.broken.len() == broken
            && Instant::now() < until
        {
            for at in 0..self.sent.len() {
                if self.sent[at].turn.is_none() {
                    self.report.resent += 1;
                    self.send(at);
                }
            }
            self.submit_unanswered();
            self.gather().await;
        }
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        for sent in &self.sent {
            let Some(turn) = &sent.turn else { continue };
            loop {
                let view = client.call::<GetTurn>(&TurnRef { turn: turn.clone() }).await;
                // The check finds missing turns.
                let Ok(view) = view else { break };
                if !matches!(view.status.as_str(), "queued" | "running" | "waiting") {
                    break;
                }
                if Instant::now() >= until {
                    let what = format!("turn {turn} ({}) does not end: {view:?}", sent.plan.token);
                    self.report.add(BrokenPromise::Wrong, what);
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
        self.settle_jobs().await
    }
}

fn ended_turn(event: &Event) -> Option<String> {
    match event.body()? {
        EventBody::TurnFinished(turn) => Some(turn.turn),
        EventBody::TurnFailed(turn) => Some(turn.turn),
        EventBody::TurnInterrupted(turn) => Some(turn.turn),
        _ => None,
    }
}

/// The answer of the one task. One that broke off counts as a lost connection.
pub async fn answer_of(mut asking: JoinSet<Result<Value, ClientError>>) -> Result<Value, ClientError> {
    match asking.join_next().await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => Err(ClientError::Lost),
    }
}

/// Whether an answer is missing because the daemon died, is not there yet, or is about to go.
pub fn is_absence(error: &ClientError) -> bool {
    match error {
        ClientError::Lost | ClientError::NoDaemon { .. } | ClientError::Handshake { .. } => true,
        ClientError::Refused(_) => error.is(error_code!("daemon.shutting_down")),
        ClientError::Unverified { .. } | ClientError::Garbled { .. } => false,
    }
}

//! A daemon with agents at work, everything outside Lodge that counts what they do, and the power switch.

use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{
    AgentCreateParams, AgentDetail, AgentRef, AgentView, ProviderAddParams, TurnSendParams, TurnView,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::effects::EffectCounter;
use super::follow::Follower;
use super::plan::{self, Model, Shape, TurnPlan};
use super::process::{self, Keeper};
use super::report::{Broken, Report};
use super::rng::Rng;
use crate::lodge::{Lodge, PATIENCE};
use crate::mock::MockLlm;

/// Conversations with each agent.
const SESSIONS: u64 = 2;
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(4);

/// How a message names its conversation.
#[derive(Debug, Clone)]
pub enum Talk {
    Session(String),
    Sender(String),
    Fresh,
}

/// One message, from the first attempt to send it.
#[derive(Debug)]
pub struct Sent {
    pub plan: TurnPlan,
    pub agent: usize,
    pub talk: Talk,
    /// Known once a send was answered, except where the sender chose it.
    pub session: Option<String>,
    pub request_id: String,
    /// The turn's id, once a send was answered.
    pub turn: Option<String>,
}

#[derive(Debug)]
pub struct Agent {
    pub id: String,
    pub keeper: Keeper,
}

#[derive(Debug)]
pub struct World {
    pub lodge: Lodge,
    pub model: Model,
    pub mock: Option<MockLlm>,
    pub effects: EffectCounter,
    pub follower: Follower,
    pub agents: Vec<Agent>,
    pub sent: Vec<Sent>,
    pub rng: Rng,
    pub report: Report,
    /// How long a turn may take before it counts as stuck.
    pub patience: Duration,
    /// What creates an agent whose start was cut short.
    pub extra: Option<AgentCreateParams>,
    /// Effects that were checked already, and are of no message in `sent`.
    pub unasked: Vec<String>,
    sending: JoinSet<(usize, Result<TurnView, ClientError>)>,
    made: u64,
}

impl World {
    /// Starts everything. `env` is for every daemon of this world.
    pub async fn start(model: Model, seed: u64, agents: usize, env: &[(&str, &str)]) -> World {
        let mut lodge = Lodge::new();
        for (key, value) in env {
            lodge.set_env(key, value);
        }
        let effects = EffectCounter::spawn(lodge.dir()).expect("effect-counter runs");
        let mock = match model {
            Model::Script => None,
            Model::OpenAi => {
                Some(MockLlm::spawn_with(lodge.dir(), &["--threads", "1"]).expect("mock-llm runs"))
            }
        };
        lodge.start();
        let follower = Follower::start(lodge.target(), lodge.token());
        let mut world = World {
            lodge,
            model,
            mock,
            effects,
            follower,
            agents: Vec::new(),
            sent: Vec::new(),
            rng: Rng::new(seed),
            report: Report::default(),
            patience: PATIENCE,
            extra: None,
            unasked: Vec::new(),
            sending: JoinSet::new(),
            made: 0,
        };
        world.add_provider().await;
        for _ in 0..agents {
            let params = world.agent_params();
            let view = world.create_agent(&params).await.expect("an agent can be created");
            let agent = world.wait_ready(&view.id).await;
            world.agents.push(agent);
        }
        world
    }

    async fn add_provider(&self) {
        let Some(mock) = &self.mock else { return };
        let params = ProviderAddParams {
            name: "mock".into(),
            kind: "openai".into(),
            base_url: Some(mock.base_url()),
            api_key: Some("not-a-key".into()),
            models: vec!["m".into()],
            ..ProviderAddParams::default()
        };
        let added: Result<Value, ClientError> = self.lodge.client().await.call("provider/add", params).await;
        added.expect("a provider can be added");
    }

    /// What creates one more agent; the same parameters twice are one agent.
    pub fn agent_params(&mut self) -> AgentCreateParams {
        self.made += 1;
        let name = format!("crash-{}", self.made);
        let model = match self.model {
            Model::Script => "script/crash",
            Model::OpenAi => "mock/m",
        };
        let agentfile = format!(
            "FROM scratch\nMODEL {model}\nBIN bash host:bash \"run a line\"\nBIN sleep host:sleep \"wait\"\n\
             ADD crash.yaml \"what the scripted model says\"\n"
        );
        let script = plan::script(&self.effects.tool_line()).to_string();
        let dir = self.lodge.agent_dir(&name, &agentfile, &[("crash.yaml", &script)]);
        AgentCreateParams {
            path: Some(dir.to_string_lossy().into_owned()),
            name: Some(name.clone()),
            request_id: Some(format!("create-{name}")),
            ..AgentCreateParams::default()
        }
    }

    pub async fn create_agent(&self, params: &AgentCreateParams) -> Result<AgentView, ClientError> {
        self.lodge.try_client().await?.call("agent/create", params).await
    }

    /// Waits until an agent is ready and its keeper is connected.
    pub async fn wait_ready(&self, id: &str) -> Agent {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = self.agent(id).await;
            if let Ok(AgentDetail { agent: view, .. }) = &seen
                && let ("ready" | "working", Some(pid)) = (view.status.as_str(), view.pid)
                && let Some(keeper) = process::keeper(&self.lodge.home(), &view.sandbox)
            {
                assert_eq!(
                    u32::try_from(keeper.pid),
                    Ok(pid),
                    "what the keeper noted is what the daemon shows"
                );
                return Agent { id: id.to_owned(), keeper };
            }
            assert!(Instant::now() < until, "{id} is not ready: {seen:?}\n{}", self.lodge.log());
            tokio::time::sleep(LOOK).await;
        }
    }

    pub async fn agent(&self, id: &str) -> Result<AgentDetail, ClientError> {
        let params = AgentRef { agent: id.to_owned(), request_id: None };
        self.lodge.try_client().await?.call("agent/get", params).await
    }

    /// Plans a message for some agent and session, and starts to send it.
    pub fn send_new(&mut self) {
        let shape = *self.rng.pick(&Shape::USUAL);
        self.send_shape(shape);
    }

    pub fn send_shape(&mut self, shape: Shape) {
        let agent = usize::try_from(self.rng.below(self.agents.len() as u64)).unwrap_or(0);
        let (which, number) = (self.rng.below(8), self.rng.below(SESSIONS));
        let talk = match which {
            0 => Talk::Fresh,
            1 | 2 => Talk::Sender(format!("peer {number}")),
            _ => Talk::Session(format!("talk-{agent}-{number}")),
        };
        let token = format!("T{}x{:06x}", self.sent.len(), self.rng.next() & 0xff_ffff);
        let line = self.effects.tool_line();
        let plan = TurnPlan::new(self.model, shape, &token, &line, &mut self.rng);
        let request_id = format!("send-{token}");
        self.sent.push(Sent { plan, agent, talk, session: None, request_id, turn: None });
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
    }

    fn send(&mut self, at: usize) {
        let sent = &self.sent[at];
        let (session, sender) = match sent.talk.clone() {
            Talk::Session(session) => (Some(session), None),
            Talk::Sender(sender) => (None, Some(sender)),
            Talk::Fresh => (None, None),
        };
        let params = TurnSendParams {
            agent: self.agents[sent.agent].id.clone(),
            session,
            sender,
            text: sent.plan.text.clone(),
            request_id: Some(sent.request_id.clone()),
        };
        let (target, token) = (self.lodge.target(), self.lodge.token());
        self.sending.spawn(async move {
            let answer = async { Client::connect(&target, &token).await?.call("turn/send", params).await };
            (at, answer.await)
        });
    }

    /// Waits until every send under way was answered, or lost its connection.
    pub async fn gather(&mut self) {
        while let Some(joined) = self.sending.join_next().await {
            let (at, answer) = joined.expect("a send does not panic");
            match answer {
                Ok(view) => self.acknowledged(at, view),
                Err(ClientError::Lost | ClientError::NoDaemon { .. } | ClientError::Handshake { .. }) => {}
                Err(error) => {
                    let what = format!("message {} was refused: {error:?}", self.sent[at].plan.token);
                    self.report.add(Broken::Wrong, what);
                }
            }
        }
    }

    fn acknowledged(&mut self, at: usize, view: TurnView) {
        let sent = &mut self.sent[at];
        match &sent.turn {
            None => {
                self.report.acknowledged += 1;
                (sent.turn, sent.session) = (Some(view.id), Some(view.session));
            }
            Some(known) if *known == view.id => {}
            Some(known) => {
                let what = format!("message {} is turn {known} and {}", sent.plan.token, view.id);
                self.report.add(Broken::Duplicated, what);
            }
        }
    }

    /// Acknowledged turns of which no end was seen.
    pub fn open_turns(&self) -> usize {
        let ended: Vec<String> = self
            .follower
            .events()
            .iter()
            .filter(|event| {
                matches!(event.kind.as_str(), "turn.finished" | "turn.failed" | "turn.interrupted")
            })
            .filter_map(|event| Some(event.data.get("turn")?.as_str()?.to_owned()))
            .collect();
        self.sent.iter().filter_map(|sent| sent.turn.as_ref()).filter(|turn| !ended.contains(turn)).count()
    }

    pub fn kill(&mut self, aim: &str) {
        self.lodge.kill9();
        self.report.kills += 1;
        let open = self.open_turns() as u64;
        self.report.cut_turns += open;
        self.report.busy_kills += u64::from(open > 0);
        *self.report.aims.entry(aim.to_owned()).or_default() += 1;
    }

    /// After a restart: every agent has the keeper it had before.
    pub async fn check_adoption(&mut self) {
        for at in 0..self.agents.len() {
            let (id, before) = (self.agents[at].id.clone(), self.agents[at].keeper);
            let now = self.wait_ready(&id).await.keeper;
            self.report.adoptions += 1;
            if now != before {
                let what = format!("{id} had the keeper {before:?} and has {now:?}");
                self.report.add(Broken::Keeper, what);
                self.agents[at].keeper = now;
            }
        }
    }

    /// Sends until everything was answered, and waits for the end of every turn.
    pub async fn settle(&mut self) {
        let until = Instant::now() + self.patience;
        self.gather().await;
        let refused = self.report.broken.len();
        while self.sent.iter().any(|sent| sent.turn.is_none())
            && self.report.broken.len() == refused
            && Instant::now() < until
        {
            for at in 0..self.sent.len() {
                if self.sent[at].turn.is_none() {
                    self.report.resent += 1;
                    self.send(at);
                }
            }
            self.gather().await;
        }
        let mut client = self.lodge.client().await;
        for sent in &self.sent {
            let Some(turn) = &sent.turn else { continue };
            loop {
                let view: Result<TurnView, ClientError> =
                    client.call("turn/get", json!({"turn": turn})).await;
                // What is not there any more is found by the check.
                let Ok(view) = view else { break };
                if !matches!(view.status.as_str(), "queued" | "running" | "waiting") {
                    break;
                }
                if Instant::now() >= until {
                    let what = format!("turn {turn} ({}) does not end: {view:?}", sent.plan.token);
                    self.report.add(Broken::Wrong, what);
                    break;
                }
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

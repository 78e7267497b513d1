//! Agents that are created, stopped, started and removed while the daemon dies: each change happens once.

use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError};
use lodge_proto::{AgentCreateParams, AgentView};
use serde_json::{Value, json};

use super::plan::Model;
use super::report::{Broken, Report};
use super::world::World;
use crate::lodge::PATIENCE;

const AGENTS: usize = 1;
/// Starts and stops take about as long.
const CHANGE_US: u64 = 150_000;

/// Where the agent of the moment stands.
#[derive(Debug)]
enum Life {
    None,
    Live { id: String },
    Stopped { id: String },
}

/// Changes one agent after the other, with a kill during each change.
pub async fn agents_lives(model: Model, seed: u64, kills: u64) -> Report {
    let mut world = World::start(model, seed, AGENTS, &[]).await;
    let mut life = Life::None;
    while world.report.kills < kills && world.report.is_clean() {
        life = world.one_change(life).await;
    }
    if let Life::Live { id } | Life::Stopped { id } = life {
        world.remove_agent(&id).await;
    }
    world.finish().await
}

impl World {
    /// Makes one change, however often it takes, and checks what came of it.
    async fn one_change(&mut self, life: Life) -> Life {
        if self.open_turns() < 3 {
            self.send_new();
        }
        let request_id = format!("change-{}-{}", self.report.kills, self.rng.next());
        let next = match &life {
            Life::None => return self.create_through_kills().await,
            Life::Live { .. } if self.rng.percent(60) => "agent/stop",
            Life::Stopped { .. } if self.rng.percent(60) => "agent/start",
            Life::Live { .. } | Life::Stopped { .. } => "agent/remove",
        };
        let (Life::Live { id } | Life::Stopped { id }) = life else { return Life::None };
        let mut params = json!({"agent": id, "request_id": request_id});
        if next == "agent/remove" {
            params["force"] = true.into();
        }
        let answer = self.change(next, &params).await;
        match (next, answer) {
            ("agent/stop", Ok(_)) => {
                self.expect_keepers(AGENTS).await;
                self.expect_status(&id, "stopped").await;
                Life::Stopped { id }
            }
            ("agent/start", Ok(_)) => {
                self.wait_ready(&id).await;
                self.expect_keepers(AGENTS + 1).await;
                Life::Live { id }
            }
            ("agent/remove", Ok(_)) => {
                self.expect_keepers(AGENTS).await;
                self.expect_cleared(&id).await;
                Life::None
            }
            (_, answer) => {
                self.report
                    .add(Broken::Wrong, format!("{next} {id}, asked until it was answered: {answer:?}"));
                Life::None
            }
        }
    }

    async fn create_through_kills(&mut self) -> Life {
        let params: AgentCreateParams = self.agent_params();
        let params = serde_json::to_value(params).expect("parameters are JSON");
        let created = self.change("agent/create", &params).await;
        match created.and_then(|view| {
            serde_json::from_value::<AgentView>(view).map_err(|cause| ClientError::Garbled { cause })
        }) {
            Ok(view) => {
                self.wait_ready(&view.id).await;
                self.expect_keepers(AGENTS + 1).await;
                Life::Live { id: view.id }
            }
            Err(error) => {
                self.report.add(Broken::Wrong, format!("create, asked until it was answered: {error:?}"));
                Life::None
            }
        }
    }

    /// Asks for a change, kills the daemon at some moment of it, and asks again until it was answered.
    async fn change(&mut self, method: &'static str, params: &Value) -> Result<Value, ClientError> {
        let asking = self.ask(method, params);
        self.moment(CHANGE_US).await;
        self.kill(&format!("during {method}"));
        let mut answer = asking.await.expect("a call does not panic");
        self.gather().await;
        while self.rng.percent(30) {
            self.lodge.spawn();
            self.moment(CHANGE_US).await;
            self.kill("while booting");
        }
        self.lodge.start();
        self.send_again();
        self.gather().await;
        let until = Instant::now() + PATIENCE;
        while matches!(
            answer,
            Err(ClientError::Lost | ClientError::NoDaemon { .. } | ClientError::Handshake { .. })
        ) && Instant::now() < until
        {
            answer = self.ask(method, params).await.expect("a call does not panic");
        }
        self.check_adoption().await;
        answer
    }

    fn ask(
        &self,
        method: &'static str,
        params: &Value,
    ) -> tokio::task::JoinHandle<Result<Value, ClientError>> {
        let (target, token, params) = (self.lodge.target(), self.lodge.token(), params.clone());
        tokio::spawn(async move { Client::connect(&target, &token).await?.call_value(method, params).await })
    }

    async fn expect_status(&mut self, id: &str, wanted: &str) {
        match self.agent(id).await {
            Ok(detail) if detail.agent.status == wanted => {}
            other => self.report.add(Broken::Wrong, format!("{id} should be {wanted} and is {other:?}")),
        }
    }

    /// A removal goes on after its daemon died: its files are gone in the end.
    async fn expect_cleared(&mut self, id: &str) {
        let dir = self.lodge.home().join("agents").join(id);
        let until = Instant::now() + PATIENCE;
        while dir.exists() {
            if Instant::now() >= until {
                let what = format!("{id} was removed, and its directory is there");
                return self.report.add(Broken::LeftBehind, what);
            }
            tokio::time::sleep(Duration::from_millis(4)).await;
        }
    }

    async fn moment(&mut self, below_us: u64) {
        tokio::time::sleep(Duration::from_micros(self.rng.below(below_us))).await;
    }
}

//! Agents that are created, stopped, started and removed while the daemon dies: each change happens once.

use std::time::Instant;

use lodge_proto::client::ClientError;
use lodge_proto::{AgentCreateParams, AgentView};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::CrashSetup;
use super::report::{BrokenPromise, CrashReport};
use super::talk::answer_of;
use super::world::{CrashWorld, LOOK, through};
use crate::lodge::PATIENCE;
use crate::trouble::Trouble;

const AGENTS: usize = 1;
/// Starts and stops take about as long.
const CHANGE_US: u64 = 150_000;

/// The state of the current agent.
#[derive(Debug)]
enum AgentLife {
    None,
    Live { id: String },
    Stopped { id: String },
}

/// Changes one agent after the other, with a kill during each change.
pub async fn agents_lives(setup: &CrashSetup, kills: u64) -> CrashReport {
    through(setup, AGENTS, async |world| {
        let mut life = AgentLife::None;
        while world.report.kills < kills && world.report.is_clean() {
            life = world.one_change(life).await?;
        }
        if let AgentLife::Live { id } | AgentLife::Stopped { id } = life {
            world.remove_agent(&id).await?;
        }
        Ok(())
    })
    .await
    .unwrap_or_else(CrashReport::from)
}

impl CrashWorld {
    /// Makes one change, with retries, and checks its result.
    async fn one_change(&mut self, life: AgentLife) -> Result<AgentLife, Trouble> {
        if self.open_turns() < 3 {
            self.send_new();
        }
        let request_id = format!("change-{}-{}", self.report.kills, self.rng.next());
        let (id, next) = match life {
            AgentLife::None => return self.create_through_kills().await,
            AgentLife::Live { id } if self.rng.percent(60) => (id, "agent/stop"),
            AgentLife::Stopped { id } if self.rng.percent(60) => (id, "agent/start"),
            AgentLife::Live { id } | AgentLife::Stopped { id } => (id, "agent/remove"),
        };
        let mut params = json!({"agent": id, "request_id": request_id});
        if next == "agent/remove" {
            params["force"] = true.into();
        }
        match (next, self.change(next, &params).await?) {
            ("agent/stop", Ok(_)) => {
                self.expect_keepers(AGENTS).await;
                self.expect_status(&id, "stopped").await;
                Ok(AgentLife::Stopped { id })
            }
            ("agent/start", Ok(_)) => {
                self.wait_ready(&id).await?;
                self.expect_keepers(AGENTS + 1).await;
                Ok(AgentLife::Live { id })
            }
            ("agent/remove", Ok(_)) => {
                self.expect_keepers(AGENTS).await;
                self.expect_cleared(&id).await;
                Ok(AgentLife::None)
            }
            (_, answer) => {
                self.report.add(
                    BrokenPromise::Wrong,
                    format!("{next} {id}, asked until it was answered: {answer:?}"),
                );
                Ok(AgentLife::None)
            }
        }
    }

    async fn create_through_kills(&mut self) -> Result<AgentLife, Trouble> {
        let params: AgentCreateParams = self.agent_params()?;
        let created = match serde_json::to_value(params) {
            Ok(params) => self.change("agent/create", &params).await?,
            Err(cause) => Err(ClientError::Garbled { cause }),
        };
        match created.and_then(|view| {
            serde_json::from_value::<AgentView>(view).map_err(|cause| ClientError::Garbled { cause })
        }) {
            Ok(view) => {
                self.wait_ready(&view.id).await?;
                self.expect_keepers(AGENTS + 1).await;
                Ok(AgentLife::Live { id: view.id })
            }
            Err(error) => {
                self.report
                    .add(BrokenPromise::Wrong, format!("create, asked until it was answered: {error:?}"));
                Ok(AgentLife::None)
            }
        }
    }

    /// Asks for a change, kills the daemon at some moment of it, and asks again until it was answered.
    async fn change(
        &mut self,
        method: &'static str,
        params: &Value,
    ) -> Result<Result<Value, ClientError>, Trouble> {
        let mut asking = JoinSet::new();
        asking.spawn(self.ask(method, params));
        self.delay(CHANGE_US).await;
        self.kill(&format!("during {method}"))?;
        let answer = answer_of(asking).await;
        self.gather().await;
        while self.rng.percent(30) {
            self.lodge.spawn()?;
            self.delay(CHANGE_US).await;
            self.kill("while booting")?;
        }
        self.start_again().await?;
        self.send_again();
        self.gather().await;
        Ok(self.ask_until_answered(method, params, answer).await)
    }

    async fn expect_status(&mut self, id: &str, wanted: &str) {
        match self.agent(id).await {
            Ok(detail) if detail.agent.status == wanted => {}
            other => {
                self.report.add(BrokenPromise::Wrong, format!("{id} should be {wanted} and is {other:?}"))
            }
        }
    }

    /// A removal continues after its daemon died: its files are gone in the end.
    async fn expect_cleared(&mut self, id: &str) {
        let dir = self.lodge.home().join("agents").join(id);
        let until = Instant::now() + PATIENCE;
        while dir.exists() {
            if Instant::now() >= until {
                let what = format!("{id} was removed, and its directory is there");
                return self.report.add(BrokenPromise::LeftBehind, what);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

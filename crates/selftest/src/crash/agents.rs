//! The agents of a world: made, looked at, removed.

use lodge_proto::client::ClientError;
use lodge_proto::{
    AgentCreateParams, AgentDetail, AgentRef, AgentRemoveParams, AgentStopParams, AgentView, CreateAgent,
    Event, EventKind, GetAgent, RemoveAgent, StopAgent,
};

use super::plan::{self, CrashModel};
use super::report::BrokenPromise;
use super::time::ms_since_1970;
use super::world::CrashWorld;
use crate::processes::KeeperProcess;
use crate::trouble::{Trouble, refused, system};

/// Little is remembered, so that conversations are compacted every other turn.
const MEMORY: &str = "CONFIG memory-max-messages=4\n";
/// One in this many agents remembers everything: its conversations are edited.
const MEMORABLE: u64 = 3;

#[derive(Debug, Clone)]
pub struct CrashAgent {
    pub id: String,
    pub sandbox: String,
    pub keeper: KeeperProcess,
    pub expect: ExpectedKeeper,
    /// Deaths of its runtime or keeper since a turn of it finished, and when the last one was.
    pub deaths: u32,
    pub died_ms: u64,
    /// All of them.
    pub killed: u32,
}

/// Which keeper an agent should have when it is looked at next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedKeeper {
    Same,
    /// The one it had was killed.
    Another,
    /// It is being replaced.
    Either,
}

impl CrashAgent {
    pub fn new(id: &str, sandbox: &str, keeper: KeeperProcess) -> CrashAgent {
        let (id, sandbox) = (id.to_owned(), sandbox.to_owned());
        CrashAgent { id, sandbox, keeper, expect: ExpectedKeeper::Same, deaths: 0, died_ms: 0, killed: 0 }
    }

    /// Whether an event says that it has finished a turn since anything of it died.
    pub fn has_finished(&self) -> impl Fn(&Event) -> bool + use<> {
        let (id, died_ms) = (self.id.clone(), self.died_ms);
        move |event| {
            event.is(EventKind::TurnFinished)
                && event.stream == id
                && ms_since_1970(&event.at).is_some_and(|at_ms| at_ms > died_ms)
        }
    }
}

impl CrashWorld {
    /// What creates one more agent; the same parameters twice are one agent.
    pub fn agent_params(&mut self) -> Result<AgentCreateParams, Trouble> {
        self.made += 1;
        let name = format!("crash-{}", self.made);
        let model = match self.setup.model {
            CrashModel::Script => "script/crash",
            CrashModel::OpenAi => "mock/m",
        };
        let memory = if self.made.is_multiple_of(MEMORABLE) { "" } else { MEMORY };
        let agentfile = format!(
            "FROM scratch\nMODEL {model}\nNETWORK {}\n{memory}{}ADD crash.yaml \"what the scripted model says\"\n",
            self.network,
            plan::BINS
        );
        let script = plan::script(&self.lines()).to_string();
        let dir = self
            .lodge
            .write_agent(&name, &agentfile, &[("crash.yaml", &script)])
            .map_err(system("write an Agentfile"))?;
        Ok(AgentCreateParams {
            path: Some(dir.to_string_lossy().into_owned()),
            name: Some(name.clone()),
            request_id: Some(format!("create-{name}")),
            ..AgentCreateParams::default()
        })
    }

    pub async fn create_agent(&self, params: &AgentCreateParams) -> Result<AgentView, ClientError> {
        self.lodge.try_client().await?.call::<CreateAgent>(params).await
    }

    pub async fn agent(&self, id: &str) -> Result<AgentDetail, ClientError> {
        let params = AgentRef { agent: id.to_owned(), request_id: None };
        self.lodge.try_client().await?.call::<GetAgent>(&params).await
    }

    /// One more agent, which is ready.
    pub async fn extra_agent(&mut self) -> Result<String, Trouble> {
        let params = self.agent_params()?;
        let view = self.create_agent(&params).await.map_err(refused("create an agent"))?;
        self.wait_ready(&view.id).await?;
        Ok(view.id)
    }

    pub async fn remove_agent(&mut self, id: &str) -> Result<(), Trouble> {
        let params = AgentRemoveParams { agent: id.to_owned(), force: true, request_id: None };
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        if let Err(error) = client.call::<RemoveAgent>(&params).await {
            self.report.add(BrokenPromise::Wrong, format!("{id} was not removed: {error}"));
        }
        Ok(())
    }

    pub async fn stop_agents(&mut self) -> Result<(), Trouble> {
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        for agent in &self.agents {
            let params = AgentStopParams { agent: agent.id.clone(), ..AgentStopParams::default() };
            match client.call::<StopAgent>(&params).await {
                Ok(view) if view.status == "stopped" => {}
                Ok(view) => self
                    .report
                    .add(BrokenPromise::Wrong, format!("{} was stopped and is {}", agent.id, view.status)),
                Err(error) => {
                    self.report.add(BrokenPromise::Wrong, format!("{} was not stopped: {error}", agent.id))
                }
            }
        }
        Ok(())
    }
}

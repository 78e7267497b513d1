//! A daemon with agents at work, and everything outside Lodge that counts what they do.

use std::collections::BTreeSet;
use std::time::Duration;

use lodge_proto::client::ClientError;
use lodge_proto::{AddProvider, AgentCreateParams, Empty, GetInfo, JobView, ProviderAddParams, TurnView};
use tokio::task::JoinSet;

use super::agents::CrashAgent;
use super::changes::{AcknowledgedChange, RequestedChange};
use super::edited::EditedSessions;
use super::effects::EffectCounter;
use super::follow::EventFollower;
use super::jobs::SubmittedJob;
use super::plan::{CrashModel, ToolScripts};
use super::report::{CrashReport, FailedRun};
use super::rng::CrashRng;
use super::strike::KeeperDeath;
use super::talk::SentMessage;
use super::tokens::IssuedToken;
use super::{CrashSetup, FailedRunDir};
use crate::lodge::Lodge;
use crate::mock::{MockLlm, MockRegistry};
use crate::processes::StateDirCgroups;
use crate::role;
use crate::trouble::{Trouble, refused, system};

/// Between two looks at a condition.
pub const LOOK: Duration = Duration::from_millis(2);
/// Agents are revived quickly: a run has many deaths, and the delays between them prove nothing. Few jobs run at a
/// time, so that others wait for a slot.
const SETTINGS: [(&str, &str); 5] = [
    ("LODGED_REVIVAL_POLICY", "revive"),
    ("LODGED_BACKOFF_BASE", "20ms"),
    ("LODGED_BACKOFF_CAP", "100ms"),
    ("LODGED_MAX_JOBS", "4"),
    ("LODGED_JOB_KEEP_FREE", "16m"),
];

#[derive(Debug)]
pub struct CrashWorld {
    pub setup: CrashSetup,
    pub mock: Option<MockLlm>,
    /// Started when an agent is to come from one.
    pub registry: Option<MockRegistry>,
    pub effects: EffectCounter,
    /// What its agents reach: the counter alone, through a network of their own where this host has such.
    pub network: String,
    pub follower: EventFollower,
    pub agents: Vec<CrashAgent>,
    pub sent: Vec<SentMessage>,
    /// What clients submitted; jobs of models are in the plans of their turns.
    pub jobs: Vec<SubmittedJob>,
    pub rng: CrashRng,
    pub report: CrashReport,
    /// Keepers that were killed, in order.
    pub falls: Vec<KeeperDeath>,
    /// What creates an agent whose start was cut short.
    pub extra: Option<AgentCreateParams>,
    /// Effects and turns that were checked already, and are of no message in `sent`.
    pub unasked: Vec<String>,
    pub settled: BTreeSet<String>,
    /// Conversations that are changed as a whole.
    pub edited: EditedSessions,
    /// Tokens that are good, and such as were.
    pub tokens: Vec<IssuedToken>,
    pub revoked: Vec<IssuedToken>,
    /// Changes that were acknowledged, and one whose daemon died of it.
    pub answered: Vec<AcknowledgedChange>,
    pub pending: Option<RequestedChange>,
    /// Known once a keeper noted its own one.
    pub cgroups: Option<StateDirCgroups>,
    pub sending: JoinSet<(usize, Result<TurnView, ClientError>)>,
    pub submitting: JoinSet<(usize, Result<JobView, ClientError>)>,
    /// Agents that were ever made.
    pub made: u64,
    // The last to go: everything above speaks with it.
    pub lodge: Lodge,
}

impl CrashWorld {
    /// Starts everything: the counters, the daemon, the agents.
    pub async fn start(setup: &CrashSetup, agents: usize) -> Result<CrashWorld, Trouble> {
        let programs = &setup.programs;
        let mut lodge = Lodge::new(&programs.lodged).map_err(system("make a throw-away directory"))?;
        for (key, value) in SETTINGS {
            lodge.set_env(key, value);
        }
        for (key, value) in &setup.env {
            lodge.set_env(key, value);
        }
        let effects = EffectCounter::spawn(programs, lodge.dir().join("effects.log"))
            .map_err(|cause| Trouble::NoProgram { program: programs.lodge.clone(), cause })?;
        let mock = match setup.model {
            CrashModel::Script => None,
            CrashModel::OpenAi => {
                let started = MockLlm::start(programs.role(role::MODEL), lodge.dir());
                Some(started.map_err(|cause| Trouble::NoProgram { program: programs.lodge.clone(), cause })?)
            }
        };
        lodge.start().await?;
        let follower = EventFollower::start(lodge.target(), lodge.bearer());
        let network = network_to(&effects, &lodge).await.map_err(refused("ask what the host can do"))?;
        let mut world = CrashWorld {
            setup: setup.clone(),
            mock,
            registry: None,
            effects,
            network,
            follower,
            agents: Vec::new(),
            sent: Vec::new(),
            jobs: Vec::new(),
            rng: CrashRng::new(setup.seed),
            report: CrashReport::default(),
            falls: Vec::new(),
            extra: None,
            unasked: Vec::new(),
            settled: BTreeSet::new(),
            edited: EditedSessions::default(),
            tokens: Vec::new(),
            revoked: Vec::new(),
            answered: Vec::new(),
            pending: None,
            cgroups: None,
            sending: JoinSet::new(),
            submitting: JoinSet::new(),
            made: 0,
            lodge,
        };
        world.add_provider().await?;
        for _ in 0..agents {
            let params = world.agent_params()?;
            let view = world.create_agent(&params).await.map_err(refused("create an agent"))?;
            let agent = world.wait_ready(&view.id).await?;
            world.cgroups =
                world.cgroups.or_else(|| StateDirCgroups::noted(&world.lodge.home(), &agent.sandbox));
            world.agents.push(agent);
        }
        Ok(world)
    }

    /// What tools and jobs run here.
    pub fn lines(&self) -> ToolScripts {
        ToolScripts { tool: self.effects.tool_line(), job: self.effects.job_line() }
    }

    async fn add_provider(&self) -> Result<(), Trouble> {
        let Some(mock) = &self.mock else { return Ok(()) };
        let params = ProviderAddParams {
            name: "mock".into(),
            kind: "openai".into(),
            base_url: Some(mock.base_url()),
            api_key: Some("not-a-key".into()),
            models: vec!["m".into()],
            ..ProviderAddParams::default()
        };
        let mut client = self.lodge.try_client().await.map_err(refused("take a connection"))?;
        client.call::<AddProvider>(&params).await.map_err(refused("add a provider"))?;
        Ok(())
    }

    /// Lets everything come to its end, checks it against what was planned, and takes it down.
    pub async fn finish(mut self) -> CrashReport {
        if let Err(trouble) = self.check().await {
            self.report.stopped_by(&trouble);
        }
        self.close()
    }

    /// Ends a run in which something went wrong on the way, or nothing is left to be checked.
    pub fn close(mut self) -> CrashReport {
        if !self.report.is_clean() && self.setup.remains == FailedRunDir::Kept {
            let kept = self.lodge.keep();
            let (seed, kills) = (self.setup.seed, self.report.kills);
            self.report.failed.push(FailedRun { seed, kills, kept });
        }
        self.report
    }
}

/// Runs the steps of a world and finishes it. The report says what stopped it on the way; an error is a world that
/// could not start.
pub async fn through<F>(setup: &CrashSetup, agents: usize, course: F) -> Result<CrashReport, Trouble>
where
    F: AsyncFnOnce(&mut CrashWorld) -> Result<(), Trouble>,
{
    let mut world = CrashWorld::start(setup, agents).await?;
    if let Err(trouble) = course(&mut world).await {
        world.report.stopped_by(&trouble);
        return Ok(world.close());
    }
    Ok(world.finish().await)
}

async fn network_to(effects: &EffectCounter, lodge: &Lodge) -> Result<String, ClientError> {
    let info = lodge.try_client().await?.call::<GetInfo>(&Empty {}).await?;
    let has_own = info.isolation.iter().any(|layer| layer.name == "netns" && layer.in_force);
    Ok(if has_own { format!("loopback:{}", effects.port()) } else { "host".to_owned() })
}
